"""slime's `custom_generate`, against slime's protocol: it is installed from its repository, with SGLang and Megatron.

What stands for slime here has the fields and methods that `slime/utils/types.py`, `slime/utils/http_utils.py` and
`slime/rollout/sglang_rollout.py` have; where slime is installed, its own `Sample` is used.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.neighbors.slime import custom_generate, dataset_rows, write_dataset

try:
    from slime.utils.types import Sample
except ImportError:

    @dataclass
    class Sample:  # type: ignore[no-redef]
        """slime's, as far as a custom generate function uses it."""

        index: int | None = None
        prompt: Any = ""
        tokens: list[int] = field(default_factory=list)
        response: str = ""
        response_length: int = 0
        reward: Any = None
        loss_mask: list[int] | None = None
        weight_versions: list[str] = field(default_factory=list)
        rollout_log_probs: list[float] | None = None
        metadata: dict[str, Any] = field(default_factory=dict)

        class Status(Enum):
            """How a sample ended."""

            PENDING = "pending"
            COMPLETED = "completed"
            TRUNCATED = "truncated"
            ABORTED = "aborted"

        status: Status = Status.PENDING


@pytest.fixture
def asked(script: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests to a router that follows the script."""
    requests: list[Any] = []

    async def post(url: str, payload: dict[str, Any], **_: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        requests.append((url, payload))
        if payload["sampling_params"].get("abort_at") == len(requests):
            return {"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}
        said = script.completion(payload["input_ids"], payload["sampling_params"]["max_new_tokens"])
        found = [[value, one, None] for value, one in zip(said.logprobs.tolist(), said.ids.tolist(), strict=True)]
        reason = {"type": "length" if said.truncated else "stop"}
        meta = {"finish_reason": reason, "output_token_logprobs": found, "weight_version": "7"}
        return {"text": "", "meta_info": meta}

    rollout, http = ModuleType("slime.rollout.sglang_rollout"), ModuleType("slime.utils.http_utils")
    rollout.GenerateState = lambda args: SimpleNamespace(tokenizer=script.tokenizer)  # type: ignore[attr-defined]
    http.post = post  # type: ignore[attr-defined]
    for name in ("slime", "slime.rollout", "slime.utils"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name) or ModuleType(name))
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", rollout)
    monkeypatch.setitem(sys.modules, "slime.utils.http_utils", http)
    return requests


def arguments(script: Any, **settings: Any) -> Any:
    router = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 3000}
    return SimpleNamespace(**router, mathturn={**script.settings, **settings})


def sample(script: Any) -> Any:
    (row,) = dataset_rows([script.problem])
    return Sample(index=5, prompt=row["prompt"], metadata=row["metadata"])


def test_a_sample_becomes_an_episode(script: Any, asked: list[Any]) -> None:
    params = {"temperature": 1.0, "max_new_tokens": 9999}
    out = asyncio.run(custom_generate(arguments(script, discount=0.5), sample(script), params))
    expected = script.episode()
    end = int(expected.turn_spans[-1, 1])
    assert out.tokens == expected.ids[:end].tolist()
    assert out.response_length == end - expected.prompt_length == len(out.loss_mask) == len(out.rollout_log_probs)
    assert out.loss_mask == expected.loss_mask[expected.prompt_length : end].astype(int).tolist()
    assert np.allclose(out.rollout_log_probs, expected.logprobs[expected.prompt_length : end])
    assert out.reward == -1.25
    assert out.metadata["turn_scores"] == [-1.0, -1.0, 1.0]
    assert out.status.value == "completed"
    assert out.weight_versions == ["7"] * 3
    assert out.response.startswith("no idea")
    assert {url for url, _ in asked} == {"http://10.0.0.1:3000/generate"}
    assert [payload["sampling_params"] for _, payload in asked] == [{"temperature": 1.0, "max_new_tokens": 24}] * 3
    assert all(payload["return_logprob"] for _, payload in asked)
    assert params["max_new_tokens"] == 9999


def test_a_generation_that_is_aborted_leaves_the_sample_to_be_played_again(script: Any, asked: list[Any]) -> None:
    out = asyncio.run(custom_generate(arguments(script), sample(script), {"abort_at": 2}))
    assert (out.status.value, out.reward, out.tokens) == ("aborted", None, [])
    again = asyncio.run(custom_generate(arguments(script), out, {}))
    assert again.status.value == "completed"


def test_an_episode_that_fills_its_context_is_truncated(script: Any, asked: list[Any]) -> None:
    out = asyncio.run(custom_generate(arguments(script, max_context_tokens=80), sample(script), {}))
    assert out.status.value == "truncated"
    assert len(out.tokens) <= 80


def test_mistakes_are_named(script: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError, match="a row's problem must be"):
        asyncio.run(custom_generate(arguments(script), Sample(), {}))
    with pytest.raises(InvalidValueError, match="did you mean 'num_turns'"):
        asyncio.run(custom_generate(arguments(script, num_turn=3), sample(script), {}))
    monkeypatch.setitem(sys.modules, "slime.rollout.sglang_rollout", None)
    with pytest.raises(MissingDependencyError, match="install it from https://github"):
        asyncio.run(custom_generate(arguments(script), sample(script), {}))


def test_the_data_set_is_jsonl(tmp_path: Path) -> None:
    write_dataset(tmp_path / "train.jsonl", "lins", 5)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["metadata"]["problem_id"] for row in rows}) == 5
    assert set(rows[0]) == {"prompt", "label", "metadata"}
