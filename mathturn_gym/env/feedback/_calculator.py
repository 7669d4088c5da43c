"""Repeats the arithmetic that a response wrote, exactly and within bounds: no names, no calls, no `eval`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_TAIL: Final = 4_000
_MAX_TOKENS: Final = 80
_MAX_DIGITS: Final = 60
_MAX_POWER: Final = 64

_SPELLINGS: Final = (
    (re.compile(r"\\d?frac\s*\{(-?\d{1,40})\}\s*\{(-?\d{1,40})\}"), r"(\1/\2)"),
    (re.compile(r"\\(?:cdot|times)\b|[·×⋅]"), "*"),
    (re.compile(r"\\div\b|÷"), "/"),
    (re.compile(r"\\(?:left|right)\b|\\[,;! ]|\\\$|\$"), " "),
    (re.compile(r"[−–]"), "-"),
)
_CALCULATION: Final = re.compile(
    r"(?<![\w.^*/+(-])(?P<left>[-+(]{0,20}\d[\d.()+\-*/^ \t]{0,200})=[ \t]*(?P<right>-?\d+(?:\.\d+|/\d+)?)?"
)
_TOKEN: Final = re.compile(r"[ \t]*(\d+(?:\.\d+)?|[-+*/^()])")


@dataclass(frozen=True, slots=True)
class Calculation:
    """A calculation of a response."""

    left: str  # what it calculated, spaces removed
    right: str | None  # what it said that this is, or None
    value: str  # what it is


def last_calculation(response: str) -> Calculation | None:
    """The last `expression = …` that is arithmetic in the last 4,000 characters of a response, or None.

    >>> last_calculation("So 12*3 + 4 = 41, and x = 5.")
    Calculation(left='12*3+4', right='41', value='40')
    >>> last_calculation("9^9^9 = big") is None
    True
    """
    text = response[-_TAIL:]
    for pattern, plain in _SPELLINGS:
        text = pattern.sub(plain, text)
    for match in reversed(list(_CALCULATION.finditer(text))):
        left = "".join(match["left"].split())
        if text[: match.start()].rstrip().endswith(tuple("+-*/^")):
            continue  # the end of a longer expression
        while left.startswith("(") and left.count("(") > left.count(")"):
            left = left[1:]
        if not any(sign in left[1:] for sign in "+-*/^"):
            continue  # a number alone is no calculation
        value = _evaluate(left)
        if value is not None:
            return Calculation(left, match["right"], str(value))
    return None


class _NoNumberError(Exception):
    """The expression has no value here: not arithmetic, or too large."""


def _evaluate(text: str) -> Fraction | None:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) >= _MAX_TOKENS:
            return None
        tokens.append(match[1])
        at = match.end()
    try:
        reader = _Reader(tokens)
        value = reader.sum()
        return value if reader.at == len(tokens) else None
    except _NoNumberError:
        return None


class _Reader:
    """Recursive descent over at most 80 tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def _next(self, *signs: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at] in signs:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def sum(self) -> Fraction:
        value = self._product()
        while sign := self._next("+", "-"):
            other = self._product()
            value = _bounded(value + other if sign == "+" else value - other)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._next("*", "/"):
            other = self._signed()
            if sign == "/" and not other:
                raise _NoNumberError
            value = _bounded(value * other if sign == "*" else value / other)
        return value

    def _signed(self) -> Fraction:
        if self._next("-"):
            return -self._signed()
        if self._next("+"):
            return self._signed()
        return self._power()

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._next("^"):
            return base
        exponent = self._signed()
        if exponent.denominator != 1 or abs(exponent) > _MAX_POWER or (not base and exponent < 0):
            raise _NoNumberError
        return _bounded(base ** int(exponent))

    def _atom(self) -> Fraction:
        if self._next("("):
            value = self.sum()
            if not self._next(")"):
                raise _NoNumberError
            return value
        if self.at < len(self.tokens) and self.tokens[self.at][0].isdigit():
            self.at += 1
            token = self.tokens[self.at - 1]
            if len(token) <= _MAX_DIGITS:
                return Fraction(token)
        raise _NoNumberError


def _bounded(value: Fraction) -> Fraction:
    limit = 10**_MAX_DIGITS
    if abs(value.numerator) >= limit or value.denominator >= limit:
        raise _NoNumberError
    return value
