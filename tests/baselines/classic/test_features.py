"""The transformer behind classic algorithms: a Llama's numbers, from a Llama's weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import load_file
from tiny import Shape, make_tiny_model, train_tokenizer

from mathturn_gym.baselines.classic import WindowTransformer, language_model_kwargs, load_language_model, make_token_env
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import CheckpointError, InvalidValueError
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.policies.sampling import answer_ids

IDS = answer_ids(load_tokenizer("builtin"))
TASK: dict[str, Any] = {"problems": "lins", "num_turns": 4, "max_completion_tokens": 8}


@pytest.fixture(scope="module")
def language_model() -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(BUILTIN_PATH)
    return model.eval()


def windows(env: Any, count: int) -> np.ndarray[Any, Any]:
    """Observations of a random player: prompts, half answers, later turns."""
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    found = []
    for _ in range(count):
        found.append(observation)
        observation, _, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        if terminated or truncated:
            observation, _ = env.reset()
    return np.stack(found)


class TestALanguageModelsPolicy:
    @pytest.mark.parametrize("name", ["PPO", "A2C", "MaskablePPO", "TRPO"])
    def test_begins_as_the_models_distribution_restricted_to_the_ids(self, name: str, language_model: Any) -> None:
        import sb3_contrib
        import stable_baselines3

        masked = name == "MaskablePPO"
        restriction: dict[str, Any] = {"allowed_ids" if masked else "action_ids": IDS}
        env = make_token_env(**TASK, **restriction)
        kind = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
        model = kind("MlpPolicy", env, policy_kwargs=language_model_kwargs(BUILTIN_PATH), device="cpu", seed=0)
        load_language_model(model.policy, BUILTIN_PATH, None if masked else IDS)
        seen = windows(make_token_env(**TASK, action_ids=IDS), 80)
        masks = {"action_masks": np.tile(env.action_masks(), (80, 1))} if masked else {}
        with torch.no_grad():
            probs = model.policy.get_distribution(torch.as_tensor(seen), **masks).distribution.probs
            for row, window in zip(probs, seen, strict=True):
                context = torch.as_tensor(window[window < 405])[None]
                expected = language_model(input_ids=context).logits[0, -1, list(IDS)].softmax(-1)
                found = row[list(IDS)] if masked else row
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
                assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)

    def test_policies_that_read_the_extractor_through_something_keep_their_action_net(self) -> None:
        from sb3_contrib import RecurrentPPO

        env = make_token_env(**TASK, action_ids=IDS)
        kwargs = language_model_kwargs(BUILTIN_PATH, lstm_hidden_size=64)
        model = RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=kwargs, device="cpu", seed=0)
        before = model.policy.action_net.weight.clone()
        load_language_model(model.policy, BUILTIN_PATH, IDS)
        assert torch.equal(before, model.policy.action_net.weight)
        extractor = model.policy.features_extractor
        assert isinstance(extractor, WindowTransformer)
        theirs = load_file(BUILTIN_PATH / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(extractor.embed_tokens.weight, theirs)

    def test_mistakes(self, tmp_path: Path) -> None:
        from stable_baselines3 import PPO

        env = make_token_env(**TASK, action_ids=IDS)
        plain = PPO("MlpPolicy", env, device="cpu")
        with pytest.raises(InvalidValueError, match="language_model_kwargs"):
            load_language_model(plain.policy, BUILTIN_PATH, IDS)
        model = PPO("MlpPolicy", env, policy_kwargs=language_model_kwargs(BUILTIN_PATH), device="cpu")
        with pytest.raises(InvalidValueError, match="must be the 13 ids"):
            load_language_model(model.policy, BUILTIN_PATH, IDS[:5])
        with pytest.raises(CheckpointError, match=r"no readable config\.json"):
            language_model_kwargs(tmp_path)
        shutil.copytree(BUILTIN_PATH, tmp_path / "model")
        config = json.loads((tmp_path / "model" / "config.json").read_text())
        (tmp_path / "model" / "model.safetensors").write_bytes(b"broken")
        with pytest.raises(CheckpointError, match=r"no readable model\.safetensors"):
            load_language_model(model.policy, tmp_path / "model", IDS)
        (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "attention_bias": True}))
        with pytest.raises(CheckpointError, match="attention_bias"):
            language_model_kwargs(tmp_path / "model")
        other = make_tiny_model(train_tokenizer(), Shape(32, 1, 2, 64))
        other.save_pretrained(tmp_path / "other")
        with pytest.raises(CheckpointError, match="another shape"):
            load_language_model(model.policy, tmp_path / "other", IDS)


class TestWindowTransformer:
    def test_equals_a_llama_of_any_shape(self) -> None:
        """Random weights, three layers; rows of different lengths in one batch."""
        tokenizer = train_tokenizer()
        llama: Any = make_tiny_model(tokenizer, Shape(48, 3, 4, 80), seed=3)
        llama.eval()
        space = spaces.Box(0, len(tokenizer), (20,), np.int64)
        ours = WindowTransformer(space, width=48, layers=3, heads=4, feedforward=80)
        weights = llama.state_dict()
        ours.load_state_dict({k.removeprefix("model."): v for k, v in weights.items() if k.startswith("model.")})
        rows = torch.full((6, 20), float(len(tokenizer)))
        for row, length in enumerate((1, 20, 7, 3, 19, 12)):
            rows[row, :length] = torch.randint(0, len(tokenizer), (length,))
        with torch.no_grad():
            found = ours(rows)
            for row in range(6):
                ids = rows[row][rows[row] < len(tokenizer)].long()[None]
                hidden = llama(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, -1]
                torch.testing.assert_close(found[row], hidden, rtol=1e-5, atol=1e-5)

    def test_of_a_dict_it_adds_the_facts(self) -> None:
        from stable_baselines3 import A2C

        env = make_token_env(**TASK, action_ids=IDS, observation="dict", window=16)
        kwargs = {"features_extractor_class": WindowTransformer, "features_extractor_kwargs": {"layers": 1}}
        model = A2C("MultiInputPolicy", env, policy_kwargs=kwargs, device="cpu", n_steps=4, seed=0)
        assert model.policy.features_dim == 64 + 5 + 5
        before = [parameter.clone() for parameter in model.policy.features_extractor.parameters()]
        model.learn(8)
        after = model.policy.features_extractor.parameters()
        assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))  # every weight is used

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"width": 60, "heads": 4}, r"multiple of 2 \* heads"),
            ({"layers": 0}, "layers must be an integer >= 1"),
        ],
    )
    def test_arguments(self, changes: dict[str, int], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            WindowTransformer(spaces.Box(0, 9, (5,), np.int64), **changes)
        with pytest.raises(InvalidValueError, match="observation_space"):
            WindowTransformer(spaces.Box(0.0, 9.0, (5,), np.float32))
