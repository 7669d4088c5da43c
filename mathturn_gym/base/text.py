"""Texts made safe to show, and the text of each token id."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Final

_KEPT: Final = frozenset("\n\t")


def visible(text: str) -> str:
    r"""Returns the text with every invisible character replaced by a visible one.

    Control characters become their pictures (escape is ␛). Bidirectional controls, zero-width characters, tags and lone
    surrogates become their numbers.

    >>> visible("a\x1b[2Jb\u202ec")
    'a␛[2Jb⟨U+202E⟩c'
    """
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or c.isprintable() else _picture(c) for c in text)


def html_text(text: str) -> str:
    r"""Returns the text as HTML, `visible` and with no markup in it.

    >>> html_text("<b>\x1b")
    '&lt;b&gt;␛'
    """
    return html.escape(visible(text))


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if unicodedata.category(character) == "Zs":  # a space of another width is a space
        return character
    return f"⟨U+{code:04X}⟩"


def shorten(text: str, limit: int = 48) -> str:
    """Returns the text as a literal of about `limit` characters at most, for a `repr`.

    >>> print(shorten("abcdefghijk", 8))
    'abcdefg…'
    """
    return repr(text) if len(text) <= limit else repr(text[: limit - 1] + "…")


_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE: Final = "▁"  # what SentencePiece writes for a space


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes (GPT-2's `bytes_to_unicode`)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


_ALPHABET: Final = _byte_alphabet()


class TokenTexts:
    r"""The texts of a tokenizer's ids, each computed once.

    A token that is part of a character is written as its bytes, `\xe2\x88`.

    Args:
        tokenizer: A Hugging Face tokenizer; None knows no texts.

    >>> from mathturn_gym.env.dialogue import load_tokenizer
    >>> TokenTexts(load_tokenizer("builtin"))(1)
    '<|im_start|>'
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer
        self._size = 0 if self._tokenizer is None else len(self._tokenizer)
        self._known: dict[int, str | None] = {}

    def __call__(self, token: int) -> str | None:
        """The text of an id, None where the tokenizer has no such id."""
        if token not in self._known:
            self._known[token] = self._text(token) if 0 <= token < self._size else None
        return self._known[token]

    def decode(self, tokens: Sequence[int]) -> str | None:
        """The text of several ids together, None where the tokenizer lacks one of them."""
        if self._tokenizer is None or any(not 0 <= token < self._size for token in tokens):
            return None
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def _text(self, token: int) -> str | None:
        assert self._tokenizer is not None
        raw = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(raw, str):  # a gap in the vocabulary
            return None
        byte = _BYTE.fullmatch(raw)
        if byte:
            return _bytes_text(bytes([int(byte[1], 16)]))
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        if raw.startswith(_SPACE):  # decoding a single token drops the space that it begins with
            return raw.replace(_SPACE, " ")
        if "\N{REPLACEMENT CHARACTER}" in text and all(character in _ALPHABET for character in raw):
            return _bytes_text(bytes(_ALPHABET[character] for character in raw))
        return text


def _bytes_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace")
