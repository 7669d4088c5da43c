from __future__ import annotations

import re
from pathlib import Path

import pytest

from mathturn_gym.base.text import TokenTexts
from mathturn_gym.env.dialogue import load_tokenizer

SAID = "Hello  ∑ world\n √2 你好\t🙂 is \\boxed{4}"


def joined(tokenizer: object, text: str) -> str:
    """The texts of a text's tokens put together, bytes joined into characters again."""
    texts = TokenTexts(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    whole = "".join(str(texts(token)) for token in ids)
    return re.sub(r"(?:\\x[0-9a-f]{2})+", lambda m: bytes.fromhex(m[0].replace("\\x", "")).decode(), whole)


def test_the_texts_of_tokens_are_the_text() -> None:
    assert joined(load_tokenizer("builtin"), "Solve 2x+1=15 for x.\n\\boxed{7}") == "Solve 2x+1=15 for x.\n\\boxed{7}"


@pytest.mark.parametrize("name", ["gpt2_chatml", "llama3", "mistral-v3", "qwen2.5"])
def test_the_texts_of_real_tokenizers(shared: Path, name: str) -> None:
    """Byte-level ones whose tokens are parts of characters, and SentencePiece, which puts a space before the first."""
    tokenizer = load_tokenizer(shared / "golden" / "real" / "tokenizers" / name)
    assert joined(tokenizer, SAID).removeprefix(" ") == SAID


def test_bytes_of_sentencepiece(shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "golden" / "tokenizers" / "llama2_spm")
    assert joined(tokenizer, SAID).removeprefix(" ") == SAID
    byte = tokenizer.convert_tokens_to_ids("<0xE2>")
    assert TokenTexts(tokenizer)(byte) == "\\xe2"


def test_ids_that_are_not_there_have_no_text() -> None:
    tokenizer = load_tokenizer("builtin")
    texts = TokenTexts(tokenizer)
    assert [texts(token) for token in (-1, len(tokenizer), 10**9)] == [None] * 3
    assert texts.decode([1, len(tokenizer)]) is None
    assert texts.decode([]) == ""
    assert TokenTexts(None)(1) is None
    assert TokenTexts(None).decode([1]) is None
