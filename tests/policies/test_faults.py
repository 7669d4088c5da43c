"""What servers can do wrong: each fault is a `PolicyError` in bounded time and memory, and loses nothing that was finished."""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import resource
import threading
import time
import traceback
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.policies import OpenAIPolicy
from mathturn_gym.types import Ids

PROMPT: Ids = np.array([5, 8, 9])
KEY = "sk-very-secret-key"


def one(policy: OpenAIPolicy, budget: int = 4) -> Any:
    return policy.complete([PROMPT], max_tokens=[budget], seeds=[1])[0]


def give(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda choice: {**choice, **fields}


def ids(found: list[Any]) -> Callable[[dict[str, Any]], Any]:
    return give(token_ids=found, logprobs={"token_logprobs": [-1.0] * len(found)})


# ---- answers that are not what they should be

ANSWERS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a float among ids": (ids([5.7, 6, 7]), r"token_ids\[0\] must be an id.*5\.7"),
    "a text among ids": (ids([5, "6", 7]), r"token_ids\[1\] must be an id.*'6'"),
    "a truth value among ids": (ids([5, 6, True]), r"token_ids\[2\] must be an id.*True"),
    "a negative id": (ids([5, -6, 7]), r"token_ids\[1\] must be an id.*-6"),
    "an id beyond any vocabulary": (ids([5, 10**400, 7]), r"token_ids\[1\] must be an id"),
    "nothing among ids": (ids([5, None, 7]), r"token_ids\[1\] must be an id.*None"),
    "ids as a text": (give(token_ids="567"), "returned no token_ids"),
    "a positive log-prob": (give(token_ids=[5], logprobs={"token_logprobs": [5.0]}), "must be a finite number <= 0"),
    "a log-prob that is NaN": (give(token_ids=[5], logprobs={"token_logprobs": [float("nan")]}), "finite number <= 0"),
    "an infinite log-prob": (give(token_ids=[5], logprobs={"token_logprobs": [float("-inf")]}), "finite number <= 0"),
    "a log-prob as text": (give(token_ids=[5], logprobs={"token_logprobs": ["-1"]}), "finite number <= 0"),
    "log-probs that lack one": (give(token_ids=[5, 6], logprobs={"token_logprobs": [-1.0]}), "2 ids and 1 log-probs"),
    "log-probs as a list": (give(logprobs=[-1.0]), "returned no token_logprobs"),
    "more ids than asked for": (
        give(token_ids=[5] * 9, logprobs={"token_logprobs": [-1.0] * 9}),
        "9 ids .* for a budget of 4",
    ),
    "no ids but a stop": (give(token_ids=[], logprobs={"token_logprobs": []}, finish_reason="stop"), "stopped without"),
    "a choice that is a list": (lambda choice: [choice], "answered without choices"),
    "a choice that is nothing": (lambda choice: None, "answered without choices"),
    "another end": (give(finish_reason=["stop"]), "finish_reason"),
    "another prompt": (give(prompt_token_ids=[5, 8]), "changed the prompt"),
    "a prompt of texts": (give(prompt_token_ids=["5", "8", "9"]), "changed the prompt"),
}


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_answer_that_is_no_completion_is_refused(server: Any, fault: str) -> None:
    server.change, message = ANSWERS[fault]
    with OpenAIPolicy(server.url, retries=0) as policy, pytest.raises(PolicyError, match=message):
        one(policy)


def test_rounding_above_zero_is_none() -> None:
    from mathturn_gym.policies._replicas import read_completion

    choice = {"token_ids": [5], "logprobs": {"token_logprobs": [3e-7]}, "finish_reason": "stop"}
    assert read_completion("http://x", [1], 4, choice, 0).logprobs.tolist() == [0.0]


@pytest.mark.parametrize(
    "content", [b"[]", b"3", b'{"choices": {}}', b'{"choices": []}', b"null", b'{"choices": 7}', b"", b"<html>"]
)
def test_answers_of_another_shape_are_policy_errors(server: Any, content: bytes) -> None:
    server.write = lambda file, _: file.write(
        b"HTTP/1.1 200 OK\r\nContent-Length: " + str(len(content)).encode() + b"\r\n\r\n" + content
    )
    with OpenAIPolicy(server.url, retries=0) as policy, pytest.raises(PolicyError):
        one(policy)


def test_a_server_that_cuts_prompts_is_noticed_by_its_count(server: Any) -> None:
    answer = server.answer

    def cut(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, found = answer(path, body)
        if path == "/v1/completions":
            found["choices"][0].pop("prompt_token_ids")
            found["usage"] = {"prompt_tokens": len(body["prompt"]) - 1}
        return status, found

    server.answer = cut
    with OpenAIPolicy(server.url) as policy, pytest.raises(PolicyError, match="read 2 of the prompt's 3 ids"):
        one(policy)


def test_finished_episodes_survive_a_malformed_answer(server: Any) -> None:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, num_turns=1, max_completion_tokens=3)
    seen: list[int] = []

    def spoil(episode: Any) -> None:
        seen.append(episode.index)
        if len(seen) == 3:
            server.change = lambda choice: [choice]

    with OpenAIPolicy(server.url) as policy, pytest.raises(PolicyError, match="without choices") as caught:
        collect(env, policy, 50, on_episode=spoil)
    assert sorted(seen) == [episode.index for episode in caught.value.finished]
    assert len(seen) >= 3
    env.close()


def test_a_failed_request_does_not_take_the_others_answers_with_it(server: Any) -> None:
    server.change = lambda choice: choice if choice["prompt_token_ids"] == [1] else [choice]
    with OpenAIPolicy(server.url) as policy:
        good = policy.submit(np.array([1]), max_tokens=3, seed=0)
        policy.submit(np.array([2]), max_tokens=3, seed=0)
        found: dict[int, Any] = {}
        errors = 0
        while good not in found or not errors:
            try:
                found |= dict(policy.advance())
            except PolicyError:
                errors += 1
        assert policy.advance() == []
    assert errors == 1


# ---- time


def slowly(pause: float) -> Callable[[Any, bytes], None]:
    """A byte at a time, each before a read could time out."""

    def write(file: Any, content: bytes) -> None:
        file.write(b"HTTP/1.1 200 OK\r\nContent-Length: " + str(len(content)).encode() + b"\r\n\r\n")
        for place in range(len(content)):
            file.write(content[place : place + 1])
            file.flush()
            time.sleep(pause)

    return write


def test_the_time_limit_is_for_the_whole_answer(server: Any) -> None:
    """Each byte comes in time, and the answer never ends."""

    def write(file: Any, content: bytes) -> None:
        file.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while True:  # until the policy has left
            file.write(b" ")
            file.flush()
            time.sleep(0.02)

    server.write = write
    with (
        OpenAIPolicy(server.url, timeout=0.4, retries=1, backoff=0.0) as policy,
        pytest.raises(PolicyError, match=r"no whole answer within 0\.4 s"),
    ):
        one(policy)


def test_an_answer_that_is_cut_off_is_asked_for_again(server: Any) -> None:
    cuts = [True, True, False]

    def write(file: Any, content: bytes) -> None:
        size = len(content) if not cuts[0] else len(content) + 50
        file.write(b"HTTP/1.1 200 OK\r\nContent-Length: " + str(size).encode() + b"\r\n\r\n" + content)
        cuts.pop(0)

    server.write = write
    with OpenAIPolicy(server.url, retries=2, backoff=0.0) as policy:
        assert len(one(policy)) > 0
    assert cuts == []


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are asked for. Those of more than a second are not made."""
    asked: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float, result: Any = None) -> Any:
        asked.append(seconds)
        return await sleep(0.0 if seconds > 1.0 else seconds, result)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return asked


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_server_that_says_when_to_come_back_is_left_alone_until_then(
    server: Any, form: str, waits: list[float]
) -> None:
    with OpenAIPolicy(server.url, backoff=0.01, timeout=2_000.0) as policy:
        one(policy)
        server.headers = {"Retry-After": "999" if form == "seconds" else formatdate(time.time() + 999, usegmt=True)}
        server.failures = [429]
        policy.complete([PROMPT] * 3, max_tokens=[3] * 3)
    longest = max(waits)
    assert 900 < longest <= 999
    assert all(wait < 1.0 or wait > 900 for wait in waits)


@pytest.mark.parametrize("header", ["soon", "-5", "1e999", "nan", ""])
def test_a_retry_after_that_means_nothing_is_ignored(server: Any, header: str) -> None:
    server.headers, server.failures = {"Retry-After": header}, [503]
    with OpenAIPolicy(server.url, backoff=0.01) as policy:
        assert len(one(policy)) > 0


def test_a_server_that_wants_to_be_left_alone_for_too_long_is_an_error(server: Any) -> None:
    server.headers, server.failures = {"Retry-After": "86400"}, [503] * 9
    with (
        OpenAIPolicy(server.url, timeout=5.0, backoff=0.01) as policy,
        pytest.raises(PolicyError, match="wants to be asked again in 86400 s"),
    ):
        one(policy)


def test_another_replica_does_not_wait_for_a_busy_one(make_server: Callable[[], Any], waits: list[float]) -> None:
    servers = [make_server(), make_server()]
    for server in servers[:1]:
        server.headers, server.failures = {"Retry-After": "30"}, [429] * 50
    with OpenAIPolicy([server.url for server in servers], backoff=0.01) as policy:
        policy.complete([np.array([i]) for i in range(12)], max_tokens=[3] * 12)
    assert max(waits) < 1.0
    assert len(servers[1].completions) == 12


# ---- size


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_compressed_answer_is_not_unpacked(server: Any) -> None:
    packed = gzip.compress(b" " * 700_000_000, compresslevel=1)
    server.write = lambda file, _: file.write(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    )
    before = peak_megabytes()
    with OpenAIPolicy(server.url, retries=0) as policy, pytest.raises(PolicyError, match="gzip"):
        one(policy)
    assert peak_megabytes() - before < 100


@pytest.mark.parametrize("announced", [True, False])
def test_an_endless_answer_is_cut_off(server: Any, announced: bool) -> None:
    sent = [0]

    def write(file: Any, _: bytes) -> None:
        length = b"Content-Length: 400000000\r\n" if announced else b""
        file.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n")
        for _i in range(400):
            file.write(b" " * 1_000_000)
            sent[0] += 1

    server.write = write
    before = peak_megabytes()
    with OpenAIPolicy(server.url, retries=0) as policy, pytest.raises(PolicyError, match="larger than"):
        one(policy)
    assert peak_megabytes() - before < 100
    assert sent[0] < 100


def test_an_answer_nested_without_end_is_an_error(server: Any) -> None:
    content = b'{"choices": ' + b"[" * 200_000
    server.write = lambda file, _: file.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
    with OpenAIPolicy(server.url, retries=0) as policy, pytest.raises(PolicyError):
        one(policy)


def test_a_long_refusal_is_shortened(server: Any) -> None:
    answer = server.answer
    server.answer = lambda path, body: answer(path, body) if body.get("top_k") == 1 else (400, {"error": "x" * 10**6})
    with OpenAIPolicy(server.url) as policy, pytest.raises(PolicyError) as caught:
        one(policy)
    assert len(str(caught.value)) < 2000


# ---- elsewhere


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirect_is_not_followed(server: Any, status: int) -> None:
    server.headers, server.failures = {"Location": "http://example.invalid/v1"}, [status]
    with (
        OpenAIPolicy(server.url, api_key=KEY) as policy,
        pytest.raises(PolicyError, match=rf"redirects to .*example\.invalid.*HTTP {status}"),
    ):
        one(policy)


def everything(error: BaseException) -> str:
    """All that a log, a traceback or a pickle of the exception could show."""
    import pickle

    return "".join(traceback.format_exception(error)) + repr(error) + repr(pickle.dumps(error))


@pytest.mark.parametrize("fault", ["refused", "busy", "redirect", "dead", "malformed", "not json"])
def test_secrets_are_in_no_exception(server: Any, fault: str) -> None:
    """A server may echo what it was sent, and libraries what they were given."""
    echo = {"error": f"invalid header Authorization: Bearer {KEY}, or user:url-password"}
    address = server.url.replace("http://", "http://user:url-password@")
    if fault == "dead":
        address = "http://user:url-password@127.0.0.1:1"
    elif fault == "redirect":
        server.headers = {"Location": address}
    elif fault == "malformed":
        server.change = lambda choice: {**choice, "token_ids": [KEY]}
    elif fault == "not json":
        server.write = lambda file, _: file.write(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n" + KEY.encode())
    statuses = {"refused": 401, "busy": 503, "redirect": 307}
    if fault in statuses:
        server.answer = lambda path, body: (statuses[fault], echo)
    with OpenAIPolicy(address, api_key=KEY, retries=0) as policy:
        with pytest.raises(PolicyError) as caught:
            one(policy)
        shown = repr(policy) + str(policy.urls) + everything(caught.value)
    for secret in (KEY, "url-password"):
        assert secret not in shown


def test_a_key_that_cannot_be_sent_is_refused_without_showing_it() -> None:
    for key in (f"{KEY}\n", f"{KEY} x", f"{KEY}é", ""):
        with pytest.raises(InvalidValueError, match="api_key") as caught:
            OpenAIPolicy("http://127.0.0.1:1", api_key=key)
        assert KEY not in everything(caught.value)


def test_keys_and_passwords_are_sent(server: Any) -> None:
    with OpenAIPolicy(server.url, api_key=KEY) as policy:
        one(policy)
    assert server.authorizations[-1] == f"Bearer {KEY}"
    with OpenAIPolicy(server.url.replace("http://", "http://user:pass%20word@")) as policy:
        one(policy)
    assert server.authorizations[-1] == "Basic dXNlcjpwYXNzIHdvcmQ="


# ---- processes


def in_child(policy: OpenAIPolicy, queue: Any) -> None:
    queue.put(one(policy).ids.tolist())


def test_it_works_in_a_forked_child_and_still_in_the_parent(server: Any) -> None:
    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()
    with OpenAIPolicy(server.url) as policy:
        expected = one(policy).ids.tolist()
        under_way = policy.submit(PROMPT, max_tokens=4, seed=1)
        child: Any = context.Process(target=in_child, args=(policy, queue))
        child.start()
        try:
            assert queue.get(timeout=20) == expected
        finally:
            child.join(5)
            if child.is_alive():
                child.kill()
        ((ticket, completion),) = policy.advance()
        assert (ticket, completion.ids.tolist()) == (under_way, expected)
        assert one(policy).ids.tolist() == expected
    assert child.exitcode == 0


def test_a_closed_policy_says_so(server: Any) -> None:
    policy = OpenAIPolicy(server.url)
    one(policy)
    policy.close()
    policy.close()
    with pytest.raises(PolicyError, match="closed"):
        one(policy)


def test_closing_while_others_wait_is_an_error_for_them(server: Any) -> None:
    server.delay = 0.5
    policy = OpenAIPolicy(server.url)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            one(policy)
        except PolicyError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    policy.close()
    thread.join(10)
    assert "closed" in str(caught[0])


def test_a_thousand_tasks_share_one_policy(server: Any) -> None:
    async def run(policy: OpenAIPolicy) -> list[Any]:
        return await asyncio.gather(*(policy.acomplete(PROMPT, max_tokens=2, seed=i) for i in range(1000)))

    with OpenAIPolicy(server.url, concurrency=32) as policy:
        found = asyncio.run(run(policy))
    assert len(found) == 1000
    assert server.most_active <= 32


def test_the_answers_of_the_fake_are_json() -> None:
    """What the tests above spoil is right before they spoil it."""
    assert json.loads(json.dumps(ANSWERS["another prompt"][0]({}))) == {"prompt_token_ids": [5, 8]}
