"""Runs small enough to be made by the dozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mathturn_gym.baselines import RunConfig, training
from mathturn_gym.baselines.tasks import load_task

SMALL: Mapping[str, Any] = {
    "batch_episodes": 8,
    "minibatches": 2,
    "epochs": 1,
    "evaluation.every": 2,
    "evaluation.episodes": 4,
    "evaluation.test_episodes": 0,
    "save_every": 2,
    "env.num_turns": 2,
}


@pytest.fixture
def draws() -> None:
    """Asked for by the tests that look at `curve.png`."""


@pytest.fixture(autouse=True)
def no_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of these tests draw no curve, which takes as long as a third of a small run."""
    if "draws" not in request.fixturenames:
        monkeypatch.setattr(training, "draw_curve", lambda history, path, *, title: True)


@pytest.fixture(scope="session")
def small() -> Callable[..., RunConfig]:
    """`small(algorithm, settings, task=, episodes=)`: a run of a few iterations of 8 episodes."""

    def make(
        algorithm: Any = "clipped_reinforce",
        settings: Mapping[str, Any] | None = None,
        *,
        task: str = "lins",
        episodes: int | None = 24,
        **budget: Any,
    ) -> RunConfig:
        limits = {**({} if episodes is None else {"episodes": episodes}), **budget}
        given = {**SMALL, **(settings or {})}
        name = algorithm if isinstance(algorithm, str) else algorithm.name
        if name in ("reinforce", "rloo"):  # one gradient step per batch, as published
            given = {**given, "minibatches": 1}
        return load_task(task).config(algorithm, given, budget=limits)

    return make


@pytest.fixture(scope="session")
def timeless() -> Callable[[Any], list[dict[str, float]]]:
    """Lines of metrics without what a clock said."""

    def strip(history: Any) -> list[dict[str, float]]:
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "cpu_s"))} for row in history]

    return strip
