"""`examples/one_file.py` computes what the trainer computes: advantages, log-probs and loss, to rounding."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mathturn_gym.baselines.algorithms._credit import RunningMeans
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.policies import BUILTIN_PATH

FILE = Path(__file__).parents[1] / "examples" / "one_file.py"


@pytest.fixture(scope="module")
def one_file() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model() -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(str(BUILTIN_PATH), dtype=torch.float32, trust_remote_code=False)
    return loaded.eval()


@pytest.fixture(scope="module")
def played(one_file: ModuleType, model: Any) -> list[Any]:
    torch.manual_seed(0)
    tokenizer = load_tokenizer("builtin")
    envs = [
        gym.make(
            "MathMultiTurnUntilCorrect-v0", problems="lins", tokenizer=tokenizer, num_turns=4, max_completion_tokens=8
        )
        for _ in range(12)
    ]
    ends = set(envs[0].unwrapped.dialogue.end_of_turn)  # type: ignore[attr-defined]
    return list(one_file.play(envs, model, ends, seeds=list(range(12))))


def test_it_is_read_on_one_screen() -> None:
    text = FILE.read_text(encoding="utf-8")
    ours = {
        line.split()[1] for line in text.splitlines() if line.startswith(("from mathturn_gym", "import mathturn_gym"))
    }
    assert ours == {"mathturn_gym", "mathturn_gym.policies"}, (
        "an example of its own uses the environment, and no trainer"
    )


def test_advantages_are_those_of_the_trainer(one_file: ModuleType) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = one_file.Baseline(4), RunningMeans(0.9)
    for _ in range(5):
        rewards = [rng.choice([-1.0, 1.0], size=rng.integers(1, 5)) for _ in range(16)]
        episodes = [one_file.Episode([], [], [], rewards=r.tolist()) for r in rewards]
        expected = theirs.scale(theirs.center(rewards), rewards)
        for mine, one in zip(ours.advantages(episodes, 0.0), expected, strict=True):
            np.testing.assert_allclose(mine, one, atol=1e-6)


def test_a_discount_adds_what_follows(one_file: ModuleType) -> None:
    episodes = [one_file.Episode([], [], [], rewards=[-1.0, 1.0]), one_file.Episode([], [], [], rewards=[1.0])]
    worth = one_file.Baseline(2).advantages(episodes, 0.5)
    assert worth[0][0] < 0 < worth[1][0], "a wrong turn before a right one is worth -0.5, the right one 1"
    assert worth[0][1] == 0.0


def test_what_was_sampled_has_the_log_probs_of_a_whole_pass(model: Any, played: list[Any]) -> None:
    """Padding, positions and the cache are right, and so is the mask: a shift by one would show at once."""
    said = 0
    for episode in played:
        assert len(episode.ids) == len(episode.turn_of) == len(episode.logprobs)
        with torch.no_grad():
            logits = model(torch.tensor([episode.ids])).logits[0].float()
        for at, (turn, noted) in enumerate(zip(episode.turn_of, episode.logprobs, strict=True)):
            if turn >= 0:
                whole = torch.log_softmax(logits[at - 1], -1)[episode.ids[at]]
                assert float(whole) == pytest.approx(noted, abs=2e-5)
                said += 1
    assert said > 40
    assert max(len(episode.rewards) for episode in played) == 4


def test_the_loss_is_that_of_the_trainer(one_file: ModuleType, model: Any, played: list[Any]) -> None:
    from mathturn_gym import collect, load_policy, pack
    from mathturn_gym.episodes.losses import policy_loss, token_logprobs
    from mathturn_gym.episodes.packing import model_inputs

    policy = load_policy("builtin", device="cpu", seed=3)
    envs = gym.make_vec(
        "MathMultiTurnUntilCorrect-v0",
        num_envs=8,
        problems="lins",
        num_turns=4,
        max_completion_tokens=8,
        tokenizer=policy.tokenizer,
    )
    episodes = collect(envs, policy, 8, seed=1)
    envs.close()
    worth = [np.linspace(-1, 1, episode.num_turns).astype(np.float32) for episode in episodes]
    packed = pack(episodes, advantages=worth)
    with torch.no_grad():
        logprobs, entropy = token_logprobs(policy.model(**model_inputs(packed), use_cache=False).logits, packed)
        shifted = packed.behavior_logprobs + 0.3 * torch.sign(torch.arange(packed.input_ids.shape[1]) % 3 - 1.0)
        expected = policy_loss(
            logprobs,
            packed.replace_tensors({"behavior_logprobs": torch.where(packed.loss_mask, shifted, 0.0)}),
            clip=0.2,
            normalization="token",
            entropy=entropy,
            entropy_weight=0.005,
        ).loss
    mine = []
    for episode in episodes:
        turn_of, logprobs_of = [-1] * len(episode.ids), [0.0] * len(episode.ids)
        for k, (start, end) in enumerate(episode.turn_spans.tolist()):
            for at in range(start, end):
                turn_of[at] = k
                logprobs_of[at] = float(episode.logprobs[at]) + 0.3 * float(np.sign(at % 3 - 1.0))
        mine.append(one_file.Episode(episode.ids.tolist(), turn_of, logprobs_of))
    with torch.no_grad():
        found = one_file.loss_of(policy.model, one_file.batch_of(mine, [w.tolist() for w in worth], "cpu"), 0.2, 0.005)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_it_trains_and_draws_its_curve(
    one_file: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--iterations 2 --batch 8 --minibatches 2 --evaluated 8 --every 1"
    history = one_file.train(one_file.arguments().parse_args([*given.split(), "--out", str(tmp_path / "out")]))
    assert [row["episodes"] for row in history] == [0.0, 8.0, 16.0]
    assert json.loads((tmp_path / "out" / "history.json").read_text()) == history
    assert (tmp_path / "out" / "curve.png").stat().st_size > 5_000
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert len(capsys.readouterr().out.splitlines()) == 3
