"""`OpenAIPolicy` against a real HTTP server on this machine that answers as vLLM does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.policies import OpenAIPolicy
from mathturn_gym.testing import check_policy
from mathturn_gym.types import Completion, Ids

VOCAB, STOP = 50, 7


def contexts(count: int, seed: int = 0) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, size=n).astype(np.int64) for n in rng.integers(1, 9, size=count)]


def lists(completions: list[Completion]) -> list[list[int]]:
    return [completion.ids.tolist() for completion in completions]


def test_ids_and_logprobs_come_from_the_server_as_they_are(server: Any) -> None:
    with OpenAIPolicy(server.url, temperature=0.5, top_k=3, stop_ids=[9, 8], version=4) as policy:
        asked = contexts(3)
        found = policy.complete(asked, max_tokens=[5, 0, 30], seeds=[11, 12, 13])
    by_prompt = {tuple(body["prompt"]): body for body in server.completions}
    assert len(by_prompt) == 2
    for row in (0, 2):
        body = by_prompt[tuple(asked[row].tolist())]
        assert (body["seed"], body["max_tokens"], body["model"]) == (11 + row, [5, 0, 30][row], "fake")
        assert (body["temperature"], body["top_k"], body["stop_token_ids"]) == (0.5, 3, [8, 9])
        assert found[row].ids.tolist() == server.choice(body)["token_ids"]
        assert found[row].truncated == (found[row].ids[-1] != STOP)
        assert found[row].versions.tolist() == [4] * len(found[row])
    assert (len(found[1]), found[1].truncated) == (0, True)


def test_it_keeps_the_policy_contract(server: Any) -> None:
    with OpenAIPolicy(server.url) as policy:
        check_policy(policy, VOCAB)


def test_requests_run_at_once_and_never_more_than_allowed(server: Any) -> None:
    server.delay = 0.02
    with OpenAIPolicy(server.url, concurrency=4) as policy:
        policy.complete(contexts(20), max_tokens=[3] * 20)
    assert 2 <= server.most_active <= 4


def test_a_stream_gives_what_a_batch_gives(server: Any) -> None:
    asked = contexts(9)
    with OpenAIPolicy(server.url) as policy:
        tickets = [policy.submit(context, max_tokens=6, seed=row) for row, context in enumerate(asked)]
        found: dict[int, Completion] = {}
        while done := policy.advance():
            found.update(done)
        batch = policy.complete(asked, max_tokens=[6] * 9, seeds=range(9))
    assert lists([found[ticket] for ticket in tickets]) == lists(batch)


def test_collect_plays_the_same_episodes_over_http_as_before(server: Any) -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=3, num_turns=2, max_completion_tokens=5)
    with OpenAIPolicy(server.url) as policy:
        first, second = (collect(env, policy, 5, seed=3) for _ in range(2))
    assert [e.ids.tolist() for e in first] == [e.ids.tolist() for e in second]
    assert all(e.num_turns == 2 for e in first)
    env.close()


def test_a_session_stays_with_its_replica(make_server: Callable[[], Any]) -> None:
    servers = [make_server() for _ in range(3)]
    with OpenAIPolicy([server.url for server in servers]) as policy:
        running = contexts(24)
        for _ in range(3):
            done = policy.complete(running, max_tokens=[4] * 24, seeds=range(24))
            running = [np.concatenate([c, d.ids, [5]]) for c, d in zip(running, done, strict=True)]
    homes = [[tuple(body["prompt"]) for body in server.completions] for server in servers]
    assert all(homes)
    assert sum(map(len, homes)) == 72
    for prompts in homes:
        # Whoever was asked a later turn was asked the earlier ones.
        for prompt in prompts:
            later = any(prompt != other and prompt[: len(other)] == other for other in prompts)
            assert later or prompt in {tuple(context.tolist()) for context in contexts(24)}


def test_a_busy_server_is_asked_again_and_a_dead_one_is_left(make_server: Callable[[], Any]) -> None:
    alive, dead = make_server(), make_server()
    dead.shutdown()
    dead.server_close()
    alive.failures = [503, 429]
    with OpenAIPolicy([dead.url, alive.url], backoff=0.01) as policy:
        assert len(policy.complete(contexts(8), max_tokens=[3] * 8, seeds=range(8))) == 8


def test_a_server_that_stays_away_is_an_error_that_keeps_finished_episodes(server: Any) -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, num_turns=1, max_completion_tokens=3)
    seen = []

    def stop_after_three(episode: Any) -> None:
        seen.append(episode.index)
        if len(seen) == 3:
            server.failures = [500] * 100

    with (
        OpenAIPolicy(server.url, retries=1, backoff=0.0) as policy,
        pytest.raises(PolicyError, match=r"no answer after 2 attempts.*HTTP 500") as caught,
    ):
        collect(env, policy, 50, on_episode=stop_after_three)
    assert sorted(seen) == [episode.index for episode in caught.value.finished]
    assert len(seen) >= 3
    env.close()


@pytest.mark.parametrize(
    ("leave_out", "message"),
    [("token_ids", r"returned no token_ids.*vLLM >= 0\.10"), ("logprobs", "returned no token_logprobs")],
)
def test_a_server_without_ids_or_logprobs_is_refused(server: Any, leave_out: str, message: str) -> None:
    server.leave_out = (leave_out,)
    with OpenAIPolicy(server.url) as policy, pytest.raises(PolicyError, match=message):
        policy.complete(contexts(1), max_tokens=[2])


def test_logprobs_of_another_distribution_are_noticed(server: Any) -> None:
    server.raw_logprobs = True
    with (
        OpenAIPolicy(server.url, temperature=0.7) as policy,
        pytest.raises(PolicyError, match="--logprobs-mode processed_logprobs"),
    ):
        policy.complete(contexts(1), max_tokens=[2])
    with OpenAIPolicy(server.url) as policy:  # at temperature 1 both are the same
        assert len(policy.complete(contexts(1), max_tokens=[2])) == 1


def test_what_a_server_refuses_is_said_in_its_words(server: Any) -> None:
    with (
        OpenAIPolicy(server.url) as policy,
        pytest.raises(PolicyError, match=r"refuses: HTTP 400 .*longer than max_model_len"),
    ):
        policy.complete([np.zeros(201, np.int64)], max_tokens=[2])


def test_a_completion_that_was_cut_off_for_another_reason_is_no_completion(server: Any) -> None:
    server.finish = "abort"
    with OpenAIPolicy(server.url) as policy, pytest.raises(PolicyError, match="finish_reason 'abort'"):
        policy.complete(contexts(1), max_tokens=[2])


def test_a_slow_server_times_out(server: Any) -> None:
    server.delay = 1.0
    with (
        OpenAIPolicy(server.url, timeout=0.05, retries=1, backoff=0.0) as policy,
        pytest.raises(PolicyError, match=r"no whole answer within 0\.05 s.*timeout and retries"),
    ):
        policy.complete(contexts(1), max_tokens=[2])


def test_weights_are_updated_between_requests(server: Any) -> None:
    server.delay = 0.05
    with OpenAIPolicy(server.url) as policy:
        early = policy.submit(contexts(1)[0], max_tokens=3, seed=0)
        policy.complete(contexts(1), max_tokens=[1])  # the server has been asked
        assert policy.update_weights("/new") == 1
        late = policy.submit(contexts(1)[0], max_tokens=3, seed=0)
        found = dict(policy.advance() + policy.advance())
        assert (found[early].version_start, found[late].version_start) == (0, 1)
        server.failures = [404]
        with pytest.raises(PolicyError, match="HTTP 404"):
            policy.update_weights("/newer")
        assert policy.version == 1
    assert server.weights == "/new"


def test_cancelling_drops_the_request(server: Any) -> None:
    """The server answers nothing meanwhile: whoever waited for it would wait forever."""

    async def run(policy: OpenAIPolicy) -> None:
        task = asyncio.create_task(policy.acomplete(contexts(1)[0], max_tokens=3))
        while not server.active:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with OpenAIPolicy(server.url) as policy:
        policy.complete(contexts(1), max_tokens=[1])  # the policy's own first question is answered
        server.open.clear()
        asyncio.run(run(policy))
        ticket = policy.submit(contexts(1)[0], max_tokens=3)
        assert policy.cancel(ticket)
        assert not policy.cancel(ticket)
        assert policy.advance() == []
        server.open.set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"urls": "localhost:8000"}, "urls"), ({"urls": []}, "urls"), ({"temperature": -1.0}, "temperature")],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        OpenAIPolicy(**{"urls": "http://127.0.0.1:1", **arguments})
