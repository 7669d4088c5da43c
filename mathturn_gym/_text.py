"""Texts that a stranger wrote, made safe to show: nothing in them moves the cursor, hides, or turns the line around."""

from __future__ import annotations

import html
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mathturn_gym.types import Verdict

__all__ = ["html_text", "shorten", "verdict_text", "visible"]

_KEPT: Final = frozenset("\n\t")


def visible(text: str) -> str:
    r"""The text with every character that shows nothing replaced by one that does.

    Control characters become their pictures (escape is ␛); what formats or hides (bidirectional controls, zero-width
    characters, tags, lone surrogates) becomes its number.

    >>> visible("a\x1b[2Jb\u202ec")
    'a␛[2Jb⟨U+202E⟩c'
    """
    if text.isprintable():
        return text
    return "".join(c if c in _KEPT or c.isprintable() else _picture(c) for c in text)


def html_text(text: str) -> str:
    r"""The text as HTML that shows it, `visible` and with no markup in it.

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
    """The text as a literal of about `limit` characters at most: what a `repr` shows of it.

    >>> print(shorten("abcdefghijk", 8))
    'abcdefg…'
    """
    return repr(text) if len(text) <= limit else repr(text[: limit - 1] + "…")


def verdict_text(verdict: Verdict) -> str:
    """A verdict in a line: `wrong (different) · answer 41`."""
    answer = "" if verdict.answer is None else f" · answer {verdict.answer}"
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"{verdict.status.value}{reason}{answer}"
