"""Functions that are made of pieces: equal where they agree in every region between the zeros of their arguments.

An absolute value, a root or a logarithm is analytic wherever its argument is neither zero nor a pole. Points on one side
of a zero say nothing of the other side: |x+5| is x+5 at every positive point. So the zeros of all such arguments are
isolated (rational functions of the unknown, Sturm's theorem), and points are taken from every region between them and
outside of all of them. In several unknowns the same is done along straight lines.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from mathturn_gym.verifier.reading._nodes import (
    HiddenError,
    Node,
    NodeKind,
    UndefinedError,
    Visitor,
    has_kind,
    symbols,
    walk,
)
from mathturn_gym.verifier.tiers._fields import ExactField, FloatField, exact
from mathturn_gym.verifier.tiers._precise import Pair, PreciseField, is_chance, near, precisely

Polynomial: TypeAlias = tuple[Fraction, ...]
"""Coefficients, the constant first; the last one is not zero, and zero has none."""

_MAX_DEGREE = 12
# The zeros that are isolated: of 16 with unlike coefficients that takes ten seconds.
_MAX_PRODUCT = 12
_MAX_ON_LINES = 9
_MAX_ROUNDS = 4
_LINES = 8
_POINTS = 3
# Nodes that are evaluated to sixty digits, some ten microseconds each.
_MAX_WORK = 25_000
_ONE: Polynomial = (Fraction(1),)
_LOGARITHMS = frozenset(("ln", "log", "lg"))
_BOUNDED = frozenset(("arcsin", "arccos", "asin", "acos"))
_STEPS: Final[tuple[NodeKind, ...]] = ("floor", "ceil", "fact", "binom")


def _trimmed(values: Sequence[Fraction]) -> Polynomial:
    end = len(values)
    while end and not values[end - 1]:
        end -= 1
    if end > _MAX_PRODUCT + 1:
        raise UndefinedError("degree")
    return tuple(values[:end])


def _plus(a: Polynomial, b: Polynomial) -> Polynomial:
    if len(a) < len(b):
        a, b = b, a
    return _trimmed([x + (b[i] if i < len(b) else 0) for i, x in enumerate(a)])


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    if not a or not b:
        return ()
    out = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[i + j] += x * y
    return _trimmed(out)


def _divided(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and remainder."""
    rest, out = list(a), [Fraction(0)] * max(0, len(a) - len(b) + 1)
    while len(rest) >= len(b):
        factor, shift = rest[-1] / b[-1], len(rest) - len(b)
        out[shift] = factor
        for i, x in enumerate(b):
            rest[shift + i] -= factor * x
        rest.pop()
        rest = list(_trimmed(rest))
    return _trimmed(out), _trimmed(rest)


def _gcd(a: Polynomial, b: Polynomial) -> Polynomial:
    while b:
        a, b = b, tuple(x / b[-1] for x in _divided(a, b)[1]) if len(b) > 1 else ()
        if b == () and len(a) == 1:
            return _ONE
    return tuple(x / a[-1] for x in a)


def _slope(a: Polynomial) -> Polynomial:
    return tuple(i * x for i, x in enumerate(a) if i)


def _at(a: Polynomial, t: Fraction) -> Fraction:
    return functools.reduce(lambda total, x: total * t + x, reversed(a), Fraction(0))


def _roots(polynomial: Polynomial) -> list[tuple[Fraction, Fraction]]:
    """Disjoint intervals, in their order, each with exactly one real root of a polynomial (none at an end)."""
    if len(polynomial) < 2:
        return []
    common = _gcd(polynomial, _slope(polynomial))
    simple = _divided(polynomial, common)[0] if len(common) > 1 else polynomial
    chain = [simple, _slope(simple)]
    while len(chain[-1]) > 1:
        rest = _divided(chain[-2], chain[-1])[1]
        if not rest:
            break
        size = abs(rest[-1])
        chain.append(tuple(-x / size for x in rest))

    def changes(t: Fraction) -> int:
        signs = [value > 0 for value in (_at(member, t) for member in chain) if value]
        return sum(one != other for one, other in itertools.pairwise(signs))

    bound = 1 + max(abs(x / simple[-1]) for x in simple[:-1])
    found: list[tuple[Fraction, Fraction]] = []
    open_ones = [(-bound, bound, changes(-bound), changes(bound))]
    while open_ones:
        low, high, left, right = open_ones.pop()
        if left - right == 0:
            continue
        if left - right == 1 and high - low < Fraction(1, 64):
            found.append((low, high))
            continue
        middle = (low + high) / 2
        while not _at(simple, middle):
            middle += (high - low) / 1013
        between = changes(middle)
        open_ones += [(middle, high, between, right), (low, middle, left, between)]
    found.sort()
    return [_narrowed(simple, *interval) for interval in found]


def _narrowed(simple: Polynomial, low: Fraction, high: Fraction) -> tuple[Fraction, Fraction]:
    """A root's interval, narrow enough to leave room between it and its neighbors."""
    sign = _at(simple, low) > 0
    for _ in range(30):
        middle = (low + high) / 2
        value = _at(simple, middle)
        if not value:
            return middle - (high - low) / 64, middle + (high - low) / 64
        low, high = (middle, high) if (value > 0) == sign else (low, middle)
    return low, high


def _positive(node: Node, *, zero: bool = False) -> bool:
    """Whether a tree is certainly positive wherever it is real, or not negative where `zero` is allowed."""
    if not symbols(node):
        value = exact(node)
        return (value is not None and (value > 0 or (zero and not value))) or node.kind == "const"
    if node.kind == "pow":
        power = exact(node.args[1])
        if power is None:
            return bool(symbols(node.args[0])) or _positive(node.args[0])
        if power.denominator == 1 and not power % 2:
            return zero or _positive(node.args[0])
        return _positive(node.args[0], zero=zero and power > 0)
    if node.kind == "fn" and node.value in ("exp", "cosh"):
        return True
    if node.kind == "abs":
        return zero or _positive(node.args[0])
    if node.kind == "add":
        return all(_positive(arg, zero=True) for arg in node.args) and (zero or any(map(_positive, node.args)))
    if node.kind in ("mul", "div"):
        return all(_positive(arg, zero=zero and node.kind == "mul") for arg in node.args)
    if node.kind == "root":
        # The zeros of what is under it are found where it stands; an odd root may be negative.
        degree = exact(node.args[1])
        return degree is None or not degree % 2 or _positive(node.args[0], zero=zero)
    return False


Quotient: TypeAlias = tuple[Polynomial, Polynomial]


class _Critical(Visitor["Quotient | None"]):
    """A tree along a line, as a quotient of polynomials near `t`, or None where it is no such thing.

    What may be zero or a pole where the tree is not analytic is kept in `found`.

    Args:
        line: Each unknown as a polynomial of the parameter.
        t: Where the signs of absolute values are read.

    Raises:
        UndefinedError: an argument whose zeros cannot be found.
    """

    def __init__(self, line: Mapping[str, Polynomial], t: Fraction) -> None:
        self.line = line
        self.t = t
        self.found: set[Polynomial] = set()

    def _record(self, argument: Quotient | None, node: Node) -> None:
        if argument is None:
            if _positive(node):
                return
            raise UndefinedError("zeros of an argument")
        for part in argument:
            if len(part) - 1 > _MAX_DEGREE:
                raise UndefinedError("degree")
            if len(part) > 1:
                self.found.add(part)

    def _constant(self, node: Node) -> Quotient:
        value = exact(node)
        if value is None:
            number = FloatField({}).visit(node)[0]
            if number.imag:
                raise UndefinedError("complex")
            # Zeros that are this near to the true ones are on the same side of every point that is taken.
            value = Fraction(number.real)
        return _trimmed([value]), _ONE

    def visit(self, node: Node) -> Quotient | None:
        """See `Visitor.visit`."""
        if node.kind not in ("num", "sym") and not symbols(node):
            return self._constant(node)
        return super().visit(node)

    def visit_num(self, node: Node) -> Quotient:
        assert isinstance(node.value, Fraction)
        return _trimmed([node.value]), _ONE

    def visit_sym(self, node: Node) -> Quotient:
        return self.line[str(node.value)], _ONE

    visit_text = visit_sym

    def visit_add(self, node: Node) -> Quotient | None:
        args = [self.visit(arg) for arg in node.args]
        total: Quotient | None = ((), _ONE)
        for arg in args:
            if arg is None or total is None:
                total = None
            else:
                total = _plus(_times(total[0], arg[1]), _times(arg[0], total[1])), _times(total[1], arg[1])
        return total

    def visit_neg(self, node: Node) -> Quotient | None:
        arg = self.visit(node.args[0])
        return None if arg is None else (tuple(-x for x in arg[0]), arg[1])

    def visit_mul(self, node: Node) -> Quotient | None:
        args = [self.visit(arg) for arg in node.args]
        total: Quotient | None = (_ONE, _ONE)
        for arg in args:
            total = None if arg is None or total is None else (_times(total[0], arg[0]), _times(total[1], arg[1]))
        return total

    def visit_div(self, node: Node) -> Quotient | None:
        top, bottom = (self.visit(arg) for arg in node.args)
        if top is None or bottom is None:
            return None
        if not bottom[0]:
            raise UndefinedError("division by zero")
        return _times(top[0], bottom[1]), _times(top[1], bottom[0])

    visit_obelus = visit_div

    def visit_percent(self, node: Node) -> Quotient | None:
        arg = self.visit(node.args[0])
        return None if arg is None else (tuple(x / 100 for x in arg[0]), arg[1])

    def visit_pow(self, node: Node) -> Quotient | None:
        base, exponent = node.args
        power = exact(exponent)
        inner = self.visit(base)
        if power is None or power.denominator != 1:
            if symbols(exponent):
                self.visit(exponent)
            if symbols(base):
                self._record(inner, base)
            elif inner is None or not inner[0] or inner[0][0] <= 0:
                raise UndefinedError("a power of what is not positive")
            return None
        if inner is None:
            return None
        if abs(power) > _MAX_DEGREE:
            raise UndefinedError("degree")
        if power < 0:
            if not inner[0]:
                raise UndefinedError("division by zero")
            inner = inner[1], inner[0]
        result: Quotient = (_ONE, _ONE)
        for _ in range(abs(int(power))):
            result = _times(result[0], inner[0]), _times(result[1], inner[1])
        return result

    def visit_root(self, node: Node) -> None:
        if symbols(node.args[1]):
            self._record(self.visit(node.args[1]), node.args[1])
        self._record(self.visit(node.args[0]), node.args[0])

    def visit_abs(self, node: Node) -> Quotient | None:
        arg = self.visit(node.args[0])
        self._record(arg, node.args[0])
        if arg is None:
            return None
        below = _at(arg[1], self.t)
        if not below:
            raise UndefinedError("pole")
        return arg if _at(arg[0], self.t) * below >= 0 else (tuple(-x for x in arg[0]), arg[1])

    def visit_fn(self, node: Node) -> None:
        args = [self.visit(arg) for arg in node.args]
        if node.value in _LOGARITHMS:
            for arg, tree in zip(args, node.args, strict=True):
                if symbols(tree):
                    self._record(arg, tree)
        elif node.value in _BOUNDED:
            if args[0] is None:
                raise UndefinedError("zeros of an argument")
            top, bottom = args[0]
            self._record((_plus(top, bottom), bottom), node)
            self._record((_plus(top, tuple(-x for x in bottom)), bottom), node)

    def visit_other(self, node: Node) -> None:
        raise UndefinedError(node.kind)


class _RealField(PreciseField):
    """Decimals of 60 digits; odd roots of negative numbers are real."""

    def power(self, base: Pair, exponent: Pair, node: Node) -> Pair:
        """See `Field.power`."""
        power = exact(node)
        if power is not None and power.denominator % 2 and power.denominator > 1 and not base[1] and base[0] < 0:
            root = self.root((-base[0], base[1]), (Decimal(power.denominator), Decimal(0)), _degree_node(power))
            sign = -1 if power.numerator % 2 else 1
            value = self._integer_power(root, power.numerator)
            return sign * value[0], value[1]
        return super().power(base, exponent, node)

    def root(self, base: Pair, degree: Pair, node: Node) -> Pair:
        """See `Field.root`."""
        n = exact(node)
        if n is not None and n.denominator == 1 and n % 2 and not base[1] and base[0] < 0:
            real, _ = super().root((-base[0], Decimal(0)), degree, node)
            return -real, Decimal(0)
        return super().root(base, degree, node)


def _degree_node(power: Fraction) -> Node:
    return Node("num", (), Fraction(power.denominator))


def piecewise(*nodes: Node) -> bool:
    """Whether trees have a part that is not analytic everywhere, poles apart: an absolute value, a root, a logarithm."""
    for item in (item for node in nodes for item in walk(node)):
        if item.kind in ("abs", "root", *_STEPS) and symbols(item):
            return True
        if item.kind == "fn" and item.value in (*_LOGARITHMS, *_BOUNDED, "max", "min", "gcd", "lcm") and symbols(item):
            return True
        if item.kind == "pow" and symbols(item):
            power = exact(item.args[1])
            if power is None and (base := exact(item.args[0])) is not None and base > 0:
                continue
            if power is None and item.args[0].kind == "const" and item.args[0].value in ("e", "pi"):
                continue
            if power is None or power.denominator != 1:
                return True
    return False


def _lines(names: Sequence[str], key: int) -> Iterator[dict[str, Polynomial]]:
    """The unknowns along straight lines; one unknown is its own line."""
    if len(names) == 1:
        yield {names[0]: (Fraction(0), Fraction(1))}
        return
    for index in range(_LINES):
        line: dict[str, Polynomial] = {}
        for name in names:
            seed = zlib.crc32(f"{name}/{index}/{key}".encode())
            slope = Fraction(1 + seed % 97, 64) * (-1 if seed >> 20 & 1 else 1)
            line[name] = (Fraction((seed >> 8) % 1999 - 999, 128), slope)
        yield line


def same_in_regions(gold: Node, answer: Node, log_base: int) -> bool | None:
    """Whether two real functions are defined at the same points of every region, and agree there to 40 digits.

    None where zeros of arguments cannot be found, where nothing can be compared in a region, or where one of them is
    defined at positive unknowns for which the other is not.
    """
    if is_chance(gold, answer):
        return None
    names = sorted(symbols(gold) | symbols(answer))
    key = zlib.crc32(repr((gold, answer)).encode())
    positive = lawful(gold, answer)
    compared, unsure, work = 0, False, 0
    parts = sum(1 for side in (gold, answer) for _ in walk(side))
    try:
        for line in _lines(names, key):
            shown, hidden = set[int](), set[int]()
            points = _points(gold, answer, line, key)
            work += len(points) * parts
            if work > _MAX_WORK:
                return None
            for region, t in points:
                point = {name: _at(part, t) for name, part in line.items()}
                try:
                    values = [_real(side, point, log_base) for side in (gold, answer)]
                except HiddenError:
                    hidden.add(region)
                    continue
                if values[0] is None and values[1] is None:
                    continue
                if values[0] is None or values[1] is None:
                    # One of them may have no value there; they may still differ where both have one.
                    unsure |= not positive or all(value > 0 for value in point.values())
                    continue
                equal = near(abs(values[0] - values[1]), max(abs(values[0]), abs(values[1])))
                if equal is False:
                    return False
                compared += bool(equal)
                shown.add(region)
            unsure |= not hidden <= shown
    except UndefinedError:
        return None
    return True if compared >= _POINTS and not unsure else None


def lawful(*sides: Node) -> bool:
    """Whether the laws of logarithms and roots may be applied as for positive unknowns.

    Where something is added, or made positive by an absolute value, the unknowns are not what has to be positive.
    """
    return all(not has_kind(side, "abs") and _only_products(side) for side in sides)


def _only_products(tree: Node) -> bool:
    """Whether logarithms and roots are of products and powers of the unknowns."""
    return not any(
        item.kind == "add" and symbols(item)
        for node in walk(tree)
        if node.kind == "root" or (node.kind == "fn" and node.value in _LOGARITHMS)
        for item in walk(node.args[0])
    )


def _real(node: Node, point: Mapping[str, Fraction], log_base: int) -> Decimal | None:
    """The real value of a tree at a point; None without one."""
    with precisely():
        try:
            real, imaginary = _RealField(point, log_base).visit(node)
        except HiddenError:
            raise
        except ArithmeticError:
            return None
        if not real.is_finite() or abs(imaginary) > max(abs(real), Decimal(1)) * Decimal("1e-40"):
            return None
        return +real


def _points(gold: Node, answer: Node, line: Mapping[str, Polynomial], key: int) -> list[tuple[int, Fraction]]:
    """Points of a line in every region between the zeros of what is not analytic there, with their regions."""
    known: set[Polynomial] = set()
    points = _between((), key)
    for _ in range(_MAX_ROUNDS):
        found: set[Polynomial] = set()
        for _, t in points:
            for side in (gold, answer):
                critical = _Critical(line, t)
                critical.visit(side)
                found |= critical.found
        if found <= known:
            return points
        known |= found
        product = _ONE
        for part in known:
            # Each root once, however many arguments share it.
            common = _gcd(product, part) if len(product) > 1 else _ONE
            product = _times(product, _divided(part, common)[0] if len(common) > 1 else part)
        if len(line) > 1 and len(product) > _MAX_ON_LINES:
            raise UndefinedError("degree")  # which is worked out on each line
        points = _between(_roots(product), key)
    raise UndefinedError("regions of regions")


def _between(roots: Sequence[tuple[Fraction, Fraction]], key: int) -> list[tuple[int, Fraction]]:
    """Points in every gap between roots, and outside of all of them, near and far."""
    shifts = [Fraction(1 + (key >> shift) % 61, 64) for shift in (0, 7, 14)]
    if not roots:
        return [(0, sign * (scale + shift)) for shift in shifts for sign, scale in ((1, 0), (-1, 1), (1, 7), (-1, 30))]
    points: list[tuple[int, Fraction]] = []
    last = len(roots)
    low, high = roots[0][0], roots[-1][1]
    for shift in shifts:
        points += [
            (0, low - shift),
            (0, low - 9 * shift - 2),
            (0, low - 40 - shift),
            (last, high + shift),
            (last, high + 9 * shift + 2),
            (last, high + 40 + shift),
        ]
        for region, ((_, left), (right, _)) in enumerate(itertools.pairwise(roots), 1):
            points.append((region, left + (right - left) * shift))
    return points


# --- whole numbers ----------------------------------------------------------------------------------------------------

_MAX_WHOLE = 3_000
# Nodes that are evaluated, a microsecond each: what an answer may cost its caller.
_MAX_WHOLE_WORK = 300_000


def whole_points(gold: Node, answer: Node) -> range | None:
    """Whole numbers at which two functions of one counting unknown must agree to be the same; None where none suffice.

    With floors of linear arguments and powers of -1 both are polynomials on each residue class of a period, which are the
    same where they agree at more points than their degree. Factorials and powers get as many points as they have parts.
    """
    period, degree, parts = 1, 0, 0
    for side in (gold, answer):
        parts += sum(1 for _ in walk(side))
        degree = max(degree, _degree(side))
        for item in walk(side):
            if not symbols(item):
                continue
            step: int | None = 1
            if item.kind in ("floor", "ceil"):
                step = _denominator(item.args[0])
            elif item.kind == "pow" and symbols(item.args[1]):
                base = exact(item.args[0])
                step = 2 if base is None or base < 0 else 1
            elif item.kind == "fn":
                step = 24
            if step is None:
                return None
            period = math.lcm(period, step)
            if period > _MAX_WHOLE:
                return None
    count = period * (degree + 2) + (12 + parts // 2 if period < 50 else 0)
    return range(count) if count <= _MAX_WHOLE and count * parts <= _MAX_WHOLE_WORK else None


def _degree(node: Node) -> int:
    """A bound on the degree of a tree as a polynomial of its unknowns."""
    if not symbols(node):
        return 0
    if node.kind == "mul":
        return sum(map(_degree, node.args))
    if node.kind == "div":
        return sum(map(_degree, node.args))
    if node.kind == "pow" and (power := exact(node.args[1])) is not None:
        return min(10_000, math.ceil(abs(power)) * _degree(node.args[0]))
    return max(map(_degree, node.args), default=1)


def _denominator(node: Node) -> int | None:
    """The period of the fractional part of a linear argument; None for any other."""
    names = symbols(node)
    if len(names) != 1:
        return None
    (name,) = names
    try:
        values = [ExactField({name: Fraction(x)}).visit(node) for x in (0, 1, 2, 7)]
    except UndefinedError:
        return None
    slope = values[1] - values[0]
    linear = values[2] == values[0] + 2 * slope and values[3] == values[0] + 7 * slope
    if not linear or any(item.kind not in ("num", "sym", "add", "neg", "mul", "div") for item in walk(node)):
        return None
    return slope.denominator
