"""Tokenizers are loaded without torch, and are the ones that AutoTokenizer loads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mathturn_gym.env.dialogue import Dialogue, load_tokenizer
from mathturn_gym.env.dialogue._tokenizers import class_without_torch
from mathturn_gym.policies import BUILTIN_PATH

NAMES = ["builtin", "gpt2_chatml", "llama3", "mistral-v3", "qwen2.5", "qwen2.5_sys"]
TEXT = "<|im_start|>user\nWhat is 3\u00d7(4+5)?  \n\n<|eot_id|>[INST] \\boxed{27}</s><think>\u4e60 \U0001f600"


def folder_of(name: str, request: pytest.FixtureRequest) -> Path:
    if name == "builtin":
        return BUILTIN_PATH
    path: Path = request.getfixturevalue("shared") / "golden" / "real" / "tokenizers" / name
    return path


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_tokenizer_that_auto_tokenizer_loads(name: str, request: pytest.FixtureRequest) -> None:
    folder = folder_of(name, request)
    assert class_without_torch(folder) is not None
    ours, other = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert type(ours) is type(other)
    assert ours.chat_template == other.chat_template
    assert ours.special_tokens_map == other.special_tokens_map
    assert ours.all_special_ids == other.all_special_ids
    assert ours.added_tokens_decoder == other.added_tokens_decoder
    assert ours.get_vocab() == other.get_vocab()
    assert ours.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()
    for how in ({}, {"add_special_tokens": False}, {"add_special_tokens": False, "split_special_tokens": True}):
        assert ours(TEXT, **how)["input_ids"] == other(TEXT, **how)["input_ids"]
    assert ours.clean_up_tokenization_spaces == other.clean_up_tokenization_spaces
    mine, theirs = Dialogue(ours), Dialogue(other)
    assert mine.prompt_ids(TEXT).tolist() == theirs.prompt_ids(TEXT).tolist()
    assert mine.end_of_turn == theirs.end_of_turn


CLASSES: list[str | None] = [
    "TokenizersBackend",
    "PreTrainedTokenizerFast",
    "PreTrainedTokenizer",
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
]
CLASSES += ["Qwen2Tokenizer", "Qwen2TokenizerFast", "LlamaTokenizerFast", "BertTokenizer", "MyTokenizer", None]


@pytest.mark.parametrize("model_type", [None, "llama", "gpt2", "qwen2", "qwen3", "phi3", "modernbert"])
@pytest.mark.parametrize("declared", CLASSES)
def test_the_class_is_the_one_that_auto_tokenizer_chooses(
    declared: str | None, model_type: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(BUILTIN_PATH / "tokenizer.json", tmp_path)
    config = json.loads((BUILTIN_PATH / "tokenizer_config.json").read_text())
    del config["tokenizer_class"]
    config |= {} if declared is None else {"tokenizer_class": declared}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    found = class_without_torch(tmp_path)
    if found is None:
        assert declared not in CLASSES[:3] or model_type in ("qwen2", "phi3", "modernbert")
    else:
        assert type(AutoTokenizer.from_pretrained(tmp_path)).__name__ == found


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (
            "tokenizer_config.json",
            {"tokenizer_class": "TokenizersBackend", "auto_map": {"AutoTokenizer": ["a.B", None]}},
        ),
        ("tokenizer_config.json", {"tokenizer_class": 3}),
        ("tokenizer_config.json", ["TokenizersBackend"]),
        ("config.json", {"model_type": "llama", "auto_map": {"AutoConfig": "a.B"}}),
        ("config.json", {"model_type": ["llama"]}),
        ("config.json", "llama"),
    ],
)
def test_what_is_not_plain_is_left_to_auto_tokenizer(file: str, content: Any, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUILTIN_PATH / name, tmp_path)
    assert class_without_torch(tmp_path) == "TokenizersBackend"
    (tmp_path / file).write_text(json.dumps(content))
    assert class_without_torch(tmp_path) is None


def test_an_environment_starts_without_torch() -> None:
    """Counts modules, not seconds: with AutoTokenizer there are about 2,500."""
    code = (
        "import gymnasium, mathturn_gym, sys\n"
        "env = gymnasium.make('MathMultiTurn-v0')\n"
        "prompt, info = env.reset(seed=0)\n"
        "env.step(prompt[:3])\n"
        "print(len(sys.modules), *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    count, *packages = done.stdout.split()
    assert not {"torch", "sympy", "scipy", "pandas", "pydantic", "rich"} & set(packages)
    assert int(count) < 900
