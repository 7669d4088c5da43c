"""Environment and policy must speak the same ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from mathturn_gym import collect
from mathturn_gym.baselines import train
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.env.dialogue import Dialogue, load_tokenizer
from mathturn_gym.episodes.rollout import check_tokenizer
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies.config import BUILTIN_PATH
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.wrappers import load_policy


@pytest.fixture
def swapped(tmp_path: Path) -> str:
    """The built-in tokenizer with the ids of two digits exchanged: as large, and silently wrong."""
    folder = tmp_path / "swapped"
    shutil.copytree(BUILTIN_PATH, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    vocab["3"], vocab["7"] = vocab["7"], vocab["3"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return str(folder)


def vector_env(**keywords: Any) -> Any:
    return gym.make_vec("mathturn_gym:MathMultiTurn-v0", 2, problems="lins", num_turns=1, **keywords)


def test_a_tokenizer_that_is_not_the_policys_is_refused(swapped: str) -> None:
    """Issue 37: acc@3 fell from .672 to .234 without a word."""
    policy = load_policy("builtin", device="cpu")
    with pytest.raises(
        InvalidValueError, match=r"not the policy's: .*'[37]' is id \d+ here and \d+ there.*policy\.tokenizer"
    ):
        collect(vector_env(tokenizer=swapped), policy, 2)
    collect(vector_env(tokenizer=policy.tokenizer), policy, 2)
    collect(vector_env(tokenizer=str(BUILTIN_PATH)), policy, 2)  # loaded twice, but the same


def test_tokenizers_of_different_sizes_are_named_as_the_cause(swapped: str) -> None:
    larger = load_tokenizer(swapped)
    larger.add_tokens(["<more>"])
    with pytest.raises(InvalidValueError, match=r"tokens against [\d,]+, and .*tokenizer=policy\.tokenizer"):
        check_tokenizer(vector_env(tokenizer=larger), load_policy("builtin", device="cpu"))


def test_a_policy_without_a_tokenizer_is_not_checked(swapped: str) -> None:
    env = vector_env(tokenizer=swapped)
    assert len(collect(env, ScriptedPolicy(["\\boxed{1}"], Dialogue(swapped)), 2)) == 2


def test_training_says_so_before_it_makes_a_folder(swapped: str, tmp_path: Path) -> None:
    config = load_task("lins").config(None, {"env.tokenizer": swapped}, budget={"episodes": 64})
    with pytest.raises(InvalidValueError, match="the environment's tokenizer is not the policy's"):
        train(config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
