from __future__ import annotations

import builtins
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from mathturn_gym import collect
from mathturn_gym.env.dialogue import completion_ids
from mathturn_gym.errors import (
    EpisodeStateError,
    InvalidEpisodeError,
    InvalidValueError,
    MissingDependencyError,
    ServerError,
)
from mathturn_gym.neighbors.serve._protocol import ServerConnection, info_from_record
from mathturn_gym.neighbors.serve.client import RemoteEnv, RemoteVectorEnv
from mathturn_gym.testing import RandomPolicy, check_turn_env, make_tokenizer
from mathturn_gym.types import Problem

ONE = Problem("p/1", "What is 40+2?", "42", hints=("It is even.",), metadata={"level": 1})
Serving = Callable[..., Any]

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("MathMultiTurn-v0", {}),
    ("MathMultiTurnUntilCorrect-v0", {"problems": [ONE], "feedback": "hint", "gold_in_info": True}),
    ("MathSingleTurn-v0", {"reward_terms": {"overlong": 1.0, "turn_cost": 0.05}, "system_prompt": "Be brief."}),
    ("MathMultiTurn-v0", {"max_context_tokens": 60, "max_completion_tokens": 12}),
]


@pytest.mark.parametrize(("env_id", "keywords"), SETTINGS, ids=range(len(SETTINGS)))
def test_a_served_environment_keeps_the_contract(serving: Serving, env_id: str, keywords: dict[str, Any]) -> None:
    server = serving(env=env_id, **keywords)
    check_turn_env(lambda: gym.make(env_id, server=server.url))


@pytest.mark.parametrize(("env_id", "keywords"), SETTINGS, ids=range(len(SETTINGS)))
def test_a_served_environment_gives_what_the_local_one_gives(
    serving: Serving, env_id: str, keywords: dict[str, Any]
) -> None:
    """Ids, rewards, flags and infos, over whole episodes of right, wrong and senseless answers."""
    local, remote = gym.make(env_id, **keywords), gym.make(env_id, server=serving(env=env_id, **keywords).url)
    unwrapped: Any = local.unwrapped
    dialogue, space = unwrapped.dialogue, unwrapped.action_space
    rng = np.random.default_rng(0)
    for episode in range(6):
        seed = 5 if episode == 0 else None
        (obs, info), there = local.reset(seed=seed), remote.reset(seed=seed)
        assert np.array_equal(obs, there[0])
        assert info == there[1]
        over = False
        while not over:
            answers = [r"\boxed{42}", r"\boxed{1}", "no idea", "", r"<|im_end|> \boxed{3}"]
            action = completion_ids(dialogue, answers[rng.integers(len(answers))], space.max_length)
            if rng.random() < 0.3:
                action = rng.integers(space.vocab_size, size=int(rng.integers(space.max_length)))
            (obs, *rest), (obs2, *rest2) = local.step(action), remote.step(action)
            assert np.array_equal(obs, obs2)
            assert rest == rest2
            over = bool(rest[1] or rest[2])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_of_sessions_is_the_local_vector(serving: Serving, mode: AutoresetMode) -> None:
    server = serving(num_turns=2)
    keywords: dict[str, Any] = {"num_envs": 3, "autoreset_mode": mode}
    local = gym.make_vec("MathMultiTurn-v0", num_turns=2, **keywords)
    remote = gym.make_vec("MathMultiTurn-v0", server=server.url, **keywords)
    assert isinstance(remote.unwrapped, RemoteVectorEnv)
    rng = np.random.default_rng(1)
    first: Any
    second: Any
    first, second = local.reset(seed=3), remote.reset(seed=3)
    for _ in range(5):
        assert all(np.array_equal(a, b) for a, b in zip(first[0], second[0], strict=True))
        assert first[-1]["problem_id"].tolist() == second[-1]["problem_id"].tolist()
        actions = tuple(rng.integers(100, size=4) for _ in range(3))
        first, second = local.step(actions), remote.step(actions)
        assert all(a.tolist() == b.tolist() for a, b in zip(first[1:4], second[1:4], strict=True))
        if mode is AutoresetMode.DISABLED and first[2].any():
            mask = {"reset_mask": np.ones(3, np.bool_)}
            first, second = local.reset(options=dict(mask)), remote.reset(options=dict(mask))
    local.close()
    remote.close()
    server.wait_for_sessions(0)


def test_collect_plays_the_same_episodes_on_a_server(serving: Serving) -> None:
    server = serving(num_turns=3)
    local = gym.make_vec("MathMultiTurn-v0", num_envs=3, num_turns=3)
    remote = gym.make_vec("MathMultiTurn-v0", num_envs=2, server=server.url)
    policy = RandomPolicy(local.single_action_space.vocab_size)  # type: ignore[attr-defined]
    here, there = (collect(env, policy, 7, seed=2, group_size=2) for env in (local, remote))
    for left, right in zip(here, there, strict=True):
        assert np.array_equal(left.ids, right.ids)
        assert left.verdicts == right.verdicts
        assert (left.rewards.tolist(), left.problem_id, left.group) == (
            right.rewards.tolist(),
            right.problem_id,
            right.group,
        )


def test_an_ended_session_is_an_error_and_the_next_reset_begins_another(serving: Serving) -> None:
    from mathturn_gym.neighbors.serve import Limits

    server = serving(limits=Limits(session_timeout=0.2))
    env = gym.make("MathMultiTurn-v0", server=server.url)
    first, _ = env.reset(seed=0)
    server.wait_for_sessions(0)
    with pytest.raises(ServerError, match=r"ended the session \(no message for 0.2 s\); start it with a longer"):
        env.step(np.array([1]))
    with pytest.raises(EpisodeStateError, match="reset"):
        env.unwrapped.step(np.array([1]))
    assert np.array_equal(env.reset(seed=0)[0], first)


def test_a_full_server_says_so(serving: Serving) -> None:
    from mathturn_gym.neighbors.serve import Limits

    server = serving(limits=Limits(max_sessions=1))
    one, two = (gym.make("MathMultiTurn-v0", server=server.url) for _ in range(2))
    one.reset(seed=0)
    with pytest.raises(ServerError, match="CAPACITY_REACHED"):
        two.reset(seed=0)
    one.close()
    server.wait_for_sessions(0)
    two.reset(seed=0)


def test_keys(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serving(api_keys=["secret", "other"]).url
    for key in (None, "secre", "secrets"):
        with pytest.raises(
            ServerError, match=r"HTTP 401\): it needs an API key: give api_key=, or set MATHTURN_API_KEY"
        ):
            gym.make("MathMultiTurn-v0", server=url, api_key=key)
    gym.make("MathMultiTurn-v0", server=url, api_key="other").reset(seed=0)
    with pytest.raises(ServerError, match=r"refuses a session \(HTTP 401\): it needs an API key"):
        ServerConnection(url, "another", 60.0).begin()
    monkeypatch.setenv("MATHTURN_API_KEY", "secret")
    gym.make("MathMultiTurn-v0", server=url).reset(seed=0)


def test_what_a_session_says_is_checked() -> None:
    with pytest.raises(ServerError, match="there is no session with http://x"):
        ServerConnection("http://x", None, 1.0).send("step", {})
    with pytest.raises(InvalidEpisodeError, match="verdict of turn 2: field 'span'"):
        info_from_record({"turn": 3, "verdict": {"status": "perhaps"}})


def test_settings_that_the_server_does_not_play_are_refused(serving: Serving) -> None:
    url = serving(num_turns=3, problems=[ONE], feedback="hint").url
    gym.make("MathMultiTurn-v0", server=url, num_turns=3, feedback="hint", max_context_tokens=None)
    with pytest.raises(InvalidValueError, match=r"plays num_turns=3, this call asks for 4: settings are the server's"):
        gym.make("MathMultiTurn-v0", server=url, num_turns=4)
    with pytest.raises(InvalidValueError, match=r"plays a problems of its own, this call asks for 'lins'"):
        gym.make("MathMultiTurn-v0", server=url, problems="lins")
    with pytest.raises(InvalidValueError, match=r"plays stop_on_success=False, this call asks for True"):
        gym.make("MathMultiTurnUntilCorrect-v0", server=url)
    with pytest.raises(InvalidValueError, match=r"unknown keyword 'num_turn'.*did you mean 'num_turns'"):
        gym.make("MathMultiTurn-v0", server=url, num_turn=4)
    with pytest.raises(InvalidValueError, match="render_mode"):
        gym.make("MathMultiTurn-v0", server=url, render_mode="rgb")


def test_the_dialogue_is_the_servers(serving: Serving) -> None:
    tokenizer = make_tokenizer("header", seed=3)
    url = serving(tokenizer=tokenizer, system_prompt="Be brief.").url
    with pytest.raises(InvalidValueError, match="tokenizer must be the server's"):
        RemoteEnv(url, tokenizer="builtin")
    env = RemoteEnv(url, tokenizer=make_tokenizer("header", seed=3))
    assert "Be brief." in env.dialogue.decode(env.reset(seed=0)[0])
    assert RemoteEnv(serving().url).dialogue.tokenizer.name_or_path.endswith("tiny")


def test_render_is_the_local_one(serving: Serving) -> None:
    local = gym.make("MathMultiTurn-v0", problems=[ONE], render_mode="ansi", system_prompt="Be brief.").unwrapped
    remote = RemoteEnv(serving(problems=[ONE], system_prompt="Be brief.").url, render_mode="ansi")
    with pytest.raises(EpisodeStateError, match="before reset"):
        remote.render()
    for env in (local, remote):
        env.reset(seed=0)
        env.step(completion_ids(remote.dialogue, r"\boxed{41}"))
    assert local.render() == remote.render()
    assert "Be brief." in str(remote.render())


@contextmanager
def pretending(reply: bytes, status: int = 200) -> Iterator[str]:
    """A server of something else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_other_servers_are_refused_at_the_start() -> None:
    for reply, status, message in (
        (
            json.dumps({"mathturn_protocol": 99, "version": "9.0"}).encode(),
            200,
            r"speaks protocol version 99 \(mathturn_gym 9",
        ),
        (b"{}", 200, "is not a `mathturn serve` server"),
        (b"<html>", 200, "does not answer as a `mathturn serve` server would"),
        (b"", 404, r"refuses \(HTTP 404\)"),
        (b"", 503, r"refuses \(HTTP 503\): it is busy"),
    ):
        with pretending(reply, status) as url, pytest.raises(ServerError, match=message):
            RemoteEnv(url)
    with pytest.raises(ServerError, match="Connection refused"):
        RemoteEnv("http://127.0.0.1:9")
    for bad in ("127.0.0.1:8000", "ftp://x", "http://", 3):
        with pytest.raises(InvalidValueError, match="server must be a URL"):
            RemoteEnv(bad)  # type: ignore[arg-type]


def test_a_missing_library_is_named(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    env = RemoteEnv(serving().url)
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("websockets"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[client\]'"):
        env.reset(seed=0)


def test_a_session_that_answers_another_action_is_noticed(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    env = RemoteEnv(serving().url)
    env.reset(seed=0)
    send = env._session.send
    monkeypatch.setattr(env._session, "send", lambda kind, data: send(kind, {**data, "tokens": [7]}))
    with pytest.raises(ServerError, match="answered another action"):
        env.step(np.array([5]))
