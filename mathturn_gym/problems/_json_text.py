"""JSON documents read piece by piece: the elements of a list are parsed one at a time, whatever the document's size."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from mathturn_gym.errors import ProblemFileError

__all__ = ["JsonText"]

_CHUNK: Final = 1 << 16
_SPACE: Final = " \t\r\n"
_ESCAPE: Final = 12  # an escape of two surrogates: \ud83d\ude00


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class JsonText:
    """A document in UTF-8, at a place from which one goes forward only.

    Args:
        stream: Where its bytes come from.
        where: What messages call it.
        most: Characters that one value may have.
        refuse_constant: Called with NaN and the infinities; it must raise `ValueError`.
    """

    def __init__(self, stream: _Readable, where: str, most: int, refuse_constant: Callable[[str], None]) -> None:
        self._stream, self._where, self._most = stream, where, most
        self._decoder = json.JSONDecoder(parse_constant=refuse_constant)
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at = "", 0
        self._bytes = self._gone = 0
        self._ended = False

    def error(self, reason: str) -> ProblemFileError:
        """An error about the document."""
        return ProblemFileError(f"{self._where}: {reason}")

    def peek(self) -> str:
        """The next character that is no white space, or "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> str:
        """Goes past the next character, which must be one of those expected."""
        found = self.peek()
        if not found or found not in expected:
            raise self.error(
                f"is not JSON: expected one of {' '.join(expected)}, got {found or 'the end'!r}{self._place()}"
            )
        self._at += 1
        return found

    def value(self) -> Any:
        """Parses the next value."""
        self.peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
                # A number at the end of what was read may go on.
                if end < len(self._text) or not self._more():
                    self._at = end
                    return found
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > self._most:
                    raise self.error(f"a value is longer than {self._most:,} characters{self._place()}") from error
                if not self._may_be_cut(error) or not self._more():
                    raise self.error(f"is not JSON: {error.msg}{self._place(error.pos)}") from error
            except RecursionError as error:
                raise self.error(f"is not JSON that can be read: it is nested too deeply{self._place()}") from error
            except ValueError as error:
                raise self.error(f"is not JSON: {error}{self._place()}") from error

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more text may mend what was not JSON so far."""
        return error.pos >= len(self._text) - _ESCAPE or error.msg.startswith("Unterminated string")

    def elements(self) -> Iterator[Any]:
        """The values of a list."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            yield self.value()
            if self.take(",]") == "]":
                return

    def members(self) -> Iterator[str]:
        """The keys of an object; whoever gets one has to take its value before the next."""
        self.take("{")
        if self.peek() == "}":
            self.take("}")
            return
        while True:
            if self.peek() != '"':
                raise self.error(f"is not JSON: a key must be a text{self._place()}")
            key = self.value()
            self.take(":")
            yield str(key)
            if self.take(",}") == "}":
                return

    def _more(self) -> bool:
        """Reads on: as much again as is waiting already, so that a long value is not tried over and over."""
        if self._ended:
            return False
        waiting = len(self._text) - self._at
        raw = self._stream.read(max(_CHUNK, waiting))
        self._ended = not raw
        try:
            added = self._utf8.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            raise self.error(f"is not UTF-8 at byte {self._bytes + error.start}") from error
        self._bytes += len(raw)
        self._gone += self._at
        self._text, self._at = self._text[self._at :] + added, 0
        return bool(added) or not self._ended

    def _place(self, at: int | None = None) -> str:
        """Where, counted in characters of the document."""
        return f" (character {self._gone + (self._at if at is None else at) + 1:,})"
