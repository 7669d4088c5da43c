"""A `CausalLMPolicy` that many asyncio tasks share."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_tiny_model, train_tokenizer

from mathturn_gym.errors import EpisodeStateError, InvalidValueError, PolicyError
from mathturn_gym.types import Completion
from mathturn_gym.wrappers import AsyncCausalLMPolicy, CausalLMPolicy

TOKENIZER = train_tokenizer()


def causal(**kwargs: Any) -> CausalLMPolicy:
    return CausalLMPolicy(make_tiny_model(TOKENIZER, seed=3), TOKENIZER, **kwargs)


def test_it_declares_how_it_is_asked() -> None:
    policy = AsyncCausalLMPolicy(causal())
    assert (policy.scheduler, policy.tokenizer) == ("async", TOKENIZER)
    policy.close()
    policy.close()


def test_calls_share_a_batch() -> None:
    async def run() -> tuple[list[Completion], CausalLMPolicy]:
        policy = causal(stop_ids=[])
        async with AsyncCausalLMPolicy(policy) as shared:
            calls = [shared.acomplete(np.arange(3, 8 + row), max_tokens=30, seed=row) for row in range(6)]
            return await asyncio.gather(*calls), policy

    found, policy = asyncio.run(run())
    expected = causal(stop_ids=[]).complete(
        [np.arange(3, 8 + row) for row in range(6)], max_tokens=[30] * 6, seeds=range(6)
    )
    assert [c.ids.tolist() for c in found] == [c.ids.tolist() for c in expected]
    assert policy.stats.decode_passes < 3 * 30


def test_a_cancelled_call_frees_its_place() -> None:
    async def run() -> None:
        async with AsyncCausalLMPolicy(causal(stop_ids=[], max_batch_size=1)) as policy:
            long = asyncio.create_task(policy.acomplete(np.array([5]), max_tokens=8000, seed=0))
            await asyncio.sleep(0.2)
            long.cancel()
            short = await asyncio.wait_for(policy.acomplete(np.array([5]), max_tokens=2, seed=0), 60)
            assert len(short) == 2
            with pytest.raises(asyncio.CancelledError):
                await long

    asyncio.run(run())


def test_weights_are_updated_while_calls_run() -> None:
    async def run() -> Completion:
        policy = causal(stop_ids=[])
        other = make_tiny_model(TOKENIZER, seed=4).state_dict()
        async with AsyncCausalLMPolicy(policy) as shared:
            call = asyncio.create_task(shared.acomplete(np.array([5]), max_tokens=400, seed=0))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(policy.update_weights, other)
            return await call

    completion = asyncio.run(run())
    assert sorted(set(completion.versions.tolist())) == [0, 1]


def test_errors_reach_the_call_that_they_belong_to() -> None:
    async def run() -> None:
        policy = causal()
        async with AsyncCausalLMPolicy(policy) as shared:
            with pytest.raises(InvalidValueError, match="empty"):
                await shared.acomplete(np.zeros(0, np.int64), max_tokens=2)
            with torch.no_grad():
                policy.model.get_input_embeddings().weight[77] = torch.nan
            with pytest.raises(PolicyError, match="not finite"):
                await shared.acomplete(np.array([77]), max_tokens=2)
        with pytest.raises(EpisodeStateError, match="close"):
            await shared.acomplete(np.array([5]), max_tokens=2)

    asyncio.run(run())


@pytest.mark.parametrize(("precision", "expected"), [("float32", False), ("bfloat16", True)])
def test_the_decoding_thread_has_the_precision_that_was_asked_for(precision: str, expected: bool) -> None:
    """Autocast is a property of a thread: around the caller it would do nothing."""
    policy, seen = causal(), set[bool]()
    policy.model.register_forward_pre_hook(lambda *_: seen.add(torch.is_autocast_enabled("cpu")))

    async def run() -> None:
        async with AsyncCausalLMPolicy(policy, precision=precision) as shared:
            await shared.acomplete(np.arange(3, 8), max_tokens=2, seed=0)

    asyncio.run(run())
    assert seen == {expected}
