"""The environment in OpenEnv's terms: one object per session, and its tasks."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final, TypeVar

import numpy as np

from mathturn_gym.base import VERSION
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.config import EnvConfig, env_parameters
from mathturn_gym.env.dialogue import completion_ids
from mathturn_gym.errors import (
    InvalidValueError,
    MathTurnError,
    MissingDependencyError,
    check_int,
    install_extra,
    raise_unknown_name,
    shown,
)
from mathturn_gym.neighbors.serve._protocol import PROTOCOL_VERSION, check_send_tokens, fingerprint, info_to_record
from mathturn_gym.neighbors.serve.limits import Limits, Metrics
from mathturn_gym.problems import ProblemSource, load_problems
from mathturn_gym.problems.base import SPLITS
from mathturn_gym.types import Ids, Problem

try:
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
    from pydantic import BeforeValidator, Field
except ImportError as error:  # pragma: no cover - in an environment of its own
    raise MissingDependencyError(f"the server needs OpenEnv: {install_extra('serve')}") from error


_LOG = logging.getLogger(__name__)
_RESET_OPTIONS: Final = ("split", "index", "problem_id", "family", "level", "episode", "send_tokens")
_TASK_SEED: Final = 0
_ENDLESS_TASKS: Final = 1000

T = TypeVar("T")
# A model that answers `42` has written JSON to those who send an action as JSON: any value counts as its text.
_Text = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else json.dumps(value))]
_Id = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class MathAction(Action):
    """One completion.

    Attributes:
        text: The completion as text; the server gives it its tokenizer's ids and closes the turn.
        tokens: Its token ids as they were sampled; where they are given they are played, and `text` is not read.
    """

    text: _Text
    # The first bad id ends the check: a message full of them must not be answered by as many errors.
    tokens: Annotated[list[_Id], Field(fail_fast=True)] | None = None


class MathObservation(Observation):
    """What a reset or step gave.

    Attributes:
        text: What the environment says now: the problem, then the feedback.
        tokens: Token ids of the context from position `start` on: the new ones, or what `send_tokens` asked for.
        start: See `tokens`.
        truncated: The context budget is used up (`done` is then true as well).
        info: The environment's info.
    """

    text: str
    tokens: list[int]
    start: int
    truncated: bool
    info: dict[str, Any]


class MathState(State):
    """Where a session is.

    Attributes:
        problem_id: The problem's id, None before the first reset.
        turns_left: Turns that may still be played.
    """

    problem_id: str | None = None
    turns_left: int = 0


class RefusedError(Exception):
    """A mistake of the client's, as the text that is sent to it: the error's class and its message."""


class Service:
    """What all sessions of a server share: the settings, problems, verifier and threads.

    Args:
        config: The environment.
        limits: Of the server.

    Raises:
        InvalidValueError: a value outside what is allowed.
    """

    def __init__(self, config: EnvConfig, limits: Limits) -> None:
        if config.value("render_mode") is not None:
            raise InvalidValueError(f"render_mode is the client's to choose, a server has none, got {config!r}")
        self.config, self.limits, self.metrics = config, limits, Metrics()
        how: Any = {name: getattr(config, name) for name in ("fields", "skip_bad_rows", "shuffle")}
        first: Any = config.make(problems=load_problems(config.value("problems"), **how)).unwrapped
        limits.check_action_fits(first.max_completion_tokens)
        # What the first has loaded serves all of them.
        shared = {"dialogue": first.dialogue, "verifier": first.verifier}
        loaded = ("tokenizer", "system_prompt", "problems")
        kept = {name: value for name, value in config.keywords.items() if name not in loaded}
        self._shared = EnvConfig(config.id, **kept).replace(**shared)
        self._sources: dict[str | None, ProblemSource] = {None: first.source}
        self._choosing = threading.Lock()
        self.threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="mathturn-serve")
        self.about = self._about(first)

    def environment(self, split: str | None) -> MathMultiTurnEnv:
        """A new environment; one split of the problems, or None for what the server was started with."""
        with self._choosing:
            env: Any = self._shared.make(problems=self._source(split)).unwrapped
            return env

    def reset(self, env: MathMultiTurnEnv, seed: int | None, options: dict[str, Any]) -> tuple[Ids, dict[str, Any]]:
        """Resets one of the environments: they share their problems, which remember what was drawn last."""
        with self._choosing:
            return env.reset(seed=seed, options=options)

    def splits(self) -> list[str]:
        """The splits that the problems have."""
        return [split for split in SPLITS if self._has(split)]

    def num_tasks(self, split: str) -> int:
        """Number of tasks of a split: its problems, or as many as are offered where a generator makes them."""
        with self._choosing:
            size = self._source(split).size
        return _ENDLESS_TASKS if size is None else size

    def task(self, split: str, index: int) -> Problem:
        """Task `index` of a split.

        Raises:
            IndexError: there is none.
        """
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(f"split {split!r} has {self.num_tasks(split)} tasks, got index {index}")
        with self._choosing:
            return self._source(split).get(_TASK_SEED, index)

    def _has(self, split: str) -> bool:
        try:
            with self._choosing:
                self._source(split)
        except MathTurnError:
            return False
        return True

    def _source(self, split: str | None) -> ProblemSource:
        if split not in self._sources:
            if split not in SPLITS:
                raise_unknown_name("split", split, SPLITS)
            self._sources[split] = self.config.problems(split)
        return self._sources[split]

    def _about(self, env: MathMultiTurnEnv) -> dict[str, Any]:
        """What `GET /info` tells."""
        config = self.config
        given = {name: config.value(name) for name in env_parameters(config.id)}
        # What is no plain value (a function, a list of problems) stays untold: a client cannot ask for it either.
        settings = {name: value for name, value in given.items() if isinstance(value, (str, int, float, bool))}
        settings["max_context_tokens"] = env.max_context_tokens
        tokenizer = given["tokenizer"]
        return {
            "mathturn_protocol": PROTOCOL_VERSION,
            "version": VERSION,
            "env_id": config.id,
            "settings": {**settings, "system_prompt": env.dialogue.system_prompt},
            "problems": env.source.name,
            "tokenizer": {
                "name": tokenizer if isinstance(tokenizer, str) else tokenizer.name_or_path,
                "fingerprint": fingerprint(env.dialogue),
                "vocab_size": env.dialogue.vocab_size,
            },
            "observation_length": env.observation_space.max_length,
            "max_sessions": self.limits.max_sessions,
            "session_timeout": self.limits.session_timeout,
        }


class MathTurnEnvironment(Environment[MathAction, MathObservation, MathState]):
    """One session.

    Args:
        service: What it shares with the others.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._envs: dict[str | None, MathMultiTurnEnv] = {}
        self._env: MathMultiTurnEnv | None = None
        self._info: dict[str, Any] = {}
        self._send_tokens = "new"
        self._episode_id: str | None = None

    # ---- OpenEnv

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> MathObservation:
        """Begins an episode.

        Args:
            seed: Of the stream of problems, as in the environment's `reset`.
            episode_id: A name for `state`; None makes one.
            **options: `index`, `problem_id`, `family`, `level` and `episode` as in the environment's `reset`; `split` plays that
                split of the problems, and with an `index` and no seed its task of that number; `send_tokens` says which ids
                observations carry: "all" of the context, the "new" ones (the default), or "none" (for a client that shows
                observations to a model as they are). It stays as it was chosen.
        """
        for name, value in options.items():
            if name not in _RESET_OPTIONS:
                raise_unknown_name("reset option", name, ("seed", "episode_id", *_RESET_OPTIONS))
            if isinstance(value, list | dict):
                raise InvalidValueError(f"{name} must be a text or a number, got {shown(value)}")
        options = {name: value for name, value in options.items() if value is not None}
        self._send_tokens = check_send_tokens(options.pop("send_tokens", self._send_tokens))
        seed = None if seed is None else check_int("seed", seed, low=0)
        split = options.pop("split", None)
        if split is not None and seed is None and "index" in options:
            index = check_int("index", options["index"], low=0)
            if index >= self._service.num_tasks(split):
                raise InvalidValueError(f"index must be in [0, {self._service.num_tasks(split) - 1}], got {index}")
            seed = _TASK_SEED
        if split not in self._envs:
            self._envs[split] = self._service.environment(split)
        self._env = self._envs[split]
        observation, info = self._service.reset(self._env, seed, options)
        self._episode_id = episode_id or uuid.uuid4().hex
        return self._observation(observation, 0.0, False, False, info, self._env.problem.prompt)

    def step(self, action: MathAction, timeout_s: float | None = None, **_: Any) -> MathObservation:
        """Plays one turn.

        Args:
            action: The completion.
            timeout_s: Not used: the verifier has a limit of its own.
        """
        env = self._env
        if env is None:
            raise InvalidValueError("step before reset: reset to begin an episode")
        if action.tokens is None:
            ids = completion_ids(env.dialogue, action.text, env.max_completion_tokens)
        else:
            ids = np.array(action.tokens, np.int64)
        observation, reward, terminated, truncated, info = env.step(ids)
        self._service.metrics.count_turn(len(ids), info)
        return self._observation(observation, reward, terminated, truncated, info, info["feedback"])

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> MathObservation:
        """`reset` in a thread of the server's, its errors as texts for the client."""
        return await self._in_thread(lambda: self.reset(seed, episode_id, **options))

    async def step_async(self, action: MathAction, timeout_s: float | None = None, **_: Any) -> MathObservation:
        """`step` in a thread of the server's, its errors as texts for the client."""
        return await self._in_thread(lambda: self.step(action))

    @property
    def state(self) -> MathState:
        """Where the session is."""
        return MathState(
            episode_id=self._episode_id,
            step_count=self._info.get("turn", 0),
            problem_id=self._info.get("problem_id"),
            turns_left=self._info.get("turns_left", 0),
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, description and version."""
        about = self._service.about
        return EnvironmentMetadata(
            name=about["env_id"],
            description=f"Multi-turn mathematics: {about['problems']}, at most {about['settings']['num_turns']} turns",
            version=about["version"],
            documentation_url="https://github.com/mathturn/mathturn_gym",
        )

    def close(self) -> None:
        """Closes the session's environments."""
        for env in self._envs.values():
            env.close()

    # ---- OpenEnv's task provider

    def list_splits(self) -> list[str]:
        """The splits that the problems have."""
        return self._service.splits()

    def num_tasks(self, split: str) -> int:
        """Number of tasks of a split."""
        return self._service.num_tasks(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Task `index` of a split; `reset(split=…, index=…)` plays it. The accepted answers are not told."""
        problem = self._service.task(split, index)
        return {
            "id": problem.id,
            "split": split,
            "index": index,
            "prompt": problem.prompt,
            "metadata": dict(problem.metadata),
        }

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """The tasks `range(num_tasks(split))[start:stop]`, at most 1,000 of them."""
        numbers = range(self.num_tasks(split))[start:stop]
        return [self.get_task(split, index) for index in numbers[:_ENDLESS_TASKS]]

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """The first 1,000 tasks of a split; `num_tasks` tells how many there are."""
        return self.get_task_range(split)

    # ---- inside

    def _observation(
        self, ids: Ids, reward: float, terminated: bool, truncated: bool, info: dict[str, Any], text: str
    ) -> MathObservation:
        self._info = info
        start = {"all": 0, "new": info["new_ids_start"], "none": len(ids)}[self._send_tokens]
        # Our own values: checking every id of a long context again would cost more than the step.
        return MathObservation.model_construct(
            text=text,
            tokens=ids[start:].tolist(),
            start=start,
            truncated=truncated,
            info=info_to_record(info),
            reward=reward,
            done=terminated or truncated,
            metadata={},
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs what may take long beside the event loop, and turns errors into what a client may read of them."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._service.threads, work)
        except MathTurnError as error:
            self._service.metrics.errors.labels(type(error).__name__).inc()
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        except Exception as error:  # a bug, of ours or in the operator's functions; its text may tell too much
            number = uuid.uuid4().hex[:8]
            _LOG.exception("error %s in a session", number)
            self._service.metrics.errors.labels(type(error).__name__).inc()
            raise RefusedError(f"ServerError: the server failed; its log has the reason under {number}") from error
