"""How runs are measured: the same figures for every algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mathturn_gym.metrics.figures import facts
from mathturn_gym.rollout import collect
from mathturn_gym.seeding import derive_seed

if TYPE_CHECKING:
    from mathturn_gym.baselines.settings import RunConfig
    from mathturn_gym.config import EnvConfig
    from mathturn_gym.types import Episode, Policy

__all__ = ["accuracy_by_turn", "play_test", "validation_env"]

_PLAYED_AT_ONCE: Final = 128
"""Episodes that an evaluation plays side by side."""


def accuracy_by_turn(episodes: Sequence[Episode], num_turns: int) -> dict[str, float]:
    """Share of episodes with a right answer at or before each turn, as "acc@1", "acc@2" and so on."""
    first = [facts(episode).first_success for episode in episodes]
    return {
        f"acc@{turn + 1}": float(np.mean([at is not None and at <= turn for at in first])) for turn in range(num_turns)
    }


def validation_env(config: RunConfig, policy: Policy | None = None) -> Any:
    """The environment of a run's evaluations; None where there are none.

    Args:
        config: The run.
        policy: Its tokenizer is the environment's, where the config names none.
    """
    episodes = config.evaluation.episodes
    at_once = min(episodes, _PLAYED_AT_ONCE)
    return config.env.make("validation", at_once, policy=policy, gold_in_info=True) if episodes else None


def play_test(env: EnvConfig, policy: Policy, episodes: int, *, seed: int) -> dict[str, float]:
    """Accuracy by turn on the test split, on how many different problems, and tokens per episode.

    Args:
        env: Environment and splits.
        policy: Any policy.
        episodes: How many are played.
        seed: Decides problems and samples.
    """
    vector: Any = env.make("test", min(episodes, _PLAYED_AT_ONCE), policy=policy)
    try:
        played = collect(vector, policy, episodes, seed=derive_seed(seed, "test"))
    finally:
        vector.close()
    return {
        **accuracy_by_turn(played, int(env.value("num_turns"))),
        "episodes": len(played),
        "problems": len({episode.problem_id for episode in played}),
        "tokens_per_episode": float(np.mean([episode.loss_mask.sum() for episode in played])),
    }
