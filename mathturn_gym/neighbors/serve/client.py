"""The client: a `gymnasium.Env` whose episodes are played on a server.

What is sent are actions, what comes back are the ids that are new; the observation is put together here, by the sequence
law. The same calls give the same observations, rewards and infos as the environment itself, and the same errors.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mathturn_gym.base.render import draw_dialogue, print_new, render_dialogue
from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.config import env_parameters
from mathturn_gym.env.dialogue import Dialogue, Tokenizer
from mathturn_gym.errors import (
    EpisodeStateError,
    InvalidActionError,
    InvalidValueError,
    MathTurnError,
    ServerError,
    check_float,
    check_int,
    raise_unknown_name,
)
from mathturn_gym.neighbors.serve._protocol import ServerConnection, fingerprint, info_from_record, server_info
from mathturn_gym.spaces import TokenIds, check_step
from mathturn_gym.types import Ids, Problem, StopReason, TurnRecord

API_KEY_VARIABLE: Final = "MATHTURN_API_KEY"
"""Environment variable with the API key, where none is given."""

_OPTIONS: Final = ("problem_id", "index", "family", "level", "episode")
_NOT_TOLD: Final = "(not told by the server)"
_Step = tuple[Ids, float, bool, bool, dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RemoteState:
    """An episode at some turn, as `RemoteEnv.get_state` gives it: its problem and actions decide all that follows.

    Args:
        problem_id: The problem.
        actions: The actions played.
        stream: Seed of the environment's stream of problems.
        next_index: Number of the problem that the next `reset()` shows.
        rng_state: State of the environment's `np_random`, or None.
    """

    problem_id: str
    actions: tuple[Ids, ...]
    stream: int
    next_index: int
    rng_state: Mapping[str, Any] | None


class RemoteEnv(gym.Env[Ids, Ids]):
    """`MathMultiTurnEnv` on a server: `gym.make("MathMultiTurn-v0", server="http://…")`.

    Settings are the server's. Keywords of the environment may be given as well: they are compared with what the server
    plays, so that a script cannot run against other settings than it says.

    Args:
        server: URL of a server that `mathturn serve` started.
        api_key: Its key; None takes the environment variable `MATHTURN_API_KEY`, where there is one.
        tokenizer: For `dialogue`; None loads what the server names. One with other ids is an error.
        render_mode: As in `MathMultiTurnEnv`.
        server_timeout: Seconds to wait for a reply.
        **expected: Keywords of `MathMultiTurnEnv` that the server must have been started with.

    Attributes:
        server_info: What the server told about itself.

    Raises:
        ServerError: the server is not there, refuses, or speaks another protocol version.
        InvalidValueError: the server plays something else than `expected`.
        MissingDependencyError: `websockets` is not installed.
    """

    metadata: dict[str, Any] = MathMultiTurnEnv.metadata
    action_space: TokenIds  # type: ignore[assignment]  # Gymnasium's Sequence has no element type
    observation_space: TokenIds  # type: ignore[assignment]

    def __init__(
        self,
        server: str,
        *,
        api_key: str | None = None,
        tokenizer: str | Tokenizer | None = None,
        render_mode: str | None = None,
        server_timeout: float = 60.0,
        **expected: Any,
    ) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise_unknown_name("render_mode", render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        timeout = check_float("server_timeout", server_timeout, low=0.01, high=1e6)
        key = os.environ.get(API_KEY_VARIABLE) if api_key is None else api_key
        self.server = server
        self.server_info = server_info(server, key, timeout)
        self._check_expected(expected)
        settings, told = self.server_info["settings"], self.server_info["tokenizer"]
        self.num_turns = int(settings["num_turns"])
        self.max_completion_tokens = int(settings["max_completion_tokens"])
        self.max_context_tokens = int(settings["max_context_tokens"])
        self.action_space = TokenIds(told["vocab_size"], self.max_completion_tokens)
        self.observation_space = TokenIds(told["vocab_size"], self.server_info["observation_length"])
        self._tokenizer = told["name"] if tokenizer is None else tokenizer
        self._dialogue: Dialogue | None = None
        if tokenizer is not None:
            self._load_dialogue()  # a mistake shows at the start
        self._session = ServerConnection(server, key, timeout)
        self._stream: int | None = None
        self._next_index = 0
        self._observation: Ids | None = None
        self._ended = True
        self._sent: Ids | None = None
        self._problem: Problem | None = None
        self._actions: list[Ids] = []
        self._turns: list[TurnRecord] = []
        self._stop_reason: StopReason | None = None

    @property
    def dialogue(self) -> Dialogue:
        """Text and ids of the server's tokenizer, which is loaded here when it is first asked for.

        Raises:
            InvalidValueError: a tokenizer of that name does not load here, or has other ids: give `tokenizer=`.
        """
        return self._dialogue or self._load_dialogue()

    # ---- Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Ids, dict[str, Any]]:
        """Begins an episode; see `MathMultiTurnEnv.reset`. Begins a new session where the last one was ended.

        Raises:
            InvalidValueError: unknown option, or no such problem.
            ServerError: the server cannot be reached, or has no session free.
        """
        super().reset(seed=seed)
        if seed is not None or self._stream is None:
            self._stream, self._next_index = self.np_random_seed % 2**32 if seed is None else seed, 0
        request = self._request(dict(options or {}))
        self._session.begin()
        self._session.send("reset", {**request, "send_tokens": "new"})
        reply = self._session.receive()
        if "problem_id" not in request:
            self._next_index += 1
        info = self._start(reply)
        if self.render_mode == "human":
            self._print_new()
        return self._copy(), info

    def step(self, action: Ids) -> _Step:
        """Plays one turn; see `MathMultiTurnEnv.step`.

        Raises:
            InvalidActionError: the action is not in the action space; the message says why.
            EpisodeStateError: there is no episode, or it has ended.
            ServerError: the session was ended, and the episode with it.
        """
        if self._sent is None:
            self.begin_step(action)
        return self._finish_step()

    def begin_step(self, action: Ids) -> None:
        """Sends an action; the `step` that follows waits for its reply. Many environments can so be served at once."""
        check_step(
            action,
            self.action_space,
            begun=self._observation is not None,
            ended=self._ended,
            stop_reason=self._stop_reason,
        )
        self._ended = True  # unless the reply says otherwise: where none comes, the episode is lost
        self._session.send("step", {"text": "", "tokens": action.tolist()})
        self._sent = action.astype(np.int64)

    def render(self) -> Any:
        """The dialogue so far with its verdicts; see `MathMultiTurnEnv.render`."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode: gym.make(id, render_mode='ansi')")
            return None
        if self._problem is None:
            raise EpisodeStateError("render() before reset(): there is no episode yet")
        if self.render_mode == "human":
            return None
        show = draw_dialogue if self.render_mode == "rgb_array" else render_dialogue
        return show(self._problem, self._turns, self._stop_reason, system_prompt=self._system_prompt)

    def close(self) -> None:
        """Ends the session."""
        self._session.close()

    # ---- forking

    def get_state(self) -> RemoteState:
        """The episode as it stands; `set_state` continues from it, any number of times.

        Raises:
            EpisodeStateError: there is no episode yet.
        """
        if self._problem is None or self._stream is None:
            raise EpisodeStateError("get_state() before reset(): there is no episode yet")
        rng = None if self._np_random is None else copy.deepcopy(self._np_random.bit_generator.state)
        return RemoteState(self._problem.id, tuple(self._actions), self._stream, self._next_index, rng)

    def set_state(self, state: RemoteState) -> tuple[Ids, dict[str, Any]]:
        """Plays the episode of a state again, turn by turn; returns that state's observation and info.

        The server keeps no states: the same problem and actions give the same episode.

        Raises:
            InvalidValueError: the server does not have the problem.
            ServerError: the server cannot be reached.
        """
        observation, info = self.reset(options={"problem_id": state.problem_id})
        for action in state.actions:
            observation, _, _, _, info = self.step(action)
        self._stream, self._next_index = state.stream, state.next_index
        if state.rng_state is not None:
            self.np_random.bit_generator.state = copy.deepcopy(dict(state.rng_state))
        return observation, info

    # ---- inside

    @property
    def _system_prompt(self) -> str | None:
        return self.server_info["settings"]["system_prompt"]

    def _check_expected(self, expected: Mapping[str, Any]) -> None:
        """Raises where the server plays something else than the caller's keywords say."""
        settings = self.server_info["settings"]
        known = [name for name in env_parameters("MathMultiTurn-v0") if name != "render_mode"]
        for name, value in expected.items():
            if name not in known:
                raise_unknown_name("keyword", name, ["server", "api_key", "server_timeout", "render_mode", *known])
            if value is not None and (name not in settings or settings[name] != value):
                plays = f"{name}={settings[name]!r}" if name in settings else f"a {name} of its own"
                raise InvalidValueError(
                    f"{self.server} plays {plays}, this call asks for {value!r}: settings are the server's, leave"
                    f" {name} out or start the server with it"
                )

    def _load_dialogue(self) -> Dialogue:
        told = self.server_info["tokenizer"]
        dialogue = Dialogue(self._tokenizer, self._system_prompt)
        if fingerprint(dialogue) != told["fingerprint"]:
            raise InvalidValueError(
                f"tokenizer must be the server's, {told['name']!r}: {self._tokenizer!r} has another vocabulary or chat"
                " template"
            )
        self._dialogue = dialogue
        return dialogue

    def _request(self, options: dict[str, Any]) -> dict[str, Any]:
        """What to reset to. The stream is kept here: sessions come and go."""
        for name in options:
            if name not in _OPTIONS:
                raise_unknown_name("reset option", name, _OPTIONS)
        own = {"episode": options["episode"]} if "episode" in options else {}
        if "problem_id" in options:
            return {"problem_id": str(options["problem_id"]), **own}
        if "index" in options:
            self._next_index = check_int("options['index']", options["index"], low=0)
        request: dict[str, Any] = {"seed": self._stream, "index": self._next_index, **own}
        if options.get("level") is not None:
            request["level"] = check_int("options['level']", options["level"], low=0)
        if options.get("family") is not None:
            request["family"] = str(options["family"])
        return request

    def _start(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        shown = reply["observation"]
        info = info_from_record(shown["info"])
        self._problem = Problem(
            info["problem_id"], shown["text"], info.get("gold", _NOT_TOLD), metadata=info["metadata"]
        )
        self._observation = np.array(shown["tokens"], np.int64)
        self._actions, self._turns, self._sent, self._ended, self._segment = [], [], None, False, 0
        self._note_end(info)
        return info

    def _finish_step(self) -> _Step:
        assert self._observation is not None
        assert self._sent is not None
        (action, self._sent), before = (self._sent, None), len(self._observation)
        try:
            reply = self._session.receive()
        except MathTurnError:
            self._ended = not self._session.is_open  # a turn that failed on the server was not played there
            raise
        shown, reward = reply["observation"], float(reply["reward"])
        info = info_from_record(shown["info"])
        new = np.array(shown["tokens"], np.int64)
        played = info["turn"] > len(self._turns)
        segment, self._segment = self._segment, info["segment"]
        rewritten = self._segment > segment  # the server's environment rewrites history: all ids are new
        if rewritten and shown["start"] == 0:
            self._observation = new[:0]
        elif played and (shown["start"] != before or not np.array_equal(new[: len(action)], action)):
            self._session.close()
            raise ServerError(
                f"{self.server} answered another action than the one it was sent: the sequence law is broken"
            )
        self._observation = np.concatenate([self._observation, new])
        truncated = bool(shown["truncated"])
        terminated = bool(reply["done"]) and not truncated
        self._ended = terminated or truncated
        self._note_end(info)
        if played:
            self._actions.append(action)
            terms = info.get("reward_terms")
            ends = before + len(action)
            record = TurnRecord(
                info["response"], info["verdict"], info["feedback"], reward, before, ends, terms, segment
            )
            self._turns.append(record)
        if self.render_mode == "human":
            self._print_new()
        return self._copy(), reward, terminated, truncated, info

    def _note_end(self, info: Mapping[str, Any]) -> None:
        reason = info["stop_reason"]
        self._stop_reason = None if reason is None else StopReason(reason)

    def _copy(self) -> Ids:
        assert self._observation is not None
        return self._observation.copy()

    def _print_new(self) -> None:
        assert self._problem is not None
        print_new(self._problem, self._turns, self._stop_reason, system_prompt=self._system_prompt)


class RemoteVectorEnv(SyncVectorEnv):
    """Many sessions of one server: `gym.make_vec(id, num_envs=n, server="http://…")`.

    A step sends every action before it waits for the first reply, so that the server works on all of them at once.

    Args:
        num_envs: Number of sessions, >= 1.
        autoreset_mode: `gymnasium.vector.AutoresetMode` or its value.
        **keywords: Of `RemoteEnv`.
    """

    def __init__(
        self, num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **keywords: Any
    ) -> None:
        count = check_int("num_envs", num_envs, low=1)
        super().__init__([lambda: RemoteEnv(**keywords)] * count, autoreset_mode=autoreset_mode)

    def step(self, actions: Sequence[Ids]) -> tuple[Any, ...]:
        """Plays one turn in every session (or resets, where the autoreset mode says so).

        Args:
            actions: num_envs int64 arrays.
        """
        if len(actions) != self.num_envs:
            raise InvalidActionError(f"actions must be {self.num_envs} arrays, one per environment, got {len(actions)}")
        resets = (
            self._autoreset_envs if self.autoreset_mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        )
        for env, action, reset in zip(self.envs, actions, resets, strict=True):
            if not reset:
                env.begin_step(action)  # type: ignore[attr-defined]
        return super().step(tuple(actions))
