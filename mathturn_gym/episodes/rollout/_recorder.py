"""`EpisodePlan` determines episode i of a collection; `EpisodeRecorder` records its transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from mathturn_gym.episodes.returns import returns_to_go
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError, check_float, check_int
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import NO_VERSION, Completion, Episode, Ids, Policy, StopReason, Verdict

Scheduler: TypeAlias = Literal["batched", "streaming", "async"]
"""How a policy is asked; a policy declares it as its attribute `scheduler` ("batched" where it has none)."""


class StreamingPolicy(Policy, Protocol):
    """A policy that also answers requests one by one, as they end."""

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Queues a context; returns a ticket."""
        ...

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Works until at least one request has ended.

        Args:
            steps: Returns after about this many steps of decoding even where nothing has ended; None waits.

        Returns:
            Tickets and completions, in the order in which they ended; none where no request is queued.
        """
        ...

    def cancel(self, ticket: int) -> bool:
        """Drops a request; False where there is none of that ticket."""
        ...

    def release(self, context: Ids) -> None:
        """Drops what is kept for a context, which will not be continued."""
        ...


class AsyncPolicy(Protocol):
    """Anything that continues one context at a time, many at once, in asyncio.

    Cancelling `acomplete` must drop the request.
    """

    async def acomplete(
        self, context: Ids, *, max_tokens: int, seed: int | None = None, session: str | None = None
    ) -> Completion:
        """Continues a context.

        Args:
            context: int64 (L,).
            max_tokens: Budget, >= 0.
            seed: Determines the sample; None leaves it to the policy.
            session: The same for all turns of an episode, so that the server that has its prefix cached can be asked again.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """The problem, the group and the seeds of every episode of a collection, from its index and the seed alone.

    Args:
        seed: The collection's seed.
        group_size: Consecutive episodes that play the same problem.
        problem_ids: Play these instead of the stream of `seed`.
        discount: For the episodes' `returns`.

    Raises:
        InvalidValueError: an argument is outside what is allowed.

    >>> plan = EpisodePlan(seed=4, group_size=2)
    >>> [plan.number(index) for index in range(4)], plan.group(3)
    ([0, 0, 1, 1], '4/1')
    """

    seed: int = 0
    group_size: int = 1
    problem_ids: Sequence[str] | None = None
    discount: float = 1.0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        check_int("seed", self.seed, low=0)
        check_int("group_size", self.group_size, low=1)
        check_float("discount", self.discount, low=0.0, high=1.0)
        if isinstance(self.problem_ids, str):
            raise InvalidValueError(f"problem_ids must be a list of ids, got the text {self.problem_ids!r}")
        if self.problem_ids is not None and not self.problem_ids:
            raise InvalidValueError("problem_ids must hold at least one id, got none")

    def number(self, index: int) -> int:
        """Number of the problem that episode `index` plays."""
        return index // self.group_size

    def options(self, index: int) -> dict[str, Any]:
        """Options of `reset` for episode `index`; "episode" keeps episodes on one problem apart.

        >>> EpisodePlan(group_size=2).options(3), EpisodePlan().options(3)
        ({'index': 1, 'episode': 3}, {'index': 3})
        """
        number = self.number(index)
        if self.problem_ids is not None:
            return {"problem_id": self.problem_ids[number % len(self.problem_ids)], "episode": index}
        return {"index": number} if number == index and self.group_size == 1 else {"index": number, "episode": index}

    def group(self, index: int) -> str | None:
        """Name that episodes on one problem share, None where every episode has a problem of its own."""
        return None if self.group_size == 1 else f"{self.seed}/{self.number(index)}"

    def turn_seed(self, index: int, turn: int) -> int:
        """Seed of one completion."""
        # Of index and turn alone: neither batch, scheduler nor number of environments can change a sample (law 4).
        return derive_seed(self.seed, index, turn)

    def session(self, index: int) -> str:
        """Name that all turns of an episode share; the episodes of a group begin alike."""
        return f"{self.seed}/{self.number(index)}/{index}"


EMPTY_COMPLETION: Final = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True)
"""Played where there is no room to answer; the policy is not asked."""


class EpisodeRecorder:
    """One episode as it is played: what the policy is asked next, and the record of what it answered.

    Ids, loss mask, log-probs and versions are made together, from the same transition.

    Args:
        prompt_ids: int64 (L0,); the first observation.
        info: The info of `reset`.
        index: The episode's number in its collection.
        group: Name that episodes on one problem share, or None.
        plan: The collection's plan, which has a seed and names the group.

    Attributes:
        context: int64 (L,); the last observation.
        budget: The most tokens that the next completion can use; 0 where there is no room to answer.
    """

    def __init__(
        self,
        prompt_ids: Ids,
        info: Mapping[str, Any],
        *,
        index: int = 0,
        group: str | None = None,
        plan: EpisodePlan | None = None,
    ) -> None:
        self._index, self._plan = index, plan
        self._group = group if plan is None else plan.group(index)
        self._problem_id = str(info["problem_id"])
        self._metadata = dict(info.get("metadata", {}))
        self._prompt, self._gold = str(info.get("prompt", "")), tuple(info.get("gold", ()))
        self.context, self.budget = np.asarray(prompt_ids, np.int64), int(info["completion_budget"])
        self._budgets: list[int] = []
        self._finished: list[Ids] = []  # the segments before the current one
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
    def contexts(self) -> tuple[Ids, ...]:
        """All segments of the episode: the finished ones, then the current observation."""
        return (*self._finished, self.context)

    @property
    def turn_seed(self) -> int:
        """Seed of the next completion."""
        return self._planned.turn_seed(self._index, self.num_turns)

    @property
    def session(self) -> str:
        """Name that all requests of this episode share."""
        return self._planned.session(self._index)

    @property
    def _planned(self) -> EpisodePlan:
        assert self._plan is not None, "an episode without a plan has no seeds"
        return self._plan

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
            InvalidEpisodeError: the episode has ended. Or the observation is not the one before ++ the completion ++ more,
                and the info announces no new segment: a wrapper that changes observations cannot be recorded.
        """
        if self.ended:
            raise InvalidEpisodeError(f"episode on {self._problem_id!r} has ended: no transition can follow")
        stop = info.get("stop_reason")
        self._end = bool(terminated), bool(truncated), None if stop is None else StopReason(stop)
        if info["turn"] == self.num_turns:  # the prompt left no room: the step played no turn
            self.budget = int(info["completion_budget"])
            return
        start, end = len(self.context), len(self.context) + len(completion)
        # Compared, not assumed: a wrapper that edits observations would shift every mask behind it (law 1).
        head = observation[:end]
        before = sum(map(len, self._finished))
        if info.get("segment", 0) > len(self._finished):
            self._finished.append(np.concatenate([self.context, completion.ids]))
        elif not (np.array_equal(head[:start], self.context) and np.array_equal(head[start:], completion.ids)):
            raise InvalidEpisodeError(
                f"episode on {self._problem_id!r}, turn {self.num_turns}: the observation does not begin with the one"
                " before and the completion; the sequence law is broken"
            )
        self._completions.append(completion)
        self._starts.append(before + start)
        self._rewards.append(float(reward))
        self._infos.append(info)
        # The budget before the turn: what the completion could have had.
        self._budgets.append(self.budget)
        self.context, self.budget = observation, int(info["completion_budget"])

    def episode(self, discount: float | None = None) -> Episode:
        """The episode so far, with discounted returns-to-go.

        Args:
            discount: Per turn, in [0, 1]; None takes the plan's, or 1.

        Raises:
            InvalidValueError: its returns do not fit into float32 (a wrapper's rewards are enormous).
        """
        if discount is None:
            discount = 1.0 if self._plan is None else self._plan.discount
        ids = np.concatenate(self.contexts)
        size, spans = len(ids), np.zeros((self.num_turns, 2), np.int64)
        mask, logprobs = np.zeros(size, np.bool_), np.zeros(size, np.float32)
        versions = np.full(size, NO_VERSION, np.int32)
        for k, (start, completion) in enumerate(zip(self._starts, self._completions, strict=True)):
            end = start + len(completion)
            spans[k] = start, end
            mask[start:end], logprobs[start:end], versions[start:end] = True, completion.logprobs, completion.versions
        rewards = np.array(self._rewards, np.float64)
        return Episode(
            problem_id=self._problem_id,
            ids=ids,
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
            index=self._index,
            seed=None if self._plan is None else self._plan.seed,
            group=self._group,
            metadata=self._metadata,
            prompt=self._prompt,
            responses=tuple(str(info["response"]) for info in self._infos),
            gold=self._gold,
            budgets=tuple(self._budgets),
            token_values=self._token_values(size),
            segment_starts=np.cumsum([0, *map(len, self._finished)], dtype=np.int64),
            support=self._support(),
        )

    def _token_values(self, size: int) -> dict[str, npt.NDArray[np.float32]]:
        """Entropies and raw log-probs, where the policy reports them; NaN off the mask and for completions without."""
        values: dict[str, npt.NDArray[np.float32]] = {}
        for start, completion in zip(self._starts, self._completions, strict=True):
            for name, own in (("entropy", completion.entropies), ("raw_logprob", completion.raw_logprobs)):
                if own is not None:
                    row = values.setdefault(name, np.full(size, np.nan, np.float32))
                    row[start : start + len(completion)] = own
        return values

    def _support(self) -> npt.NDArray[np.int32] | None:
        """The ids that could be drawn at each place of all completions; None where a completion does not report them."""
        found = [completion.support for completion in self._completions]
        reported = [one for one in found if one is not None]
        if not reported or len(reported) < len(found):
            return None
        # The widest set, without its padding: completions of one policy are padded to different widths.
        width = max(int((one >= 0).sum(axis=1).max(initial=0)) for one in reported)
        full = [np.pad(one, ((0, 0), (0, max(0, width - one.shape[1]))), constant_values=-1) for one in reported]
        return np.concatenate([one[:, :width] for one in full]) if width else None


def _verdict(info: Mapping[str, Any]) -> Verdict:
    verdict = info["verdict"]
    assert isinstance(verdict, Verdict)
    return verdict
