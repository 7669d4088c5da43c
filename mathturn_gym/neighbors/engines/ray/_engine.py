"""`RayEngine`: a collection's episodes from actors that may come, go and die.

    Collection.take ◄─ episodes ◄─ object store ◄─ RolloutActor.play(share) ◄─ WorkQueue
                                                       └─► PolicyActor.acomplete, or a policy of its own

One thread of the driver hands out shares and takes what comes back, so playing goes on while the caller trains. What a
dead actor had is handed out again; episodes are known by (seed, index), and each is counted once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeAlias

import ray

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.episodes.rollout import EpisodePlan
from mathturn_gym.errors import EngineError, InvalidValueError, MathTurnError, RunError, check_int
from mathturn_gym.neighbors.engines._wire import PackedEpisodes, PackedWeights
from mathturn_gym.neighbors.engines._work_queue import Share, WorkQueue
from mathturn_gym.neighbors.engines._workers import Job, PolicyActor, RolloutActor, WorkerSettings
from mathturn_gym.neighbors.engines.ray._cluster import GONE, Placement, check_nodes, connected, object_store_bytes
from mathturn_gym.neighbors.engines.ray_settings import RaySettings
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.problems import ProblemSource
from mathturn_gym.types import Episode

_AHEAD: Final = 1
"""Shares that an actor has besides those that it plays: the next is there when one ends."""


_What: TypeAlias = Literal["started", "weights", "ended", "played", "other"]


@dataclass(eq=False)
class _Worker:
    """An actor as the driver sees it; `version` is that of the weights that it is known to have."""

    kind: Literal["rollout", "policy"]
    handle: Any
    version: int = 0
    ready: bool = False
    concurrent: bool = False
    retiring: bool = False
    shares: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Event:
    """Something that a worker was asked has ended."""

    worker: _Worker
    what: _What
    future: Future[Any]
    collection: Collection | None = None
    share: Share | None = None


class Collection:
    """Episodes that an engine is playing; `RayEngine.begin` makes it.

    Args:
        engine: The engine.
        name: Unlike any other's of the engine.
        job: Where the workers find what its episodes are.
        work_queue: What is played, and by whom.
        limit: See `allow`.

    Attributes:
        curriculum: History that a curriculum chooses problems by, from now on.
        bytes: What came through the object store.
        worker_seconds: Time that workers spent on the episodes that came.
        version: Of the weights that a worker must have to begin an episode.
    """

    def __init__(self, engine: RayEngine, name: int, job: Any, work_queue: WorkQueue, limit: int | None) -> None:
        self.name, self.job, self.work_queue, self.limit = name, job, work_queue, limit
        self.version = engine.version
        self.curriculum: Mapping[str, Any] | None = None
        self.bytes, self.worker_seconds = 0, 0.0
        self.error: BaseException | None = None
        self._engine = engine
        self.arrived: dict[int, Episode] = {}

    def allow(self, limit: int | None) -> None:
        """Lets episodes below an index begin, with the newest weights or newer ones.

        Args:
            limit: The index; None for all.
        """
        with self._engine.changed:
            self.limit, self.version = limit, self._engine.version
            self._engine.hand_out()

    def take(self, indices: Iterable[int]) -> list[Episode]:
        """Waits for episodes, and returns them in this order; each can be taken once.

        Args:
            indices: Of episodes that may begin (see `allow`).

        Raises:
            RunError: as for `collect`; workers that die again and again are an `EngineError`.
        """
        wanted = list(indices)
        with self._engine.changed:
            while any(index not in self.arrived for index in wanted):
                self._raise_error()
                self._engine.changed.wait()
            return [self.arrived.pop(index) for index in wanted]

    def __iter__(self) -> Iterator[Episode]:
        """All episodes, in the order in which they come."""
        while True:
            with self._engine.changed:
                while not self.arrived and not self.work_queue.complete:
                    self._raise_error()
                    self._engine.changed.wait()
                come = list(self.arrived.values())
                self.arrived.clear()
            yield from come
            if not come:
                return

    def close(self) -> None:
        """No more of its episodes are begun, and what still comes is not looked at."""
        self._engine.end(self)

    def _raise_error(self) -> None:
        error = self.error or self._engine.error
        if error is not None:
            raise error


class RayEngine:
    """Rollout actors and policy actors on Ray; use it as a context manager, or close it.

    Args:
        env: Environment and splits. It travels to the workers: functions in it are pickled, problems as well.
        policy: What each holder of a model loads. Folders must be where the workers are.
        settings: How many workers, of what, and where.
        threads: CPU threads of torch in each worker.
        precision: "float32", or "bfloat16" for autocast around sampling.

    Raises:
        EngineError: Ray, a node, or the cluster's room will not do; see `docs/engines.md`.
        MathTurnError: policy or environment cannot be made in a worker; the message is the worker's.

    Attributes:
        deaths: Workers that died, and were replaced.
    """

    def __init__(
        self,
        env: EnvConfig,
        policy: PolicyConfig,
        settings: RaySettings | None = None,
        *,
        threads: int = 1,
        precision: str = "float32",
    ) -> None:
        from mathturn_gym.neighbors.engines.ray._cluster import FACTS

        self.settings = settings or RaySettings()
        self.changed = threading.Condition(threading.RLock())
        self.error: BaseException | None = None
        self.deaths = 0
        shares = max(1, self.settings.num_envs // self.settings.share)
        self._env = env
        self.settings.check_devices(policy.device)
        self._worker_settings = WorkerSettings(env, _with_paths(policy), threads, precision, shares)
        self._workers: list[_Worker] = []
        self._collections: dict[int, Collection] = {}
        self._names = itertools.count()
        self._weights: tuple[Any, int] = (None, 0)
        self._wanted, self._deaths_in_a_row, self._closed = self.settings.rollout_actors, 0, False
        self._events: SimpleQueue[_Event | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ray-engine", daemon=True)
        with ExitStack() as opened:
            opened.enter_context(connected(self.settings))
            check_nodes(FACTS, self.settings.start_timeout)
            self._placement = Placement(self.settings)
            opened.callback(self._placement.release)
            self._shared = ray.put(self._worker_settings)
            self._thread.start()
            opened.callback(self._stop)
            self._start_workers()
            self._opened = opened.pop_all()

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers, and Ray where the engine started it."""
        self._opened.close()

    # ---- collections

    def collect(
        self,
        episodes: int,
        *,
        seed: int = 0,
        first_index: int = 0,
        group_size: int = 1,
        discount: float = 1.0,
        problem_ids: Sequence[str] | None = None,
        split: str = "train",
        on_episode: Callable[[Episode], None] | None = None,
        **keywords: Any,
    ) -> list[Episode]:
        """`mathturn_gym.collect` on the cluster: the same episodes.

        Args:
            episodes: How many to play.
            seed: See `collect`.
            first_index: See `collect`.
            group_size: See `collect`.
            discount: See `collect`.
            problem_ids: See `collect`.
            split: Which of the config's problems are played.
            on_episode: See `collect`.
            **keywords: Of the environment, besides the config's own.

        Returns:
            The episodes in order of their index.

        Raises:
            RunError: as for `collect`; workers that die again and again are an `EngineError`.
        """
        total = check_int("episodes", episodes, low=0)
        done: dict[int, Episode] = {}
        collection = self.begin(
            self._env.problems(split),
            total,
            seed=seed,
            first_index=first_index,
            group_size=group_size,
            discount=discount,
            problem_ids=problem_ids,
            **keywords,
        )
        try:
            for episode in collection:
                done[episode.index] = episode
                if on_episode is not None:
                    on_episode(episode)
        except RunError as error:
            error.finished = tuple(done[index] for index in sorted(done))
            raise
        finally:
            collection.close()
        return [done[index] for index in sorted(done)]

    def begin(
        self,
        problems: ProblemSource,
        total: int | None = None,
        *,
        seed: int = 0,
        first_index: int = 0,
        group_size: int = 1,
        discount: float = 1.0,
        problem_ids: Sequence[str] | None = None,
        done: Iterable[int] = (),
        limit: int | None = None,
        **keywords: Any,
    ) -> Collection:
        """Begins to play episodes, and returns at once.

        Args:
            problems: What is played; it travels to the workers.
            total: How many episodes; None for no end.
            seed: See `collect`.
            first_index: See `collect`.
            group_size: See `collect`.
            discount: See `collect`.
            problem_ids: See `collect`.
            done: Indices that need not be played.
            limit: See `Collection.allow`.
            **keywords: Of the environment, besides the config's own.
        """
        EpisodePlan(seed, group_size, problem_ids, discount)  # checks them here, not in every worker
        first = check_int("first_index", first_index, low=0)
        size = -(-self.settings.share // group_size) * group_size
        name = next(self._names)
        job = ray.put(Job(name, problems, seed, group_size, discount, problem_ids, keywords))
        collection = Collection(self, name, job, WorkQueue(first, total, size=size, done=done), limit)
        with self.changed:
            if self._closed:
                raise InvalidValueError("begin() after close(): make another RayEngine")
            self._collections[name] = collection
            self.hand_out()
        return collection

    def end(self, collection: Collection) -> None:
        """See `Collection.close`."""
        with self.changed:
            self._collections.pop(collection.name, None)
            for worker in self._of("rollout"):
                worker.handle.forget.remote(collection.name)

    # ---- workers

    @property
    def rollout_actors(self) -> int:
        """Rollout actors that are wanted; some may be on their way."""
        return self._wanted

    @property
    def version(self) -> int:
        """Version of the newest weights that were broadcast."""
        return self._weights[1]

    @property
    def versions(self) -> list[int]:
        """Version of the weights of each holder of a model, asked now."""
        weights, version = self._weights
        asked = [worker.handle.update_weights.remote(weights, version) for worker in self._holders()]
        return list(map(int, ray.get(asked)))

    def scale(self, rollout_actors: int) -> None:
        """Changes the number of rollout actors while they play. Those that leave finish what they have first.

        Args:
            rollout_actors: 1 at least.
        """
        with self.changed:
            self._wanted = check_int("rollout_actors", rollout_actors, low=1)
            self._adjust()
            self.hand_out()

    def update_weights(self, weights: Mapping[str, Any], *, version: int, wait: bool = True) -> None:
        """Broadcasts weights: into the object store once, and from there to every holder of a model.

        Args:
            weights: A state dict, or a LoRA adapter's.
            version: Above the last one.
            wait: Return when all have them. Without, requests that are under way take them when they come.

        Raises:
            InvalidValueError: they are too large for a node's object store.
            CheckpointError: they do not fit the workers' model.
        """
        self.check_room(weights)
        ref = ray.put(PackedWeights.of(weights))
        with self.changed:
            self._weights = (ref, version)  # actors that start from now on begin with them
            sent = [(worker, worker.handle.update_weights.remote(ref, version)) for worker in self._holders()]
            for worker, asked in sent if not wait else ():
                self._watch(worker, "weights", asked)
        for worker, asked in sent if wait else ():
            try:
                worker.version = ray.get(asked)
            except GONE:
                continue  # who takes its place begins with them
            except ray.exceptions.RayTaskError as error:
                raise _cause(error) from None

    def check_room(self, weights: Mapping[str, Any]) -> None:
        """Raises `InvalidValueError` where weights are too large to be broadcast: two versions are there at a time.

        Args:
            weights: Tensors by name.
        """
        size, room = sum(one.numel() * one.element_size() for one in weights.values()), object_store_bytes()
        if room and 2 * size > room:
            raise InvalidValueError(
                f"weights of {size / 1e9:.3g} GB do not fit twice into the object store of a node, {room / 1e9:.3g} GB:"
                " ray start --object-store-memory=BYTES gives it more"
            )

    def _of(self, kind: str) -> list[_Worker]:
        return [worker for worker in self._workers if worker.kind == kind]

    def _holders(self) -> list[_Worker]:
        return [worker for worker in self._of(self._holding) if worker.ready]

    @property
    def _holding(self) -> str:
        """The kind of worker that holds a model."""
        return "policy" if self.settings.policy_actors else "rollout"

    def _start_workers(self) -> None:
        """All that were asked for, ready, or the error that one of them has."""
        with self.changed:
            for _ in range(self.settings.policy_actors):
                self._make("policy")
            self._wait_ready("policy")
            self._adjust()
            self._wait_ready("rollout")

    def _wait_ready(self, kind: str) -> None:
        def ready() -> bool:
            return self.error is not None or all(worker.ready for worker in self._of(kind))

        in_time = self.changed.wait_for(ready, self.settings.start_timeout)
        if self.error is not None:
            raise self.error
        if not in_time:
            missing = sum(not worker.ready for worker in self._of(kind))
            raise EngineError(
                f"{missing} of {len(self._of(kind))} {kind} actors did not start within"
                f" {self.settings.start_timeout:g} s (start_timeout): is there room, and how long does the model load?"
            )

    def _make(self, kind: Literal["rollout", "policy"]) -> None:
        """Makes an actor and has it load what it needs; it is ready when that has ended."""
        beyond = kind == "rollout" and len(self._of(kind)) >= self.settings.rollout_actors
        actor = RolloutActor if kind == "rollout" else PolicyActor
        options = self._placement.options(kind, beyond=beyond)
        # Many calls run at once in an actor's event loop; how many, `_room` decides.
        handle = ray.remote(actor).options(max_concurrency=10_000, max_restarts=0, **options).remote(self._shared)
        worker = _Worker(kind, handle)
        self._workers.append(worker)
        self._watch(worker, "ended", handle.ended.remote())
        policies = self._policies() if kind == "rollout" else []
        weights, version = self._weights
        if policies:
            tokenizer = next(one.facts["tokenizer"] for one in self._of("policy") if one.ready)
            started = handle.start.remote(None, 0, policies, GONE, tokenizer)
        else:
            started, worker.version = handle.start.remote(weights, version), version
        self._watch(worker, "started", started)

    def _policies(self) -> list[Any]:
        return [worker.handle for worker in self._of("policy") if worker.ready]

    def _adjust(self) -> None:
        """As many rollout actors as are wanted, the oldest being kept; policy actors as at the start."""
        staying = [worker for worker in self._of("rollout") if not worker.retiring]
        # A rollout actor begins with the policy actors that are there: one at least.
        can_begin = bool(self._policies()) or not self.settings.policy_actors
        for _ in range(self._wanted - len(staying) if can_begin else 0):
            self._make("rollout")
        for worker in staying[self._wanted :]:
            worker.retiring = True
            self._retire_if_idle(worker)
        for _ in range(self.settings.policy_actors - len(self._of("policy"))):
            self._make("policy")

    def _retire_if_idle(self, worker: _Worker) -> None:
        if worker.retiring and worker.shares == 0 and worker in self._workers:
            self._workers.remove(worker)
            ray.kill(worker.handle)

    # ---- handing out and taking

    def hand_out(self) -> None:
        """Gives every worker with room a share, the least busy first. Call it with `changed` held."""
        while any(map(self._hand_to, sorted(self._free(), key=lambda one: one.shares))):
            pass

    def _free(self) -> list[_Worker]:
        return [one for one in self._of("rollout") if one.ready and not one.retiring and one.shares < self._room(one)]

    def _hand_to(self, worker: _Worker) -> bool:
        """Gives a worker a share of the first collection that has one for it now."""
        for collection in self._collections.values():
            # Weights that are still on their way would make episodes staler than `allow` has said.
            asked = self._holders() if self.settings.policy_actors else [worker]
            if any(one.version < collection.version for one in asked):
                continue
            share = collection.work_queue.hand_out(worker, limit=collection.limit)
            if share is not None:
                worker.shares += 1
                ref = worker.handle.play.remote(collection.name, [collection.job], share, collection.curriculum)
                self._watch(worker, "played", ref, collection, share)
                return True
        return False

    def _room(self, worker: _Worker) -> int:
        return (self._worker_settings.shares if worker.concurrent else 1) + _AHEAD

    def _watch(
        self,
        worker: _Worker,
        what: _What,
        ref: Any,
        collection: Collection | None = None,
        share: Share | None = None,
    ) -> None:
        future: Future[Any] = ref.future()
        event = _Event(worker, what, future, collection, share)
        future.add_done_callback(lambda _: self._events.put(event))

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            with self.changed:
                if self._closed:
                    continue
                try:
                    self._take(event)
                    self._adjust()
                    self.hand_out()
                except BaseException as error:  # the callers must not wait for a thread that is gone
                    self.error = error
                self.changed.notify_all()

    def _take(self, event: _Event) -> None:
        error = event.future.exception()
        worker, collection, share = event.worker, event.collection, event.share
        if isinstance(error, GONE):
            # A share may be lost while its actor lives (its result was on a node that is gone): the actor goes too,
            # so that there is one way to lose work.
            self._lose(worker, error)
        elif error is not None and collection is None:
            self.error = _cause(error)
        elif event.what == "started":
            worker.facts = event.future.result()
            worker.concurrent = bool(worker.facts.get("concurrent"))
            self._welcome(worker)
        elif event.what == "weights":
            worker.version = max(worker.version, event.future.result())
            if not worker.ready:
                self._welcome(worker)
        elif collection is not None and share is not None:
            worker.shares -= 1
            if error is not None:
                collection.error = _cause(error)
            else:
                self._deliver(collection, worker, share, event.future.result())
            self._retire_if_idle(worker)

    def _welcome(self, worker: _Worker) -> None:
        """A worker that has started is ready, unless there have been newer weights since it began to load."""
        weights, version = self._weights
        if worker.kind == self._holding and worker.version < version:
            self._watch(worker, "weights", worker.handle.update_weights.remote(weights, version))
            return
        worker.ready = True
        if worker.kind == "policy":
            for other in self._of("rollout"):
                self._watch(other, "other", other.handle.use_policies.remote(self._policies()))

    def _deliver(self, collection: Collection, worker: _Worker, share: Share, packed: PackedEpisodes) -> None:
        self._deaths_in_a_row = 0
        collection.bytes += packed.nbytes
        collection.worker_seconds += packed.seconds
        for episode in collection.work_queue.take(worker, share, packed.episodes()):
            collection.arrived[episode.index] = episode

    def _lose(self, worker: _Worker, error: BaseException) -> None:
        """A worker is gone: what it had is played again, and another one takes its place."""
        if worker not in self._workers:
            return  # every call that it had reports the same death
        self._workers.remove(worker)
        ray.kill(worker.handle)
        for collection in self._collections.values():
            collection.work_queue.lost(worker)
        if worker.retiring:
            return
        self.deaths += 1
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > self.settings.max_deaths:
            raise EngineError(
                f"{self._deaths_in_a_row} workers died without finishing anything in between; the last one: {error}"
            ) from error

    def kill(self, worker: int) -> None:
        """Kills a rollout actor that plays, as a lost node would: for tests of what must then happen.

        Args:
            worker: Its place among those that are there, taken modulo their number.
        """
        with self.changed:
            alive = [one for one in self._of("rollout") if one.ready]
            if alive:
                ray.kill(alive[worker % len(alive)].handle)

    def _stop(self) -> None:
        with self.changed:
            self._closed = True
            for worker in self._workers:
                ray.kill(worker.handle)
            self._workers.clear()
        self._events.put(None)
        self._thread.join()


def _with_paths(policy: PolicyConfig) -> PolicyConfig:
    """The policy with its folders by their whole paths: workers have working folders of their own."""
    places = {name: getattr(policy, name) for name in ("model", "adapter", "tokenizer")}
    there: dict[str, Any] = {
        name: str(Path(one).resolve()) for name, one in places.items() if one and Path(one).exists()
    }
    return replace(policy, **there)


def _cause(error: BaseException) -> BaseException:
    """What a worker raised, where it is an error of this package; Ray wraps it into a class of its own."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, MathTurnError) else error
