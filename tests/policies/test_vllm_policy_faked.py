"""`VLLMPolicy` around an engine that only looks like vLLM's; `test_vllm_policy.py` has the real one, where it is installed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, PolicyError
from mathturn_gym.policies import VLLMPolicy
from mathturn_gym.policies.config import BUILTIN_PATH
from mathturn_gym.testing import check_policy
from mathturn_gym.types import Ids
from mathturn_gym.wrappers import load_policy

PROMPT: Ids = np.array([5, 8, 9])


class Engine:
    """Answers a request after as many steps as it may sample ids: the ids are prompt sum + seed, counting up."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.aborted: list[str] = []
        self.reason, self.logprob = "length", -1.0
        self.engine_core = SimpleNamespace(shutdown=lambda: self.requests.clear())

    def add_request(self, name: str, prompt: dict[str, Any], params: dict[str, Any]) -> None:
        self.requests[name] = {"ids": prompt["prompt_token_ids"], **params, "steps": 0}

    def step(self) -> list[Any]:
        outputs = []
        for name, request in list(self.requests.items()):
            request["steps"] += 1
            finished = request["steps"] == request["max_tokens"]
            first = sum(request["ids"]) + (request["seed"] or 0)
            ids = [(first + i) % 50 for i in range(request["steps"])]
            logprobs = [{one: SimpleNamespace(logprob=self.logprob)} for one in ids]
            output = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason=self.reason)
            outputs.append(SimpleNamespace(request_id=name, finished=finished, outputs=[output]))
            if finished:
                del self.requests[name]
        return outputs

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.requests.pop(name)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of that name, whose `made` holds what `LLM` was called with."""
    module: Any = ModuleType("vllm")
    module.made = []

    class LLM:
        def __init__(self, **settings: Any) -> None:
            module.made.append(settings)
            self.llm_engine = Engine()
            self.calls: list[Any] = []

        def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
            self.calls.append((method, kwargs))

        def reset_prefix_cache(self) -> None:
            self.calls.append(("reset_prefix_cache", {}))

    module.LLM, module.SamplingParams = LLM, dict
    monkeypatch.setitem(sys.modules, "vllm", module)
    return module


def engine_of(policy: VLLMPolicy) -> Engine:
    engine: Engine = policy._engine
    return engine


def test_it_keeps_the_policy_contract(vllm: Any) -> None:
    policy = VLLMPolicy("folder")
    assert policy.scheduler == "streaming"
    check_policy(policy, 50)


def test_by_name_options_reach_the_engine(vllm: Any) -> None:
    policy = load_policy(f"vllm:{BUILTIN_PATH}", temperature=0.5, dtype="float32", options={"max_model_len": 99})
    (made,) = vllm.made
    assert (made["model"], made["dtype"], made["max_model_len"]) == (str(BUILTIN_PATH), "float32", 99)
    assert made["logprobs_mode"] == "processed_logprobs"
    assert len(policy.tokenizer) == 405
    policy.submit(PROMPT, max_tokens=3, seed=7)
    (request,) = engine_of(policy).requests.values()
    assert (request["temperature"], request["seed"], request["ids"]) == (0.5, 7, [5, 8, 9])


def test_a_run_brings_back_how_it_sampled(vllm: Any, tmp_path: Any) -> None:
    load_policy("builtin", temperature=0.3).save_pretrained(tmp_path)
    policy = load_policy(f"vllm:{tmp_path}")
    policy.submit(PROMPT, max_tokens=3)
    (request,) = engine_of(policy).requests.values()
    assert request["temperature"] == 0.3


def test_streams_batches_and_cancelled_requests_do_not_mix(vllm: Any) -> None:
    policy = VLLMPolicy("folder")
    short, long = policy.submit(PROMPT, max_tokens=2, seed=0), policy.submit(PROMPT, max_tokens=9, seed=1)
    dropped, nothing = policy.submit(PROMPT, max_tokens=5), policy.submit(PROMPT, max_tokens=0)
    assert policy.cancel(dropped)
    assert not policy.cancel(dropped)
    batch = policy.complete([PROMPT], max_tokens=[4], seeds=[2])
    assert batch[0].ids.tolist() == [24, 25, 26, 27]
    found: dict[int, Any] = {}
    while done := policy.advance():
        found |= dict(done)
    assert sorted(found) == sorted([short, long, nothing])
    assert [len(found[ticket]) for ticket in (short, long, nothing)] == [2, 9, 0]
    assert engine_of(policy).aborted == [str(dropped)]


def test_advance_can_give_up_for_now(vllm: Any) -> None:
    policy = VLLMPolicy("folder")
    ticket = policy.submit(PROMPT, max_tokens=5)
    assert policy.advance(steps=4) == []
    assert [found for found, _ in policy.advance(steps=4)] == [ticket]


def test_new_weights_wait_for_requests_under_way(vllm: Any) -> None:
    policy = VLLMPolicy("folder", version=2)
    policy.submit(PROMPT, max_tokens=2)
    with pytest.raises(PolicyError, match="1 requests under way"):
        policy.update_weights("/new")
    ((_, completion),) = policy.advance()
    assert completion.versions.tolist() == [2, 2]
    assert policy.update_weights("/new") == 3
    assert policy._llm.calls == [
        ("reload_weights", {"weights_path": "/new"}),
        ("reset_prefix_cache", {}),
    ]
    assert policy.complete([PROMPT], max_tokens=[1])[0].versions.tolist() == [3]
    with pytest.raises(InvalidValueError, match="version"):
        policy.update_weights("/new", version=3)


@pytest.mark.parametrize(
    ("fault", "message"), [({"reason": "abort"}, "'abort'"), ({"logprob": float("nan")}, "not finite")]
)
def test_completions_that_are_none_are_errors(vllm: Any, fault: dict[str, Any], message: str) -> None:
    policy = VLLMPolicy("folder")
    for name, value in fault.items():
        setattr(engine_of(policy), name, value)
    with pytest.raises(PolicyError, match=message):
        policy.complete([PROMPT], max_tokens=[2])


def test_bad_arguments_are_named(vllm: Any) -> None:
    policy = VLLMPolicy("folder")
    with pytest.raises(InvalidValueError, match="context is empty"):
        policy.submit(np.zeros(0, np.int64), max_tokens=2)
    with pytest.raises(InvalidValueError, match="max_tokens"):
        policy.submit(PROMPT, max_tokens=-2)


def test_without_vllm_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="pip install vllm"):
        VLLMPolicy("folder")
