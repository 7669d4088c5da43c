from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import PHRASES, make_tiny_model, train_tokenizer

from mathturn_gym.env.dialogue import Dialogue, load_tokenizer
from mathturn_gym.env.feedback._registry import RIGHT_TEXT, WRONG_TEXT
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.problems import load_problems

TOKENIZER: Any = load_tokenizer("builtin")
# Lone surrogates are no text: they cannot be encoded at all.
TEXT = st.text(st.characters(codec="utf-8"))


def pieces(ids: Any) -> list[str]:
    return [TOKENIZER.decode([int(i)]) for i in ids]


@given(TEXT)
def test_any_text_comes_back_unchanged(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.sampled_from([*PHRASES, "<|im_end|>", "3", "+", ". ", "x", "Hint", " "])).map("".join))
def test_texts_made_of_its_phrases_come_back_unchanged(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_every_byte_has_an_id() -> None:
    everything = "".join(chr(i) for i in range(256)) + "\U0010ffff中🎲"
    assert TOKENIZER.decode(TOKENIZER.encode(everything)) == everything
    assert 256 < len(TOKENIZER) <= 512


def test_a_dialogue_uses_one_id_per_phrase_and_per_digit() -> None:
    dialogue = Dialogue("builtin")
    ids = [dialogue.prompt_ids("Solve 3x+4=19 for x.")]
    for turn, feedback in enumerate((WRONG_TEXT, f"{WRONG_TEXT} Hint: it is at most 4.", RIGHT_TEXT)):
        ids.append(np.array([*TOKENIZER.encode("\\boxed{5}"), TOKENIZER.eos_token_id]))
        ids.append(dialogue.feedback_ids(feedback, turn, ids[-1]))
    answer = ["\\boxed{", "5", "}", "<|im_end|>"]
    opening = ["\n", "<|im_start|>", "user\n"]
    closing = ["<|im_end|>", "\n", "<|im_start|>", "assistant\n"]
    assert pieces(np.concatenate(ids)) == [
        *["<|im_start|>", "user\n", "Solve ", "3", "x", "+", "4", "=", "1", "9", " for x.", *closing],
        *[*answer, *opening, WRONG_TEXT, *closing],
        *[*answer, *opening, WRONG_TEXT, " Hint: it is at most ", "4", ".", *closing],
        *[*answer, *opening, RIGHT_TEXT, *closing],
    ]


@pytest.mark.parametrize("name", ["lins", "add1", "guess8"])
def test_every_problem_is_short(name: str) -> None:
    source = load_problems(f"{name}:all")
    assert max(len(TOKENIZER.encode(source.get(0, i).prompt)) for i in range(50)) <= 11
    hints = {hint for i in range(20) for hint in source.get(0, i).hints}
    assert {len(TOKENIZER.encode(f"{WRONG_TEXT} Hint: {hint}")) for hint in hints} <= {4}


def test_it_adds_no_beginning_and_no_system_message() -> None:
    assert TOKENIZER.bos_token is None
    assert TOKENIZER.encode("7") == TOKENIZER.encode("7", add_special_tokens=False)
    text = TOKENIZER.apply_chat_template([{"role": "user", "content": "1+1?"}], tokenize=False)
    assert text == "<|im_start|>user\n1+1?<|im_end|>\n"
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_training_makes_the_shipped_tokenizer_again() -> None:
    trained: Any = train_tokenizer()
    assert trained.get_vocab() == TOKENIZER.get_vocab()
    shipped = json.loads((BUILTIN_PATH / "tokenizer.json").read_text(encoding="utf-8"))
    assert json.loads(trained.backend_tokenizer.to_str())["model"] == shipped["model"]
    assert trained.chat_template == TOKENIZER.chat_template


def test_the_shipped_folder_is_small_and_has_no_code() -> None:
    files = {file.name: file.stat().st_size for file in BUILTIN_PATH.iterdir()}
    assert sum(files.values()) < 600_000
    assert {name.rpartition(".")[2] for name in files} == {"json", "safetensors", "jinja"}
    assert "generation_config.json" not in files


def test_initial_weights_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (make_tiny_model(TOKENIZER, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    assert 110_000 < sum(p.numel() for p in make_tiny_model(TOKENIZER).parameters()) < 140_000
