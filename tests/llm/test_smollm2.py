"""A real chat model, used as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.wrappers import load_policy

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks


@pytest.fixture(scope="module")
def policy(smollm2: Path) -> Any:
    return load_policy("smollm2", temperature=0, device="cpu")


def test_it_says_what_it_should(policy: Any) -> None:
    dialogue = Dialogue(policy.tokenizer)
    prompt = dialogue.prompt_ids("What is the capital of France?")
    (completion,) = policy.complete([prompt], max_tokens=[24])
    assert dialogue.text(completion.ids) == "The capital of France is Paris."
    assert not completion.truncated, "it closes its turn by itself"


def test_a_named_model_is_a_tokenizer_too(policy: Any) -> None:
    ids = Dialogue("smollm2").prompt_ids("1+1?")
    assert Dialogue(policy.tokenizer).decode(ids).endswith("<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n")


def test_the_folder_is_an_ordinary_one(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "float32"
    assert config["tie_word_embeddings"]


def test_digits_are_single_ids(policy: Any) -> None:
    """As the model was trained: GGUF files name their way of splitting text, and transformers does not read that name."""
    ids = policy.tokenizer("= 1234", add_special_tokens=False)["input_ids"]
    assert [policy.tokenizer.decode([i]) for i in ids] == ["=", " ", "1", "2", "3", "4"]


def test_an_adapter_notes_the_models_name(policy: Any, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    adapted = load_policy("smollm2", lora={"r": 2}, device="cpu", temperature=0)
    adapted.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "policy.json").read_text())["model"] == "smollm2"
    again = load_policy(tmp_path, device="cpu", temperature=0)
    prompt = Dialogue(policy.tokenizer).prompt_ids("What is the capital of France?")
    (said,), (before,) = again.complete([prompt], max_tokens=[8]), policy.complete([prompt], max_tokens=[8])
    assert np.array_equal(said.ids, before.ids)


def test_a_step_of_training_moves_it(smollm2: Path) -> None:
    """What `make demo-llm` does twelve times with 64 episodes, once with 4."""
    settings = {"batch_episodes": 4, "accumulate": 1, "evaluation.episodes": 0, "evaluation.every": 0, "threads": 1}
    trainer = Trainer(load_task("smol-add1").config(None, settings))
    try:
        before = [p.detach().clone() for p in trainer.model.parameters()]
        figures = trainer.step()
        moved = any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
        assert moved is not bool(figures["train/skipped"])
        assert figures["train/completion_tokens"] <= 12
    finally:
        trainer.close()
