"""Environment and policy to episodes.

`EpisodeRecorder` turns the transitions of one episode into an `Episode`; `collect` plays many at once in a vector
environment. Episode i of a collection depends on (seed, i) alone: its problem and every sampled id, whatever the
number of environments and the order in which episodes end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, PolicyError, check_int
from mathturn_gym.returns import returns_to_go
from mathturn_gym.streaming import EMPTY_COMPLETION, EpisodePlan, StreamingPolicy, stream
from mathturn_gym.types import NO_VERSION, Completion, Episode, Ids, Policy, StopReason, Verdict
from mathturn_gym.vector import MathMultiTurnVectorEnv, info_of

__all__ = ["EpisodeRecorder", "collect"]


class EpisodeRecorder:
    """Collects one episode's transitions; ids, loss mask, log-probs and versions are made together.

    Args:
        prompt_ids: int64 (L0,); the first observation.
        info: The info of `reset`.
        index: The episode's number in its collection.
        seed: The collection's seed.
        group: Name that episodes on one problem share, or None.
    """

    def __init__(
        self,
        prompt_ids: Ids,
        info: Mapping[str, Any],
        *,
        index: int = 0,
        seed: int | None = None,
        group: str | None = None,
    ) -> None:
        self._place = index, seed, group
        self._problem_id = str(info["problem_id"])
        self._metadata = dict(info.get("metadata", {}))
        self._prompt, self._gold = str(info.get("prompt", "")), tuple(info.get("gold", ()))
        self._budgets = [int(info["completion_budget"])]  # one ahead of the turns: what the next completion may have
        self._ids = np.asarray(prompt_ids, np.int64)
        self._completions: list[Completion] = []
        self._starts: list[int] = []
        self._rewards: list[float] = []
        self._infos: list[Mapping[str, Any]] = []
        self._end: tuple[bool, bool, StopReason | None] = False, False, None

    @property
    def num_turns(self) -> int:
        """Turns recorded so far."""
        return len(self._completions)

    @property
    def ended(self) -> bool:
        """True once a transition was terminal."""
        return self._end[0] or self._end[1]

    def add(
        self,
        completion: Completion,
        observation: Ids,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """Records one transition.

        Args:
            completion: What was played.
            observation: int64 (L,); the observation that followed.
            reward: The reward.
            terminated: As `step` returned it.
            truncated: As `step` returned it.
            info: The info of `step`.

        Raises:
            InvalidEpisodeError: the episode has ended, or the observation is not the one before ++ the completion ++
                more (a wrapper that rewrites observations cannot be recorded).
        """
        if self.ended:
            raise InvalidEpisodeError(f"episode on {self._problem_id!r} has ended: no transition can follow")
        stop = info.get("stop_reason")
        self._end = bool(terminated), bool(truncated), None if stop is None else StopReason(stop)
        if info["turn"] == len(self._completions):  # the prompt left no room: the step played no turn
            return
        start, end = len(self._ids), len(self._ids) + len(completion)
        head = observation[:end]
        if not (np.array_equal(head[:start], self._ids) and np.array_equal(head[start:], completion.ids)):
            raise InvalidEpisodeError(
                f"episode on {self._problem_id!r}, turn {self.num_turns}: the observation does not begin with the one"
                " before and the completion; the sequence law is broken"
            )
        self._completions.append(completion)
        self._starts.append(start)
        self._rewards.append(float(reward))
        self._infos.append(info)
        self._budgets.append(int(info["completion_budget"]))
        self._ids = observation

    def episode(self, discount: float = 1.0) -> Episode:
        """The episode so far, with discounted returns-to-go.

        Args:
            discount: Per turn, in [0, 1].
        """
        size, spans = len(self._ids), np.zeros((self.num_turns, 2), np.int64)
        mask, logprobs = np.zeros(size, np.bool_), np.zeros(size, np.float32)
        versions = np.full(size, NO_VERSION, np.int32)
        for k, (start, completion) in enumerate(zip(self._starts, self._completions, strict=True)):
            end = start + len(completion)
            spans[k] = start, end
            mask[start:end], logprobs[start:end], versions[start:end] = True, completion.logprobs, completion.versions
        rewards = np.array(self._rewards, np.float64)
        index, seed, group = self._place
        return Episode(
            problem_id=self._problem_id,
            ids=np.array(self._ids),
            loss_mask=mask,
            logprobs=logprobs,
            versions=versions,
            turn_spans=spans,
            rewards=rewards,
            verdicts=tuple(_verdict(info) for info in self._infos),
            feedbacks=tuple(str(info.get("feedback", "")) for info in self._infos),
            turn_truncated=tuple(completion.truncated for completion in self._completions),
            terminated=self._end[0],
            truncated=self._end[1],
            stop_reason=self._end[2],
            returns=returns_to_go(rewards, discount),
            discount=discount,
            index=index,
            seed=seed,
            group=group,
            metadata=self._metadata,
            prompt=self._prompt,
            responses=tuple(str(info["response"]) for info in self._infos),
            gold=self._gold,
            budgets=tuple(self._budgets[:-1]),
            token_values=self._token_values(),
        )

    def _token_values(self) -> dict[str, npt.NDArray[np.float32]]:
        """What the policy said of its ids besides their log-probs, NaN off the mask and where it said nothing."""
        values: dict[str, npt.NDArray[np.float32]] = {}
        for start, completion in zip(self._starts, self._completions, strict=True):
            for name, own in (("entropy", completion.entropies), ("raw_logprob", completion.raw_logprobs)):
                if own is not None:
                    row = values.setdefault(name, np.full(len(self._ids), np.nan, np.float32))
                    row[start : start + len(completion)] = own
        return values


def collect(
    env: gym.vector.VectorEnv[Any, Any, Any],
    policy: Policy,
    episodes: int,
    *,
    seed: int = 0,
    first_index: int = 0,
    group_size: int = 1,
    discount: float = 1.0,
    problem_ids: Sequence[str] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Plays episodes in a vector environment, refilling each place as soon as its episode ends.

    A `StreamingPolicy` (such as `CausalLMPolicy`) in a synchronous vector environment has no barrier per turn: each
    episode goes on as soon as its own completion is there, so the policy's batch stays full. Any other policy, and an
    `AsyncVectorEnv`, takes all running episodes one turn further at once. The episodes are the same either way.

    Args:
        env: From `gym.make_vec`, in any autoreset mode (`collect` chooses every problem itself).
        policy: Asked with the contexts of running episodes, whatever their lengths.
        episodes: How many to play.
        seed: With an episode's index, decides its problem and its samples.
        first_index: Index of the first episode: `collect(…, 10, first_index=10)` continues `collect(…, 10)`.
        group_size: Consecutive episodes that play the same problem (with samples of their own).
        discount: Per turn, for the episodes' `returns`.
        problem_ids: Play these, episode i on `problem_ids[(i // group_size) % len]`, not the stream of `seed`.
        on_episode: Called with each episode as it ends (for progress, or to save it).

    Returns:
        The episodes in order of their index.

    Raises:
        InvalidValueError: an argument is outside what is allowed.
        PolicyError: the policy cannot go on; the error's `finished` holds the episodes that had ended.
    """
    episodes, first = check_int("episodes", episodes, low=0), check_int("first_index", first_index, low=0)
    plan = EpisodePlan(seed, group_size, problem_ids, discount)
    done: dict[int, Episode] = {}

    def keep(episode: Episode) -> None:
        done[episode.index] = episode
        if on_episode is not None:
            on_episode(episode)

    indices = range(first, first + episodes)
    try:
        if isinstance(policy, StreamingPolicy) and isinstance(env, (MathMultiTurnVectorEnv, SyncVectorEnv)):
            stream(list(env.envs), policy, plan, indices, keep)
            env.reset()  # its places were played one by one, which its own bookkeeping has not seen
        else:
            _play_slots(_Slots(env, plan), policy, indices, keep)
    except PolicyError as error:
        error.finished = tuple(done[index] for index in sorted(done))
        raise
    return [done[index] for index in indices]


def _play_slots(slots: _Slots, policy: Policy, indices: range, keep: Callable[[Episode], None]) -> None:
    """Plays episodes with one call of policy and environment per turn of all that run."""
    upcoming = iter(indices)
    for slot, index in zip(range(slots.num_slots), upcoming, strict=False):
        slots.begin(slot, index)
    slots.fill_idle()
    while slots.running():
        for slot in slots.step(policy):
            episode = slots.recorders[slot].episode(slots.plan.discount)  # type: ignore[union-attr]
            if isinstance(policy, StreamingPolicy):
                policy.release(episode.ids)
            keep(episode)
            following = next(upcoming, None)
            if following is None:
                slots.retire(slot)
            else:
                slots.begin(slot, following)


class _Slots:
    """The places of a vector environment, each with the episode that runs in it (or none)."""

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], plan: EpisodePlan) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is AutoresetMode.NEXT_STEP and getattr(env, "shared_memory", None) is False:
            # There AsyncVectorEnv forgets that a place was reset by hand, and resets it again instead of stepping.
            raise InvalidValueError(
                "collect() cannot use AsyncVectorEnv with shared_memory=False and autoreset_mode NEXT_STEP:"
                " leave shared_memory at its default, or use AutoresetMode.DISABLED"
            )
        self._env, self.plan, self.num_slots = env, plan, env.num_envs
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._observations: list[Ids] = [np.zeros(0, np.int64)] * env.num_envs
        self._budgets = [0] * env.num_envs
        self.recorders: list[EpisodeRecorder | None] = [None] * env.num_envs
        self._indices = [-1] * env.num_envs
        self._fresh = [False] * env.num_envs  # its sub-environment has an episode that can be stepped

    def begin(self, slot: int, index: int) -> None:
        """Starts episode `index` in a place."""
        info = self._reset(slot, self.plan.number(index))
        self.recorders[slot] = EpisodeRecorder(
            self._observations[slot], info, index=index, seed=self.plan.seed, group=self.plan.group(index)
        )
        self._indices[slot] = index
        self._budgets[slot] = int(info["completion_budget"])

    def retire(self, slot: int) -> None:
        """Leaves a place without an episode of ours; it plays empty actions until the others are done."""
        self.recorders[slot] = None
        self._reset(slot, 0)

    def fill_idle(self) -> None:
        """A vector environment steps all its places, so the unused ones need an episode to step through."""
        for slot in range(self._env.num_envs):
            if not self._fresh[slot]:
                self.retire(slot)

    def running(self) -> bool:
        """True while some place has an episode of ours."""
        return any(recorder is not None for recorder in self.recorders)

    def step(self, policy: Policy) -> list[int]:
        """One vector step; returns the places whose episode of ours ended with it."""
        rows = [slot for slot, recorder in enumerate(self.recorders) if recorder is not None]
        completions = self._complete(policy, rows)
        empty = np.zeros(0, np.int64)
        actions = tuple(completions[slot].ids if slot in completions else empty for slot in range(self._env.num_envs))
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        ended = []
        for slot, recorder in enumerate(self.recorders):
            over = bool(terminated[slot] or truncated[slot])
            if recorder is None:
                if over:
                    self.retire(slot)
                continue
            observation, info = observations[slot], infos
            if over and self._same_step:
                observation, info = infos["final_obs"][slot], infos["final_info"]
            own = info_of(info, slot)
            recorder.add(completions[slot], observation, rewards[slot], terminated[slot], truncated[slot], own)
            self._observations[slot], self._budgets[slot] = observation, int(own["completion_budget"])
            if over:
                ended.append(slot)
        return ended

    def _complete(self, policy: Policy, rows: list[int]) -> dict[int, Completion]:
        """The policy's completions for the places that have an episode and room to answer."""
        asked = [slot for slot in rows if self._budgets[slot] > 0]
        found: list[Completion] = []
        if asked:
            found = policy.complete(
                [self._observations[slot] for slot in asked],
                max_tokens=[self._budgets[slot] for slot in asked],
                seeds=[self.plan.turn_seed(self._indices[slot], self._turn(slot)) for slot in asked],
            )
        if len(found) != len(asked):
            raise InvalidValueError(f"policy {policy!r} returned {len(found)} completions for {len(asked)} contexts")
        return {**dict.fromkeys(rows, EMPTY_COMPLETION), **dict(zip(asked, found, strict=True))}

    def _turn(self, slot: int) -> int:
        recorder = self.recorders[slot]
        return 0 if recorder is None else recorder.num_turns

    def _reset(self, slot: int, number: int) -> dict[str, Any]:
        mask = np.zeros(self._env.num_envs, np.bool_)
        mask[slot] = True
        observations, infos = self._env.reset(
            seed=[self.plan.seed] * self._env.num_envs,  # type: ignore[arg-type]  # Gymnasium takes lists, its type does not
            options={"reset_mask": mask, **self.plan.options(number)},
        )
        self._observations[slot], self._fresh[slot] = np.array(observations[slot]), True
        return info_of(infos, slot)


def _verdict(info: Mapping[str, Any]) -> Verdict:
    verdict = info["verdict"]
    assert isinstance(verdict, Verdict)
    return verdict
