"""What the families share: drawing numbers, writing mathematics in two forms, and exact values as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeVar

import numpy as np

from mathturn_gym.seeding import derive_seed

T = TypeVar("T")
_BLOCK = 32


class Draw:
    """Numbers drawn one after the other; they depend on `path`, a place in the tree of seeds, alone (see `derive_seed`).

    >>> Draw("example").between(1, 6) == Draw("example").between(1, 6)
    True
    """

    __slots__ = ("_left", "_rng")

    def __init__(self, *path: int | str) -> None:
        self._rng = np.random.Generator(np.random.Philox(key=derive_seed(*path)))
        self._left: list[float] = []

    def unit(self) -> float:
        """Uniform in [0, 1)."""
        if not self._left:  # in blocks: one call costs as much as a whole block
            self._left = self._rng.random(_BLOCK).tolist()
        return self._left.pop()

    def between(self, low: int, high: int) -> int:
        """Uniform in low..high, both included; for spans far below 2^53."""
        # From a float and not by rejection: one number of the stream for each call, so that later draws do not move
        # when bounds change.
        return low + math.floor(self.unit() * (high - low + 1))

    def nonzero(self, low: int, high: int) -> int:
        """The same without 0 (which must lie in low..high, or just outside it)."""
        # One value fewer, and those from 0 on moved up by one: uniform, without drawing again.
        number = self.between(low, high - 1) if low <= 0 <= high else self.between(low, high)
        return number + 1 if low <= 0 <= number else number

    def pick(self, choices: Sequence[T]) -> T:
        """One of them."""
        return choices[self.between(0, len(choices) - 1)]

    def distinct(self, low: int, high: int, count: int) -> list[int]:
        """`count` different numbers in low..high, in the order drawn."""
        found: list[int] = []
        while len(found) < count:
            number = self.between(low, high)
            if number not in found:
                found.append(number)
        return found

    def coprime(self, low: int, high: int, to: int) -> int:
        """Uniform among the numbers in low..high that share no factor with `to` (1 is among them, or another)."""
        while True:
            number = self.between(low, high)
            if math.gcd(number, to) == 1:
                return number


class Writer:
    """Writes mathematics as LaTeX or as plain text."""

    __slots__ = ("dot", "infinity", "pi", "tex")

    def __init__(self, tex: bool) -> None:
        self.tex = tex
        self.dot = r" \cdot " if tex else " * "
        self.pi = r"\pi" if tex else "pi"
        self.infinity = r"\infty" if tex else "infinity"

    def __call__(self, text: str) -> str:
        """A piece of mathematics inside a sentence."""
        return f"${text}$" if self.tex else text

    def frac(self, top: object, bottom: object) -> str:
        r"""`\frac{a}{b}`, or `a/b` with parentheses around what is not a single number or letter."""
        return rf"\frac{{{top}}}{{{bottom}}}" if self.tex else f"{_atom(top)}/{_atom(bottom)}"

    def number(self, value: Fraction | int) -> str:
        """A number; a fraction in plain text stands in parentheses."""
        value = Fraction(value)
        if value.denominator == 1:
            return str(value.numerator)
        if self.tex:
            return ("-" if value < 0 else "") + self.frac(abs(value.numerator), value.denominator)
        return f"({value})"

    def power(self, base: str, exponent: object) -> str:
        """`base^exponent`."""
        text = str(exponent)
        if self.tex:
            return f"{base}^{{{text}}}" if len(text) > 1 else f"{base}^{text}"
        return f"{base}^{text}" if text.isalnum() else f"{base}^({text})"

    def index(self, name: str, index: str) -> str:
        """The term of a sequence."""
        if not self.tex:
            return f"{name}({index})"
        return f"{name}_{{{index}}}" if len(index) > 1 else f"{name}_{index}"

    def root(self, inside: object) -> str:
        """A square root."""
        return rf"\sqrt{{{inside}}}" if self.tex else f"sqrt({inside})"

    def function(self, name: str, inside: str) -> str:
        """`sin(x)` and the like."""
        return rf"\{name}({inside})" if self.tex else f"{name}({inside})"

    def less(self, strict: bool, greater: bool) -> str:
        """An order sign with spaces around it."""
        sign = ">" if greater else "<"
        if strict:
            return f" {sign} "
        return (r" \ge " if greater else r" \le ") if self.tex else f" {sign}= "

    def polynomial(self, coefficients: Sequence[int], variable: str = "x") -> str:
        """Coefficients from the highest power down; `3x^2 - x + 5`."""
        parts: list[str] = []
        degree = len(coefficients) - 1
        for place, coefficient in enumerate(coefficients):
            if not coefficient:
                continue
            power = degree - place
            letters = "" if not power else variable if power == 1 else self.power(variable, power)
            size = "" if abs(coefficient) == 1 and letters else str(abs(coefficient))
            sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
            parts.append(f"{sign}{size}{letters}")
        return "".join(parts) or "0"

    def matrix(self, rows: Sequence[Sequence[Fraction | int]]) -> str:
        """A matrix; `[[1, 2], [3, 4]]` in plain text."""
        if self.tex:
            body = r" \\ ".join(" & ".join(self.number(value) for value in row) for row in rows)
            return rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"
        return "[" + ", ".join("[" + ", ".join(str(value) for value in row) + "]" for row in rows) + "]"


PLAIN: Final = Writer(False)
LATEX: Final = Writer(True)


def _atom(part: object) -> str:
    text = str(part)
    # 1/4x could be read as (1/4)x
    return text if text.isdecimal() or text.isalpha() else f"({text})"


def determinant(rows: Sequence[Sequence[int]]) -> int:
    """The determinant of a small matrix, by minors along its first row."""
    if len(rows) == 1:
        return rows[0][0]
    minors = ([[*row[:k], *row[k + 1 :]] for row in rows[1:]] for k in range(len(rows)))
    return sum((-1) ** k * rows[0][k] * determinant(minor) for k, minor in enumerate(minors))


def tuple_text(values: Sequence[Fraction | int]) -> str:
    """`(1, -2/3)`."""
    return "(" + ", ".join(map(str, values)) + ")"


def square_root(number: int) -> tuple[int, int]:
    """(k, r) with number = k² r and r without a square factor.

    >>> square_root(72)
    (6, 2)
    """
    outside, inside, factor = 1, number, 2
    while factor * factor <= inside:
        while inside % (factor * factor) == 0:
            inside //= factor * factor
            outside *= factor
        factor += 1
    return outside, inside


def surd_text(terms: Mapping[int, Fraction]) -> str:
    r"""The LaTeX of a sum of c·√r, given as r -> c with r free of squares.

    >>> surd_text({1: Fraction(-3, 2), 5: Fraction(1, 2)}), surd_text({3: Fraction(2)}), surd_text({})
    ('\\frac{-3+\\sqrt{5}}{2}', '2\\sqrt{3}', '0')
    """
    kept = {root: value for root, value in terms.items() if value}
    if not kept:
        return "0"
    if set(kept) == {1}:
        return str(kept[1])
    bottom = math.lcm(*(value.denominator for value in kept.values()))
    top = ""
    for root, value in sorted(kept.items()):
        size = abs(int(value * bottom))
        sign = "-" if value < 0 else "+" if top else ""
        body = str(size) if root == 1 else (str(size) if size > 1 else "") + rf"\sqrt{{{root}}}"
        top += sign + body
    if bottom == 1:
        return top
    if len(kept) == 1 and top.startswith("-"):
        return rf"-\frac{{{top[1:]}}}{{{bottom}}}"
    return rf"\frac{{{top}}}{{{bottom}}}"
