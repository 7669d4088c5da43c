"""What tests of engines share: environments and policies that every worker can load by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.types import Episode


@pytest.fixture(autouse=True, scope="session")
def seen_by_workers() -> Iterator[None]:
    """Lets workers of other processes import `simulated`: pytest's own path ends at this process."""
    folders = [str(Path(__file__).parents[3] / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        yield


@pytest.fixture
def env() -> EnvConfig:
    """Up to three turns of `lins`."""
    return EnvConfig(problems="lins", num_turns=3, max_completion_tokens=32)


def simulated_policy(**options: Any) -> PolicyConfig:
    """A policy that answers by its seed."""
    return PolicyConfig("simulated:SimulatedPolicy", options={"seconds": 0.0, **options})


def assert_same(found: list[Episode], expected: list[Episode], *, logprobs: float = 0.0) -> None:
    """Episodes equal to the bit, or their log-probs within a distance."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.index, one.seed, one.group) == (other.index, other.seed, other.group)
        assert (one.problem_id, one.stop_reason, one.verdicts) == (other.problem_id, other.stop_reason, other.verdicts)
        for name in ("ids", "loss_mask", "versions", "turn_spans", "rewards", "returns"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        assert np.allclose(one.logprobs, other.logprobs, rtol=0.0, atol=logprobs)


@pytest.fixture
def simulated() -> Any:
    """See `simulated_policy`."""
    return simulated_policy


@pytest.fixture
def same() -> Any:
    """See `assert_same`."""
    return assert_same
