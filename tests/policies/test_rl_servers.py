"""Servers that a trainer samples from: weights in flight, versions per id, sampling masks, routers, restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import PolicyError
from mathturn_gym.policies import OpenAIPolicy
from mathturn_gym.policies._replicas import support_of, versions_of
from mathturn_gym.types import Ids

PROMPT: Ids = np.array([3, 4, 6])


@pytest.fixture
def tokens(server: Any) -> Any:
    """A server with vLLM's token endpoint."""
    server.tokens = True
    return server


def test_the_token_endpoint_is_taken_where_it_is(server: Any) -> None:
    with OpenAIPolicy(server.url, endpoint="auto") as policy:
        before = policy.complete([PROMPT], max_tokens=[6], seeds=[2])
    server.tokens = True
    with OpenAIPolicy(server.url, endpoint="auto") as policy:
        after = policy.complete([PROMPT], max_tokens=[6], seeds=[2])
    assert before[0].ids.tolist() == after[0].ids.tolist()
    assert after[0].logprobs.tolist() == before[0].logprobs.tolist()
    body = next(
        body
        for path, body in server.asked
        if path == "/inference/v1/generate" and body["sampling_params"]["top_k"] == 0
    )
    assert body["token_ids"] == [3, 4, 6]
    assert body["sampling_params"]["seed"] == 2
    with OpenAIPolicy(server.url, endpoint="tokens") as policy:
        server.tokens = False
        with pytest.raises(PolicyError, match="HTTP 404"):
            policy.complete([PROMPT], max_tokens=[2])


def aborted(policy: OpenAIPolicy, server: Any, mode: str) -> Any:
    """A completion whose first two ids were there when new weights came."""
    policy.complete([PROMPT], max_tokens=[1])  # the policy knows the server
    policy.update_weights("/one")
    server.partial = 2
    ticket = policy.submit(PROMPT, max_tokens=30, seed=5)
    while server.active == 0:
        pass
    policy.update_weights("/two", mode=mode)  # type: ignore[arg-type]
    found = dict(policy.advance())
    return found[ticket]


def test_an_aborted_answer_goes_on_with_the_new_weights(tokens: Any) -> None:
    with OpenAIPolicy(tokens.url, endpoint="tokens", retries=0) as policy:
        completion = aborted(policy, tokens, "abort")
    first, second = [
        b for p, b in tokens.asked if p == "/inference/v1/generate" and b["sampling_params"]["max_tokens"] > 1
    ]
    assert second["token_ids"] == [*first["token_ids"], *completion.ids[:2].tolist()]
    assert second["sampling_params"]["max_tokens"] == 28
    assert second["sampling_params"]["seed"] != first["sampling_params"]["seed"]
    assert [body["cache_salt"].rpartition("-")[2] for body in (first, second)] == ["1", "2"]
    assert completion.versions.tolist() == [1, 1] + [2] * (len(completion) - 2)
    assert len(completion) > 2
    order = [p for p in tokens.paths if p.startswith(("/pause", "/collective", "/resume", "/weight_info"))]
    assert order[-4:] == ["/pause?mode=abort", "/collective_rpc", "/weight_info", "/resume"]


def test_weights_that_a_server_keeps_requests_for_need_versions_per_id(server: Any) -> None:
    with OpenAIPolicy(server.url) as policy:
        policy.complete([PROMPT], max_tokens=[1])
        with pytest.raises(PolicyError, match="--enable-scale-out"):
            policy.update_weights("/new", mode="keep")
        assert policy.version == 0
    assert "/resume" in server.paths


def test_spans_of_versions_cover_every_id() -> None:
    assert versions_of("x", [("3", 0, 2), ("4", 2, 5)], 5, 4).tolist() == [3, 3, 4, 4, 4]
    with pytest.raises(PolicyError, match="do not cover"):
        versions_of("x", [("3", 0, 2)], 5, 4)


def test_a_server_that_was_started_again_gets_the_weights_before_it_is_asked(tokens: Any) -> None:
    with OpenAIPolicy(tokens.url, endpoint="tokens", backoff=0.0) as policy:
        policy.complete([PROMPT], max_tokens=[1])
        policy.update_weights("/one")
        tokens.weights, tokens.label = "old", "default"  # another process behind the same address
        (completion,) = policy.complete([PROMPT], max_tokens=[9], seeds=[1])
    assert tokens.weights == "/one"
    assert set(completion.versions.tolist()) == {1}


def test_weights_that_were_given_before_the_first_request_have_a_label(tokens: Any) -> None:
    """Many requests at once then ask a server that is not known yet; none may take its first label for a lost server."""
    tokens.delay = 0.005
    with OpenAIPolicy(tokens.url, endpoint="auto", retries=0) as policy:
        policy.update_weights("/zero", version=0)
        found = policy.complete([PROMPT + i for i in range(20)], max_tokens=[5] * 20)
    assert {one.version_start for one in found} == {0}
    assert [path for path in tokens.paths if "update" in path or "rpc" in path] == [
        "/collective_rpc",
        "/update_weight_version",
    ]


def test_a_server_that_is_away_during_an_update_gets_it_later(make_server: Callable[[], Any]) -> None:
    alive, away = make_server(), make_server()
    with OpenAIPolicy([alive.url, away.url], backoff=0.01, timeout=1.0) as policy:
        policy.complete([PROMPT + i for i in range(8)], max_tokens=[2] * 8)
        away.write = None
        address = away.server_address
        away.shutdown()
        away.server_close()
        assert policy.update_weights("/new") == 1
        assert policy.complete([PROMPT], max_tokens=[2])[0].version_start == 1
    assert alive.weights == "/new"
    assert address


def test_sampling_masks_become_the_support(tokens: Any) -> None:
    def masked(choice: dict[str, Any]) -> dict[str, Any]:
        kept = [[one, (one + 1) % 50][: 1 + place % 2] for place, one in enumerate(choice["token_ids"])]
        return {**choice, "sampling_mask": kept}

    tokens.change = masked
    with OpenAIPolicy(tokens.url, endpoint="tokens", top_k=2, support=True) as policy:
        (completion,) = policy.complete([PROMPT], max_tokens=[3], seeds=[0])
    assert completion.support is not None
    assert completion.support[:, 0].tolist() == completion.ids.tolist()
    assert completion.support[0].tolist() == [completion.ids[0], -1]


def test_a_server_without_sampling_masks_is_told_what_to_start_with(tokens: Any) -> None:
    with (
        OpenAIPolicy(tokens.url, endpoint="tokens", top_k=2, support=True) as policy,
        pytest.raises(PolicyError, match="--return-sampling-mask"),
    ):
        policy.complete([PROMPT], max_tokens=[3])


@pytest.mark.parametrize("mask", [[[1]], [[1], [7]], "12", [[1], [2.0]], [[1], [True, 2]]])
def test_masks_that_are_none_are_errors(mask: Any) -> None:
    with pytest.raises(PolicyError, match="sampling_mask"):
        support_of("x", mask, [1, 2])


def test_routed_experts_pass_through(tokens: Any) -> None:
    tokens.change = lambda choice: {**choice, "routed_experts": "k05VTVBZ"}
    with OpenAIPolicy(tokens.url, endpoint="tokens") as policy:
        assert policy.complete([PROMPT], max_tokens=[3])[0].routed_experts == "k05VTVBZ"


def test_sglang_is_asked_in_its_own_words(make_server: Callable[[], Any]) -> None:
    server = make_server()

    def generate(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "fake"}]}
        if path != "/generate":
            return 200, {"success": True}
        assert body["sampling_params"]["top_k"] != 0  # it refuses 0
        pairs = [[-0.5, 9, None], [0.0, 7, None]][: body["sampling_params"]["max_new_tokens"]]
        meta = {
            "prompt_tokens": len(body["input_ids"]),
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": pairs,
        }
        return 200, {"text": "", "meta_info": meta}

    server.answer = generate
    with OpenAIPolicy(server.url, api="sglang") as policy:
        (completion,) = policy.complete([PROMPT], max_tokens=[5], seeds=[3])
        policy.update_weights("/new", mode="abort")
    assert completion.ids.tolist() == [9, 7]
    assert completion.logprobs.tolist() == [-0.5, 0.0]
    asked = [body for path, body in server.asked if path == "/generate"][-1]
    assert asked["sampling_params"]["top_k"] == -1
    assert asked["sampling_params"]["sampling_seed"] == 3
    assert server.paths[-3:] == ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]


def test_an_adapter_is_loaded_beside_the_model(server: Any) -> None:
    asked = server.answer
    server.answer = lambda path, body: (200, None) if path == "/v1/load_lora_adapter" else asked(path, body)
    with OpenAIPolicy(server.url) as policy:
        policy.update_weights("/adapter", adapter=True)
        policy.complete([PROMPT], max_tokens=[2])
    assert server.completions[-1]["model"] == "mathturn"


class Router:
    """One URL before several servers: a session stays with the server that its first request went to."""

    def __init__(self, front: Any, engines: list[Any], *, sticky: bool) -> None:
        self._front, self._engines, self._sticky = front, engines, sticky
        self._homes: dict[str, Any] = {}
        self.turn = 0
        self.finished: list[str] = []
        front.answer = self.answer

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path.startswith("/finish_session"):
            self.finished.append(path.partition("=")[2])
            return 200, None
        self.turn += 1
        engine = self._engines[self.turn % len(self._engines)]
        session = self._front.here.session
        if self._sticky and session is not None:
            engine = self._homes.setdefault(session, engine)
        engine.look_up(body)
        found: tuple[int, Any] = engine.answer(path, body)
        return found


@pytest.mark.parametrize(("sticky", "least", "most"), [(True, 12, 12), (False, 0, 11)])
def test_a_router_keeps_a_session_where_its_prefix_is(
    make_server: Callable[[], Any], sticky: bool, least: int, most: int
) -> None:
    front, engines = make_server(), [make_server(), make_server()]
    router = Router(front, engines, sticky=sticky)
    env = gym.make_vec("MathMultiTurn-v0", num_envs=1, num_turns=3, max_completion_tokens=4)
    with OpenAIPolicy(front.url) as policy:
        episodes = collect(env, policy, 6, seed=3)
    env.close()
    assert sum(episode.num_turns for episode in episodes) == 18
    # Every turn after the first continues a prompt that its own server has read.
    assert least <= sum(engine.hits for engine in engines) <= most
    assert len(set(filter(None, front.sessions))) == 6
    assert all(engine.prefixes for engine in engines)
    assert sorted(router.finished) == sorted(set(filter(None, front.sessions)))


def test_a_server_that_is_no_router_is_told_of_no_end_again(server: Any) -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=1, num_turns=1, max_completion_tokens=4)
    with OpenAIPolicy(server.url, concurrency=1) as policy:
        told = []
        for _ in range(2):
            collect(env, policy, 3, seed=3)
            policy.complete([PROMPT] * 3, max_tokens=[1] * 3)
            told.append(sum(path.startswith("/finish_session") for path in server.paths))
    env.close()
    assert 1 <= told[0] == told[1]


def test_two_updates_do_not_meet(server: Any) -> None:
    with OpenAIPolicy(server.url) as policy:
        threads = [
            threading.Thread(target=policy.update_weights, args=(f"/{n}",), kwargs={"version": n}) for n in (1, 2)
        ]
        threads[0].start()
        threads[0].join()
        threads[1].start()
        threads[1].join()
        assert policy.version == 2
    assert server.weights == "/2"
