"""Three schedulers of one plan: whole batches at once, each request as it ends, and asyncio tasks."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.environment import info_of
from mathturn_gym.env.verification import TurnVerifier
from mathturn_gym.episodes.rollout._recorder import (
    EMPTY_COMPLETION,
    AsyncPolicy,
    EpisodePlan,
    EpisodeRecorder,
    StreamingPolicy,
)
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.types import Completion, Episode, Ids, Policy, TurnContext, Verdict


class EnvSlot:
    """An environment, wrapped or not, that is played on its own, and the episode that runs in it."""

    def __init__(self, env: gym.Env[Ids, Ids]) -> None:
        self.env = env
        # Another environment below the wrappers verifies by itself, in `step`.
        base: Any = env.unwrapped
        self._base: MathMultiTurnEnv | None = base if isinstance(base, MathMultiTurnEnv) else None
        self._recorder: EpisodeRecorder | None = None

    @property
    def recorder(self) -> EpisodeRecorder:
        """The episode."""
        assert self._recorder is not None
        return self._recorder

    @property
    def verifier(self) -> TurnVerifier | None:
        """The verifier of its turns; None where the environment judges them in `step`."""
        return None if self._base is None else self._base.verifier

    def begin(self, plan: EpisodePlan, index: int) -> None:
        """Starts episode `index`; where its prompt leaves no room to answer, also plays it."""
        observation, info = self.env.reset(seed=plan.seed, options=plan.options(index))
        self._recorder = EpisodeRecorder(observation, info, index=index, plan=plan)
        self._play_empty()

    def turn(self, completion: Completion) -> TurnContext | None:
        """The turn that a completion makes, to be judged before it is played; None where there is nothing to judge."""
        return None if self._base is None else self._base.begin_turn(completion.ids)

    def play(self, completion: Completion, judged: tuple[TurnContext, Verdict] | None = None) -> None:
        """Plays one completion; `judged` is what `turn` made of it and its verdict, None leaves it to the environment."""
        if self._base is None or judged is None:
            self._step(completion)
        else:
            # A wrapper may change the action or step several times: the verdict is for the turn that was judged alone.
            turn, verdict, verifier = *judged, self._base.verifier
            self._base.verdict_source = lambda one: verdict if one is turn else verifier.verify_turns([one])[0]
            try:
                self._step(completion)
            finally:
                self._base.verdict_source = None
        self._play_empty()

    def _play_empty(self) -> None:
        # No room for an id: the environment is told so by an empty answer, and ends or goes on; the policy is not
        # asked.
        while not self.recorder.ended and self.recorder.budget == 0:
            self._step(EMPTY_COMPLETION)

    def _step(self, completion: Completion) -> None:
        observation, reward, terminated, truncated, info = self.env.step(completion.ids)
        self.recorder.add(completion, observation, float(reward), terminated, truncated, info)


def env_slots(env: gym.vector.VectorEnv[Any, Any, Any], who: str) -> list[EnvSlot]:
    """A slot for each environment of a vector environment that can be played one by one; `who` asks, for the message.

    Raises:
        InvalidValueError: its environments are out of reach (in other processes, or behind a vector wrapper).
    """
    envs: Sequence[gym.Env[Ids, Ids]] | None = getattr(env, "envs", None)
    if envs is None:
        raise InvalidValueError(
            f"{who} plays the environments of a vector environment one by one, and those of {env!r} are out of reach:"
            " use gym.make_vec's default form or SyncVectorEnv, and put wrappers around the single environments"
            " (make_vec(…, wrappers=[…]))"
        )
    return [EnvSlot(one) for one in envs]


# ---- "batched": all running episodes advance by one turn at once


VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def play_batched(
    env: VectorEnv, policy: Policy, plan: EpisodePlan, indices: Sequence[int], keep: Callable[[Episode], None]
) -> None:
    """Plays episodes with one call of the policy and one step of the environment per turn of all that run."""
    slots = _VectorSlots(env, plan)
    release = getattr(policy, "release", None)
    upcoming = iter(indices)
    for slot, index in zip(range(env.num_envs), upcoming, strict=False):
        slots.begin(slot, index)
    slots.fill_idle()
    while slots.running():
        for slot in slots.step(policy):
            recorder = slots.recorders[slot]
            assert recorder is not None
            if release is not None:
                for context in recorder.contexts:
                    release(context)
            keep(recorder.episode())
            following = next(upcoming, None)
            if following is None:
                slots.retire(slot)
            else:
                slots.begin(slot, following)


class _VectorSlots:
    """The places of a vector environment, each with the episode that runs in it (or none)."""

    def __init__(self, env: VectorEnv, plan: EpisodePlan) -> None:
        mode = env.metadata.get("autoreset_mode")
        if mode is AutoresetMode.NEXT_STEP and getattr(env, "shared_memory", None) is False:
            # There AsyncVectorEnv forgets that a place was reset by hand, and resets it again instead of stepping.
            raise InvalidValueError(
                "collect() cannot use AsyncVectorEnv with shared_memory=False and autoreset_mode NEXT_STEP:"
                " leave shared_memory at its default, or use AutoresetMode.DISABLED"
            )
        self._env, self._plan = env, plan
        self._same_step = mode is AutoresetMode.SAME_STEP
        self.recorders: list[EpisodeRecorder | None] = [None] * env.num_envs
        self._fresh = [False] * env.num_envs  # the slot has an episode that can be stepped, of the plan or not

    def begin(self, slot: int, index: int) -> None:
        """Starts episode `index` in a slot."""
        observation, info = self._reset(slot, index)
        self.recorders[slot] = EpisodeRecorder(observation, info, index=index, plan=self._plan)

    def retire(self, slot: int) -> None:
        """Leaves a slot without an episode of the plan; it plays empty actions until the others have ended."""
        self.recorders[slot] = None
        self._reset(slot, 0)

    def fill_idle(self) -> None:
        """Resets the unused slots: a vector environment steps all of them, so each needs an episode."""
        for slot in range(self._env.num_envs):
            if not self._fresh[slot]:
                self.retire(slot)

    def running(self) -> bool:
        """True while a slot has an episode of the plan."""
        return any(recorder is not None for recorder in self.recorders)

    def step(self, policy: Policy) -> list[int]:
        """Plays one vector step; returns the slots whose episode of the plan ended with it."""
        completions = self._complete(policy)
        actions = tuple(completions.get(slot, EMPTY_COMPLETION).ids for slot in range(self._env.num_envs))
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        ended = []
        for slot, recorder in enumerate(self.recorders):
            over = bool(terminated[slot] or truncated[slot])
            if recorder is None:
                if over:
                    self.retire(slot)
                continue
            # With SAME_STEP the observation is the next episode's already; the last one of this episode is in the
            # infos.
            final = over and self._same_step
            observation = infos["final_obs"][slot] if final else observations[slot]
            info = info_of(infos["final_info"] if final else infos, slot)
            recorder.add(completions[slot], observation, rewards[slot], terminated[slot], truncated[slot], info)
            if over:
                ended.append(slot)
        return ended

    def _complete(self, policy: Policy) -> dict[int, Completion]:
        """The completions of all running episodes; the policy is asked for those that have room to answer."""
        recorders = {slot: recorder for slot, recorder in enumerate(self.recorders) if recorder is not None}
        asked = [slot for slot, recorder in recorders.items() if recorder.budget > 0]
        found: list[Completion] = []
        if asked:
            found = policy.complete(
                [recorders[slot].context for slot in asked],
                max_tokens=[recorders[slot].budget for slot in asked],
                seeds=[recorders[slot].turn_seed for slot in asked],
            )
        if len(found) != len(asked):
            raise InvalidValueError(f"policy {policy!r} returned {len(found)} completions for {len(asked)} contexts")
        return {**dict.fromkeys(recorders, EMPTY_COMPLETION), **dict(zip(asked, found, strict=True))}

    def _reset(self, slot: int, index: int) -> tuple[Any, dict[str, Any]]:
        # Gymnasium resets a single place by a mask; seeds and options go to every place, and count for this one alone.
        mask = np.zeros(self._env.num_envs, np.bool_)
        mask[slot] = True
        observations, infos = self._env.reset(
            seed=[self._plan.seed] * self._env.num_envs,  # type: ignore[arg-type]  # Gymnasium takes lists, its type does not
            options={"reset_mask": mask, **self._plan.options(index)},
        )
        self._fresh[slot] = True
        return np.array(observations[slot]), info_of(infos, slot)


# ---- "streaming": an episode goes on as soon as its own completion has ended


PATIENCE_SECONDS: Final = 0.1
"""How long decoding waits for verdicts while no others are outstanding.

Nearly all verdicts are there within it, so that a run goes the same way each time: the same requests share a batch. Async
judges wait for something elsewhere, and are not waited for.
"""

STEPS_BETWEEN_LOOKS: Final = 8
"""Steps of decoding after which outstanding verdicts are looked at again."""

_Answer: TypeAlias = tuple[EnvSlot, Completion, TurnContext]


def play_streaming(
    slots: Sequence[EnvSlot],
    policy: StreamingPolicy,
    plan: EpisodePlan,
    indices: Iterable[int],
    keep: Callable[[Episode], None],
) -> None:
    """Plays episodes, each going on as soon as its completion and its verdict are there; `keep` gets each as it ends."""
    stream = _Stream(slots, policy, plan, indices, keep)
    try:
        stream.run()
    finally:
        # After an error: requests under way are dropped, verdicts that come later are ignored.
        for ticket in stream.asked:
            policy.cancel(ticket)


class _Stream:
    """Episodes under way: those whose policy has been asked, and those whose turn is being judged."""

    def __init__(
        self,
        slots: Sequence[EnvSlot],
        policy: StreamingPolicy,
        plan: EpisodePlan,
        indices: Iterable[int],
        keep: Callable[[Episode], None],
    ) -> None:
        self._policy, self._plan, self._upcoming, self._keep = policy, plan, iter(indices), keep
        self._idle = deque(slots)
        self.asked: dict[int, EnvSlot] = {}
        self._judging: dict[Future[Verdict], _Answer] = {}

    def run(self) -> None:
        """Plays all episodes to their ends."""
        self._begin()
        while self.asked or self._judging:
            if self.asked:
                self._judge(self._advance())
            self._settle()
            self._begin()

    def _begin(self) -> None:
        while self._idle and (index := next(self._upcoming, None)) is not None:
            slot = self._idle.popleft()
            slot.begin(self._plan, index)
            self._go_on(slot)

    def _go_on(self, slot: EnvSlot) -> None:
        """Asks for the episode's next completion, or hands it out where it is over."""
        recorder = slot.recorder
        if recorder.ended:
            self._idle.appendleft(slot)
            for context in recorder.contexts:
                self._policy.release(context)
            self._keep(recorder.episode())
        else:
            ticket = self._policy.submit(recorder.context, max_tokens=recorder.budget, seed=recorder.turn_seed)
            self.asked[ticket] = slot

    def _advance(self) -> list[tuple[EnvSlot, Completion]]:
        """The completions that have ended since the last call, with their slots."""
        # Decoding goes on while a judge thinks, and looks up every few steps.
        steps = STEPS_BETWEEN_LOOKS if self._judging else None
        ended = self._policy.advance(steps) if steps else self._policy.advance()
        unknown = [ticket for ticket, _ in ended if ticket not in self.asked]
        if unknown or not (ended or self._judging):
            raise PolicyError(
                f"advance() of {self._policy!r} must return completions of requests that were submitted, got"
                f" {f'tickets {unknown}' if unknown else 'none'} with {len(self.asked)} requests waiting"
            )
        return [(self.asked.pop(ticket), completion) for ticket, completion in ended]

    def _judge(self, ended: Sequence[tuple[EnvSlot, Completion]]) -> None:
        """Judges what ended together in one call per verifier, and waits for a moment where nothing else is judged."""
        batches: dict[TurnVerifier, list[_Answer]] = {}
        for slot, completion in ended:
            context, verifier = slot.turn(completion), slot.verifier
            if context is None or verifier is None:
                slot.play(completion)
                self._go_on(slot)
            else:
                batches.setdefault(verifier, []).append((slot, completion, context))
        # A rule-based verdict takes milliseconds: waiting for it keeps batches the same in every run.
        patient = not self._judging and not any(verifier.is_async for verifier in batches)
        for verifier, answers in batches.items():
            futures = verifier.submit_turns([context for *_, context in answers])
            self._judging.update(zip(futures, answers, strict=True))
        if patient:
            wait(self._judging, timeout=PATIENCE_SECONDS)

    def _settle(self) -> None:
        """Plays the turns whose verdicts have come; waits for some where there is nothing else to do."""
        if self._judging and not self.asked:
            wait(self._judging, return_when=FIRST_COMPLETED)
        for future in [future for future in self._judging if future.done()]:
            slot, completion, context = self._judging.pop(future)
            slot.play(completion, (context, future.result()))
            self._go_on(slot)


# ---- "async": every episode is a task that awaits its own completions


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a collection.

    Args:
        finished: Episodes that have ended.
        running: Episodes that are under way.
        total: Episodes asked for.
        tokens: Tokens sampled in finished episodes.
    """

    finished: int
    running: int
    total: int
    tokens: int


def play_asyncio(
    slots: Sequence[EnvSlot],
    policy: AsyncPolicy,
    plan: EpisodePlan,
    indices: Sequence[int],
    keep: Callable[[Episode], None],
) -> None:
    """Plays episodes in an event loop of its own, and returns when they have ended; `keep` gets each as it ends."""

    async def play() -> None:
        stream = stream_asyncio(slots, policy, plan, indices, max_waiting=len(slots))
        async with aclosing(stream):
            async for episode in stream:
                keep(episode)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(play())
    else:  # a loop runs in this thread already (a Jupyter cell): this call blocks it
        _run_beside(play())


def _run_beside(work: Coroutine[None, None, None]) -> None:
    """Runs a coroutine in another thread and waits for it; an interrupt cancels it first."""
    done: Future[None] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def main() -> None:
        task = asyncio.ensure_future(work)
        running.set_result((asyncio.get_running_loop(), task))
        await task

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # to be raised where `collect` was called
            done.set_exception(error)
        else:
            done.set_result(None)

    thread = threading.Thread(target=run, name="collect", daemon=True)
    thread.start()
    try:
        done.result()
    except BaseException:
        if not done.done():  # it is this thread that was interrupted
            loop, task = running.result(timeout=60.0)
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise


async def stream_asyncio(
    slots: Sequence[EnvSlot],
    policy: AsyncPolicy,
    plan: EpisodePlan,
    indices: Sequence[int],
    *,
    max_waiting: int,
    on_progress: Callable[[Progress], None] | None = None,
) -> AsyncGenerator[Episode, None]:
    """Plays episodes concurrently and yields each as it finishes; with `max_waiting` not yet taken, the others wait.

    Where an episode fails, those that had finished come first, then the error is raised.
    """
    collection = _Collection(policy, plan, iter(indices), max_waiting)
    # All tasks draw from one iterator of indices: whichever is free takes the next episode.
    tasks = [asyncio.create_task(collection.work(slot)) for slot in slots[: len(indices)]]
    try:
        tokens = 0
        for finished in range(1, len(indices) + 1):
            episode = await collection.take(tasks)
            tokens += int(episode.loss_mask.sum())
            if on_progress is not None:
                on_progress(Progress(finished, collection.running, len(indices), tokens))
            yield episode
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:  # an error has been raised by `take`, or its reader has left and does not want it
            with suppress(asyncio.CancelledError, Exception):
                await task


class _Collection:
    """State that the tasks of a collection share."""

    def __init__(self, policy: AsyncPolicy, plan: EpisodePlan, indices: Iterator[int], waiting: int) -> None:
        self._policy, self._plan, self._indices = policy, plan, indices
        self._queue: asyncio.Queue[Episode] = asyncio.Queue(waiting)
        self.running = 0

    async def work(self, slot: EnvSlot) -> None:
        """Plays one episode after the other."""
        for index in self._indices:
            self.running += 1
            slot.begin(self._plan, index)
            recorder = slot.recorder
            while not recorder.ended:
                completion = await self._policy.acomplete(
                    recorder.context, max_tokens=recorder.budget, seed=recorder.turn_seed, session=recorder.session
                )
                context, verifier, judged = slot.turn(completion), slot.verifier, None
                if context is not None and verifier is not None:
                    judged = context, await asyncio.wrap_future(verifier.submit_turns([context])[0])
                slot.play(completion, judged)
            self.running -= 1
            await self._queue.put(recorder.episode())

    async def take(self, tasks: Sequence[asyncio.Task[None]]) -> Episode:
        """Returns the next finished episode, or raises a task's error once none is left."""
        getter = asyncio.create_task(self._queue.get())
        try:
            while not getter.done():
                pending = [task for task in tasks if not task.done()]
                failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception()]
                # Episodes that had finished come first; one turn of the loop lets a queued one reach the getter.
                if failed and self._queue.empty():
                    await asyncio.sleep(0)
                    if not getter.done():
                        failed[0].result()
                await asyncio.wait([getter, *pending], return_when=asyncio.FIRST_COMPLETED)
            return getter.result()
        finally:
            getter.cancel()
