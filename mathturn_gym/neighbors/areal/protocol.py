"""What agents, environments and policies say to each other, in the original's words."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.types import Completion, Ids

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, timeout: float | None = None) -> T:
    """Calls a blocking function in a daemon thread of its own.

    `asyncio.to_thread` shares a handful of threads, so that a few calls that hang would stop everybody's, and waits
    for them when the loop ends. Here a call that never returns costs one sleeping thread.

    Raises:
        TimeoutError: it took longer than `timeout` seconds; the thread itself cannot be stopped.
        Exception: whatever the function raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if done.done():  # cancelled, or too late
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result: T | None = None
        failure: Exception | None = None
        try:
            result = function(*args)
        except StopIteration as error:  # a future does not take one
            failure = RuntimeError(f"{function!r} raised {error!r}")
        except Exception as error:
            failure = error
        except BaseException as error:  # SystemExit and the like: they must not end the loop of everybody else
            failure = RuntimeError(f"{function!r} raised {error!r}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    # Daemon: a verifier that hangs must not keep the process from ending.
    threading.Thread(target=run, name=f"mathturn-{getattr(function, '__name__', 'call')}", daemon=True).start()
    async with asyncio.timeout(timeout):
        return await done


# ---- messages


Observation: TypeAlias = "tuple[str, list[int], Any]"
"""What an agent puts into its `obs_queue`: query id, all ids so far, generation settings with `n=1`."""


class ReplyError(InvalidValueError):
    """A policy's reply does not fit the observation it answers (`compat=False`)."""


class Queue(Protocol):
    """What an agent needs of its queues; `asyncio.Queue` has it."""

    async def put(self, item: Any) -> None:
        """Adds an item, waiting for room."""
        ...

    async def get(self) -> Any:
        """Takes an item, waiting for one."""
        ...


class Agent(Protocol):
    """One trajectory from one prompt."""

    async def collect_trajectory(
        self, prompt: Any, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[Any]:
        """Plays an episode; returns `SequenceSample`s."""
        ...


class EnvironmentService(ABC):
    """The original's asynchronous, stateless environment: it judges answers."""

    async def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[None, dict[str, Any]]:
        """Does nothing: there is no state."""
        return None, {}

    @abstractmethod
    async def step(self, action: tuple[str, list[str]]) -> tuple[None, list[float], bool, bool, dict[str, Any]]:
        """Judges the answers to one query.

        Args:
            action: The query id, and G answers.

        Returns:
            None, G scores in [0, 1] (1 is right), True, False, and an info.
        """


@dataclass(frozen=True)
class GenerationHyperparameters:
    """Settings of a generation request, with the original's names and defaults.

    Args:
        n: Completions per prompt; the agent asks for 1.
        max_new_tokens: The most ids of a completion.
        min_new_tokens: The fewest.
        greedy: Take the most likely id. A temperature of 0 sets it, and the temperature to 1, as the original does.
        top_p: In (0, 1].
        top_k: At least 1.
        temperature: At least 0.
        use_cuda_graph: Kept because it travels in observations; nothing here looks at it.
        force_cudagraph_recapture: The same.
        force_no_logits_mask: The same.

    Raises:
        InvalidValueError: a value outside what is allowed.

    >>> GenerationHyperparameters(n=4, temperature=0.0).new(n=1).greedy
    True
    """

    n: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 100_000_000
    temperature: float = 1.0
    use_cuda_graph: bool = True
    force_cudagraph_recapture: bool = True
    force_no_logits_mask: bool = True

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name, low in (("n", 1), ("max_new_tokens", 0), ("min_new_tokens", 0), ("top_k", 1)):
            check_int(f"gconfig.{name}", getattr(self, name), low=low)
        if not 0.0 < check_float("gconfig.top_p", self.top_p) <= 1.0:
            raise InvalidValueError(f"gconfig.top_p must be in (0, 1], got {self.top_p!r}")
        if check_float("gconfig.temperature", self.temperature, low=0.0) == 0.0:
            # Temperature 0 is greedy decoding; servers divide by the temperature, so it must not stay 0.
            object.__setattr__(self, "greedy", True)
            object.__setattr__(self, "temperature", 1.0)

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """The same settings with some changed."""
        return GenerationHyperparameters(**{**asdict(self), **changes})


@dataclass(frozen=True)
class BundledGenerationOutputs:
    """A policy's reply: G completions of one prompt.

    Args:
        qid: The query id.
        prompt_ids: Ids of the prompt.
        seqs: G lists of ids, prompt and completion.
        logprobs: G lists, one entry shorter than the sequence: log-prob of each id but the first, 0 in the prompt.
        no_eos: G flags: the completion was cut off.
        version_start: G versions of the weights, at the first id of the completion.
        version_end: The same at its last id.

    >>> reply = BundledGenerationOutputs("q", [5, 6], [[5, 6, 7]], [[0.0, -0.5]], [False], [3], [3])
    >>> reply.prompt_len, reply.seqlens, reply.output_ids, reply.output_logprobs
    (2, [3], [[7]], [[-0.5]])
    """

    qid: Hashable
    prompt_ids: list[int]
    seqs: list[list[int]]
    logprobs: list[list[float]]
    no_eos: list[bool]
    version_start: list[int]
    version_end: list[int]

    @property
    def prompt_len(self) -> int:
        """Ids of the prompt."""
        return len(self.prompt_ids)

    @property
    def seqlens(self) -> list[int]:
        """Ids of each sequence."""
        return [len(seq) for seq in self.seqs]

    @property
    def output_ids(self) -> list[list[int]]:
        """The completions alone."""
        return [seq[self.prompt_len :] for seq in self.seqs]

    @property
    def output_logprobs(self) -> list[list[float]]:
        """The completions' log-probs alone."""
        return [logprobs[self.prompt_len - 1 :] for logprobs in self.logprobs]

    @classmethod
    def from_completion(
        cls, qid: Hashable, prompt_ids: Sequence[int] | Ids, completion: Completion
    ) -> BundledGenerationOutputs:
        """The reply for one completion of a policy of this package.

        Args:
            qid: The query id.
            prompt_ids: L ids, at least one.
            completion: Its ids, log-probs and versions.

        Raises:
            InvalidValueError: there is no prompt: the format has no place for the first completion id's log-prob.
        """
        context = [int(i) for i in prompt_ids]
        if not context:
            raise InvalidValueError(f"prompt_ids of query {qid!r} must hold at least one id, got none")
        assert completion.logprobs is not None
        assert completion.version_end is not None
        return cls(
            qid=qid,
            prompt_ids=context,
            seqs=[context + completion.ids.tolist()],
            logprobs=[[0.0] * (len(context) - 1) + completion.logprobs.tolist()],
            no_eos=[completion.truncated],
            version_start=[completion.version_start],
            version_end=[completion.version_end],
        )


@dataclass(frozen=True)
class MicroBatchSpec:
    """How `SequenceSample.split` divides: the fewest parts, and the most tokens of each (in the key that has most)."""

    n_mbs: int = 1
    max_tokens_per_mb: int = 10**12


# ---- registries

Factory: TypeAlias = "Callable[..., Any]"


def _built_in(module: str, name: str) -> Factory:
    """A factory of this package; its module, and torch with it, is loaded by the first call."""
    return lambda **arguments: getattr(import_module(f"mathturn_gym.neighbors.areal.{module}"), name)(**arguments)


_AGENTS: Final[dict[str, Factory]] = {"math-multi-turn": _built_in("agent", "MathMultiTurnAgent")}
_ENVS: Final[dict[str, Factory]] = {"math-code-single-step": _built_in("environment", "MathCodeSingleStepEnv")}


def register_agent(name: str, factory: Factory) -> None:
    """Makes `make_agent(name, …)` call `factory(…)`.

    Raises:
        InvalidValueError: the name is taken.
    """
    _register("agent", name, factory, _AGENTS)


def register_environment(name: str, factory: Factory) -> None:
    """Makes `make_env(name, …)` call `factory(…)`.

    Raises:
        InvalidValueError: the name is taken, or has a "/" in it.
    """
    _register("environment", name, factory, _ENVS)


def make_agent(config: Any, **kwargs: Any) -> Any:
    """An agent by name, `make_agent("math-multi-turn", gconfig=…)`, or by an object with `type_` and `args`.

    Raises:
        InvalidValueError: unknown name (the nearest is suggested).
    """
    return _make("agent", config, kwargs, _AGENTS)


def make_env(config: Any, **kwargs: Any) -> Any:
    """An environment by name, `make_env("math-code-single-step", dataset_path=…)`, or by `type_` and `args`.

    Raises:
        InvalidValueError: unknown name (the nearest is suggested).
    """
    return _make("environment", config, kwargs, _ENVS)


def _register(kind: str, name: str, factory: Factory, table: dict[str, Factory]) -> None:
    if not isinstance(name, str) or not name or "/" in name:
        raise InvalidValueError(f"{kind} name must be a text without '/', got {name!r}")
    if name in table:
        raise InvalidValueError(f"{kind} name {name!r} is taken; choose another")
    if not callable(factory):
        raise InvalidValueError(f"{kind} {name!r} must be a class or a callable, got {factory!r}")
    table[name] = factory


def _make(kind: str, config: Any, kwargs: Mapping[str, Any], table: Mapping[str, Factory]) -> Any:
    name: Any = config if isinstance(config, str) else getattr(config, "type_", None)
    arguments = {**({} if isinstance(config, str) else getattr(config, "args", {})), **kwargs}
    if name not in table:
        raise_unknown_name(kind, name, list(table))
    return table[name](**arguments)
