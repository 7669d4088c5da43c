"""`--engine`: what each engine takes, and what is said of the rest."""

from __future__ import annotations

import pytest

from mathturn_gym.cli._options import is_silent_rank, ray_settings, training_engine
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.engines.distributed import DistributedTraining
from mathturn_gym.neighbors.engines.ray_settings import RaySettings


def test_engines_and_their_settings() -> None:
    assert training_engine("local", None) is None
    assert ray_settings("local", []) is None
    assert ray_settings("ray", ["rollout_actors=3", "placement=PACK"]) == RaySettings(
        rollout_actors=3, placement="PACK"
    )
    assert training_engine("distributed", ["shard=true"]) == DistributedTraining(shard=True)


@pytest.mark.parametrize(
    ("engine", "texts", "message"),
    [
        ("rays", [], "did you mean 'ray'"),
        ("local", ["share=2"], "--engine local has no settings"),
        ("ray", ["shares=2"], "did you mean 'share'"),
        ("ray", ["share"], "--engine-set must be FIELD=VALUE"),
        ("ray", ["share=0"], "share must be"),
        ("distributed", [], "--engine distributed trains"),
    ],
)
def test_mistakes_of_an_evaluation(engine: str, texts: list[str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        ray_settings(engine, texts)


def test_mistakes_of_training() -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'shard'"):
        training_engine("distributed", ["share=true"])


def test_only_the_first_rank_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert is_silent_rank("distributed")
    assert not is_silent_rank("ray")
    monkeypatch.setenv("RANK", "0")
    assert not is_silent_rank("distributed")
