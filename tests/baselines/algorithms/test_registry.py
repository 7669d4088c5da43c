"""Algorithms by name: what is registered, what they read, and a user's own."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import mathturn_gym.baselines as baselines
from mathturn_gym.baselines import Algorithm, RunConfig, register, train
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.algorithms._registry import algorithm_from_json, algorithm_named
from mathturn_gym.baselines.algorithms.grpo import GRPO
from mathturn_gym.errors import InvalidValueError

LANGUAGE_MODEL = sorted(name for name, kind in registered().items() if kind.kind == "language model")
CLASSIC = sorted(name for name, kind in registered().items() if kind.kind == "classic")


def test_what_is_registered() -> None:
    assert set(LANGUAGE_MODEL) == {
        "clipped_reinforce",
        "dr_grpo",
        "grpo",
        "gspo",
        "online_rft",
        "ppo",
        "reinforce",
        "reinforce_pp",
        "reinforce_pp_baseline",
        "rloo",
        "scaled_dr_grpo",
        "shrunk_rloo",
        "turn_ppo",
        "turn_reinforce_pp",
        "turn_rloo",
    }
    assert set(CLASSIC) == {"maskable_ppo", "qr_dqn", "recurrent_ppo", "sb3_a2c", "sb3_dqn", "sb3_ppo", "trpo"}


FILES = ("reinforce", "rloo", "grpo", "ppo", "online_rft")


@pytest.mark.parametrize("name", LANGUAGE_MODEL)
def test_each_has_a_module_a_source_and_a_public_name(name: str) -> None:
    kind = registered()[name]
    # A variant stands in its method's file.
    assert kind.__module__ in {f"mathturn_gym.baselines.algorithms.{file}" for file in FILES}
    assert kind.title
    assert kind.source
    assert getattr(baselines, kind.__name__) is kind
    assert algorithm_named(name) is kind
    documented = inspect.getdoc(kind) or ""
    for base in kind.__mro__:
        documented += base.__doc__ or ""
    for option in dataclasses.fields(kind):
        assert f"{option.name}:" in documented, f"{name} does not say what {option.name} is"


@pytest.mark.parametrize("name", [*LANGUAGE_MODEL, *CLASSIC])
def test_each_survives_json_and_refuses_what_it_does_not_read(name: str) -> None:
    algorithm = registered()[name].from_options({} if name in CLASSIC else {"kl_weight": [0.5, 0.0]})
    assert algorithm_from_json(json.loads(json.dumps(algorithm.to_json()))) == algorithm
    with pytest.raises(InvalidValueError, match=r"(does not read|unknown option of) .*no_such_option"):
        registered()[name].from_options({"no_such_option": 1})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("clipped_reinforce", {"clip": -0.1}, r"clipped_reinforce: clip must be a finite number in \[0, 1\]|clip must"),
        ("ppo", {"gae_lambda": 1.1}, "ppo: gae_lambda must"),
        ("ppo", {"critic_learning_rate": -1.0}, "ppo: critic_learning_rate must"),
        ("reinforce", {"baseline_decay": 2}, "reinforce: baseline_decay must"),
        ("reinforce", {"discount": 1.5}, "reinforce: discount must"),
        ("grpo", {"group_size": 1}, "grpo centers rewards by their group: group_size must be 2 at least, got 1"),
        ("grpo", {"group_size": 2.5}, "grpo: group_size must be an integer"),
        ("gspo", {"kl_weight": -1.0}, "gspo: kl_weight must"),
        ("gspo", {"kl_weight": [1.0, -1.0]}, "gspo: kl_weight must"),
        ("grpo", {"reward_kl": -1.0}, "grpo: reward_kl must"),
        ("grpo", {"clip_high": -1.0}, "grpo: clip_high must"),
        ("shrunk_rloo", {"shrinkage": -1.0}, "shrunk_rloo: shrinkage must"),
        ("shrunk_rloo", {"group_size": 0}, "shrunk_rloo: group_size must"),
        ("online_rft", {"reward_kl": 0.1}, "online_rft reads verdicts, not rewards"),
        ("online_rft", {"selection": "turns"}, "unknown selection 'turns': did you mean 'turn'"),
        ("online_rft", {"entropy_weight": "x"}, "online_rft: entropy_weight must"),
        ("turn_rloo", {"scale_advantages": 1}, "turn_rloo: scale_advantages must be true or false"),
        ("grpo", {"dual_clip": 1.0}, "grpo: dual_clip must be above 1, got 1.0"),
        ("ppo", {"ratio": "turns"}, "unknown ratio 'turns': did you mean 'turn'"),
        ("rloo", {"kl": "k4"}, "unknown kl 'k4'"),
        ("turn_rloo", {"normalization": "tokens"}, "unknown normalization 'tokens': did you mean 'token'"),
    ],
)
def test_options_outside_their_range_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        registered()[name].from_options(options)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("reinforce", "estimator"),
        ("reinforce", "critic_learning_rate"),
        ("reinforce", "clip"),
        ("turn_ppo", "group_size"),
        ("ppo", "group_size"),
        ("grpo", "gae_lambda"),
        ("online_rft", "clip"),
        ("rloo", "scale_advantages"),
        ("dr_grpo", "scale_advantages"),
    ],
)
def test_an_option_that_is_not_read_is_an_error_that_names_it(name: str, option: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} does not read '{option}': unknown option"):
        algorithm_from_json({"name": name, option: 1})


def test_a_name_belongs_to_one_algorithm() -> None:
    with pytest.raises(InvalidValueError, match=r"algorithm 'grpo' is mathturn_gym\.baselines\.algorithms\.grpo:GRPO"):

        @register("grpo", title="mine", source="mine")
        @dataclasses.dataclass(frozen=True, kw_only=True)
        class Mine(Algorithm):
            def credit(self, episodes: Any, state: Any) -> Any: ...

            def loss(self, logprobs: Any, part: Any, state: Any) -> Any: ...

    assert registered()["grpo"] is GRPO


OWN = '''
from dataclasses import dataclass

import numpy as np

from mathturn_gym.baselines import Algorithm


@dataclass(frozen=True, kw_only=True)
class BestTurn(Algorithm):
    """Only the turns whose reward is above `floor` are made likelier."""

    floor: float = 0.0

    def credit(self, episodes, state):
        return [(episode.rewards > self.floor).astype(np.float32) for episode in episodes]

    def loss(self, logprobs, part, state):
        return part.policy_loss(logprobs, objective="policy_gradient", ratio=None)


@dataclass(frozen=True, kw_only=True)
class Hopeless(BestTurn):
    def credit(self, episodes, state):
        return [np.zeros(1, np.float32)]


not_one = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a user's module in the current folder."""
    name = f"own_algorithms_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_users_algorithm_trains_and_is_found_again(own: str, small: Any, tmp_path: Path) -> None:
    config: RunConfig = small(f"{own}:BestTurn", {"floor": 0.5, "entropy_weight": 0.01})
    assert config.algorithm.to_json()["name"] == f"{own}:BestTurn"
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    done = train(config, run_dir=tmp_path / "run")
    assert done.status == "finished"
    assert done.history[1]["train/grad_norm"] > 0
    with pytest.raises(
        InvalidValueError, match=r"options of .*BestTurn: entropy_weight, kl_weight, kl, reward_kl, floor"
    ):
        small(f"{own}:BestTurn", {"flor": 0.5})
    with pytest.raises(InvalidValueError, match="advantages"):
        train(small(f"{own}:Hopeless"), run_dir=tmp_path / "hopeless")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{own}:Nothing", "cannot be imported: AttributeError"),
        ("{own}:not_one", "must be a subclass of mathturn_gym.baselines.Algorithm, got 3"),
        ("no_such_module:X", "cannot be imported: ModuleNotFoundError"),
        (":X", "must be an import path 'module:name'"),
        ("gropo", "did you mean 'grpo'"),
    ],
)
def test_names_that_lead_nowhere(own: str, path: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        algorithm_named(path.format(own=own))


def test_a_class_that_nobody_registered_goes_by_its_import_path() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(GRPO):
        patience: float = 0.5

    assert GRPO.name == "grpo"
    assert Mine(patience=0.7).name == f"{__name__}:{Mine.__qualname__}"
    assert (Mine.title, Mine.source) == ("Mine", "your own")
