"""Are two expressions the same number, or the same function? Yes, no, or not known here.

Refutation: at a point where both have a certain float value, the values differ by more than their error bounds.
Confirmation: exact rationals; rational functions modulo a random prime; parts that both have, taken for unknowns; else 60
digits at several points, from every region in which a function is analytic.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import zlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from mathturn_gym.verifier.reading._nodes import (
    Node,
    NodeKind,
    Transformer,
    UndefinedError,
    has_kind,
    number,
    symbols,
    walk,
)
from mathturn_gym.verifier.tiers._fields import ExactField, FloatField, ModularField, exact
from mathturn_gym.verifier.tiers._precise import PreciseField, is_chance, near, precisely
from mathturn_gym.verifier.tiers._regions import lawful, piecewise, same_in_regions, whole_points

# Sizes of the points, and which of them have values of both signs: small and large, inside and outside of domains.
_SCALES = (1, 1, 5, 1, 5, 20)
_MIXED = (3, 4)
_WHOLE_POINTS = 60
_LOOKED_INTO = 8
_COUNTING_NAMES = frozenset("nkmjNKM")
_WHOLE_NAMES = frozenset("nkmjpqrstabNKMN")
_STEPPED: Final[tuple[NodeKind, ...]] = ("floor", "ceil", "fact", "binom", "pow", "fn")


class Rounding:
    """What counts as the same number.

    Args:
        rel_tol: Relative difference allowed between numbers; 0 for none.
        decimals: Places to which both are rounded before they are compared; None for no rounding.
    """

    __slots__ = ("decimals", "rel_tol")

    def __init__(self, rel_tol: float = 0.0, decimals: int | None = None) -> None:
        self.rel_tol = rel_tol
        self.decimals = decimals

    @property
    def exact(self) -> bool:
        """True where nothing but equality counts."""
        return not self.rel_tol and self.decimals is None

    def near(self, gold: float, answer: float) -> bool:
        """Whether two numbers are the same under this policy."""
        if self.rel_tol and abs(answer - gold) <= self.rel_tol * abs(gold):
            return True
        return self.decimals is not None and round(answer, self.decimals) == round(gold, self.decimals)


EXACT = Rounding()


def _point(names: frozenset[str], index: int, key: int = 0) -> dict[str, Fraction]:
    """Values for unknowns, fixed by their names: positive at first, then of both signs."""
    point = {}
    for name in names:
        seed = zlib.crc32(f"{name}/{index}/{key}".encode() if key else f"{name}/{index}".encode())
        value = Fraction(_SCALES[index] * (300 + seed % 1700), 1024)
        point[name] = -value if index in _MIXED and (seed >> 16) % 2 else value
    return point


def _counting_point(names: frozenset[str], whole: frozenset[str], index: int) -> dict[str, Fraction]:
    r"""A point at which the unknowns that count are whole numbers, and the others are not: `\sin(\pi x)` is no 0 there."""
    point = _point(names, index % len(_SCALES), index + 1)
    return point | {name: Fraction(2 + zlib.crc32(f"{name}/{index}".encode()) % 17) for name in names & whole}


def _differ(gold: Node, answer: Node, point: Mapping[str, Fraction], log_base: int) -> bool | None:
    """True: certainly different at this point; False: equal as far as floats tell; None: no certain values."""
    field = FloatField(point, log_base)
    try:
        (a, ea), (b, eb) = field.visit(gold), field.visit(answer)
    except UndefinedError:
        return None
    bound = 4 * (ea + eb)
    difference = abs(a - b)
    if difference > bound:
        # Off the real line, equal real functions may lie on different branches.
        real = not (a.imag or b.imag) and (not point or not _unreal(gold, answer, field))
        return None if point and not real and _branches(gold, answer) else True
    # A bound as wide as the values themselves says nothing.
    return False if bound <= 1e-7 * max(abs(a), abs(b), 1e-3) else None


def _unreal(gold: Node, answer: Node, field: FloatField) -> bool:
    r"""Whether a square root of something negative is in one of two values: `\sqrt{x}\sqrt{y}` needs both positive."""
    for item in (item for node in (gold, answer) for item in walk(node)):
        if item.kind == "root" and symbols(item):
            with contextlib.suppress(UndefinedError):
                if field.visit(item)[0].imag:
                    return True
    return False


def _branches(*nodes: Node) -> bool:
    """Whether trees have roots, logarithms or fractional powers, and no imaginary unit that asks for complex ones."""
    found = False
    for item in (item for node in nodes for item in walk(node)):
        if item.kind == "const" and item.value == "i":
            return False
        found |= item.kind == "root" or (item.kind == "fn" and item.value in ("ln", "log", "lg"))
        if item.kind == "pow" and symbols(item.args[0]):
            power = exact(item.args[1])
            found |= power is None or power.denominator != 1
    return found


@functools.cache
def _primes() -> tuple[tuple[int, int], ...]:
    """Two random primes p = 1 (mod 4) of 127 bits, new in every process, each with a square root of -1."""
    source = random.SystemRandom()
    found: list[tuple[int, int]] = []
    while len(found) < 2:
        candidate = source.getrandbits(125) << 2 | 1 << 126 | 1
        if all(candidate % small for small in (3, 5, 7, 11, 13, 17, 19, 23)) and _is_prime(candidate, source):
            while True:
                root = pow(source.randrange(2, candidate), candidate // 4, candidate)
                if root * root % candidate == candidate - 1:
                    break
            found.append((candidate, root))
    return tuple(found)


def _is_prime(candidate: int, source: random.Random) -> bool:
    """Miller and Rabin's test, 24 rounds."""
    odd, twos = candidate - 1, 0
    while not odd % 2:
        odd, twos = odd // 2, twos + 1
    for _ in range(24):
        x = pow(source.randrange(2, candidate - 1), odd, candidate)
        if x in (1, candidate - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % candidate
            if x == candidate - 1:
                break
        else:
            return False
    return True


def _same_modular(gold: Node, answer: Node, names: frozenset[str]) -> bool | None:
    """Whether two rational functions agree at random points modulo random primes; None where they are none."""
    for prime, root in _primes():
        point = {name: random.SystemRandom().randrange(2, prime) for name in (*names, "pi", "e")}
        field = ModularField(prime, root, point)
        try:
            if field.visit(gold) != field.visit(answer):
                return False
        except UndefinedError:
            return None
    return True


def _same_precise(gold: Node, answer: Node, point: Mapping[str, Fraction], log_base: int) -> bool | None:
    """Whether 60 digits agree at a point to 40 of them; None without a value, or where rounding or chance may explain it."""
    if is_chance(gold, answer):
        return None
    field = PreciseField(point, log_base)
    with precisely():
        try:
            a, b = field.visit(gold), field.visit(answer)
            size = max(abs(a[0]), abs(a[1]), abs(b[0]), abs(b[1]))
            difference = max(abs(a[0] - b[0]), abs(a[1] - b[1]))
            if not size.is_finite():
                return None
            return near(difference, size)
        except ArithmeticError:  # undefined, or outside the range of the decimal context
            return None


def _stepped(node: Node, names: frozenset[str]) -> bool:
    """Whether the unknowns may stand for whole numbers only: parities, factorials, integer parts."""
    return bool(names & _WHOLE_NAMES) and has_kind(node, *_STEPPED)


def _same_on_integers(gold: Node, answer: Node, names: frozenset[str], log_base: int) -> bool | None:
    """Agreement at whole numbers, as many as a difference could have zeros: exact where both are rational, else by floats."""
    if len(names) == 1:
        numbers = whole_points(gold, answer)
        # Too many are needed to show equality; one may show a difference.
        few = range(0, 4_000, 67) if numbers is None else numbers
        points = [{name: Fraction(number) for name in names} for number in few]
    elif has_kind(gold, "floor", "ceil") or has_kind(answer, "floor", "ceil"):
        return None
    else:
        counted = (symbols(item) for side in (gold, answer) for item in walk(side) if item.kind in _WHOLE_ARGUMENTS)
        whole = _COUNTING_NAMES.union(*counted)
        points = [_counting_point(names, whole, index) for index in range(_WHOLE_POINTS)]
    enough = len(names) > 1 or numbers is not None
    agreed = looked = 0
    for point in points:
        try:
            if ExactField(point).visit(gold) != ExactField(point).visit(answer):
                return False
            agreed += 1
        except UndefinedError:
            differ = _differ(gold, answer, point, log_base)
            if differ:
                return False
            if differ is False and looked < _LOOKED_INTO:
                # What floats do not see: `(-1)^n \pi + 10^{-20}`.
                looked += 1
                differ = not _same_precise(gold, answer, point, log_base)
                if differ:
                    return None
            agreed += differ is False
    return True if enough and agreed >= min(len(points) - 2, 0.75 * len(points)) else None


def same_scalar(gold: Node, answer: Node, rounding: Rounding = EXACT) -> bool | None:
    """Whether two expressions are equal wherever both are defined; None where that is not known for certain.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> same_scalar(parse("(x+1)^2").node, parse("x^2+2x+1").node), same_scalar(parse("2x").node, parse("x^2").node)
    (True, False)
    """
    if gold == answer:
        return True
    if _infinite(gold) or _infinite(answer):
        return _same_infinity(gold, answer)
    names = symbols(gold) | symbols(answer)
    if not names:
        return _same_number(gold, answer, rounding)
    if "C" in symbols(gold) and "c" in symbols(answer) and not ("C" in symbols(answer) or "c" in symbols(gold)):
        # A constant of integration, in either case.
        answer = _with_constant(answer)
        names = symbols(gold) | symbols(answer)
    bases = (0, 10) if _has_log(gold) or _has_log(answer) else (0,)
    found = [_same_function(gold, answer, names, base) for base in bases]
    if True in found:
        return True
    return None if None in found else False


class _WithConstant(Transformer):
    def visit_sym(self, node: Node) -> Node:
        return Node("sym", (), "C") if node.value == "c" else node


_WITH_CONSTANT = _WithConstant()


def _with_constant(node: Node) -> Node:
    """A sum with a term c, with C for it; any other tree as it is."""
    ends = node.kind == "add" and any(arg.kind == "sym" and arg.value == "c" for arg in node.args)
    return _WITH_CONSTANT.visit(node) if ends else node


def _infinite(node: Node) -> bool:
    return any(item.kind == "const" and item.value == "inf" for item in walk(node))


def _same_infinity(gold: Node, answer: Node) -> bool | None:
    """Infinities are equal to themselves, and to nothing that has a value."""
    signs = [
        {"const": 1, "neg": -1}.get(node.kind)
        if _infinite(node) and (node.kind == "const" or node.args[0].kind == "const")
        else 0
        for node in (gold, answer)
    ]
    if _infinite(gold) and _infinite(answer):
        return signs[0] == signs[1] if all(signs) else None
    other = answer if _infinite(gold) else gold
    sign = signs[0] if _infinite(gold) else signs[1]
    if not sign or symbols(other):
        return None
    try:
        FloatField({}).visit(other)
    except UndefinedError:
        return None
    return False


def _has_log(node: Node) -> bool:
    return any(item.kind == "fn" and item.value == "log" and len(item.args) == 1 for item in walk(node))


def _same_number(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    a, b = exact(gold), exact(answer)
    if a is not None and b is not None:
        return a == b or (not rounding.exact and rounding.near(_float(a), _float(b)))
    if _size(gold) > 300 or _size(answer) > 300:
        # Too large to be written out, and yet known modulo primes.
        same = _same_modular(gold, answer, frozenset())
        return _same_huge(gold, answer) if same is None else same
    if not rounding.exact and (near := _near(gold, answer, rounding)) is not None and near:
        return True
    bases = (0, 10) if _has_log(gold) or _has_log(answer) else (0,)
    found: list[bool | None] = []
    for base in bases:
        differ = _differ(gold, answer, {}, base)
        if differ:
            found.append(False)
        else:
            precise = _same_precise(gold, answer, {}, base)
            # Not equal to 45 digits, though floats see no difference: close, and yet different.
            found.append(precise if differ is False else precise or None)
    if True in found:
        return True
    return None if None in found else False


def _size(node: Node) -> float:
    """A lower bound of log10 |value| for products, powers and factorials; -inf where there is none."""
    try:
        return _log_size(node)
    except (OverflowError, ValueError):
        return -math.inf


def _log_size(node: Node) -> float:
    if node.kind == "neg":
        return _log_size(node.args[0])
    if node.kind == "mul":
        return sum(map(_log_size, node.args))
    if node.kind == "root" and (degree := exact(node.args[1])) is not None and degree > 0:
        return _log_size(node.args[0]) / float(degree)
    value = exact(node)
    if value is not None:
        top, bottom = abs(value.numerator), value.denominator
        return (top.bit_length() - 1 - bottom.bit_length()) * math.log10(2) if top else -math.inf
    if node.kind not in ("pow", "fact"):
        return -math.inf
    last = node.args[-1]
    known = exact(last)
    exponent = float(known) if known is not None else 10 ** min(300.0, _log_size(last)) if last.kind != "neg" else 0.0
    if node.kind == "fact":
        return exponent * (math.log10(exponent) - 0.45) if exponent > 10 else -math.inf
    base = exact(node.args[0])
    return exponent * math.log10(abs(base)) if base is not None and abs(base) > 1 and exponent > 0 else -math.inf


def _same_huge(gold: Node, answer: Node) -> bool | None:
    """False where one number is beyond any float, and the other is not."""
    other = answer if _size(gold) > 300 else gold
    try:
        return False if abs(FloatField({}).visit(other)[0]) < 1e290 else None
    except UndefinedError:
        return None


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _near(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    field = FloatField({})
    try:
        a, b = field.visit(gold)[0], field.visit(answer)[0]
    except UndefinedError:
        return None
    return rounding.near(a.real, b.real) and rounding.near(a.imag, b.imag)


def _same_function(gold: Node, answer: Node, names: frozenset[str], log_base: int) -> bool | None:
    close = 0
    for index in range(len(_SCALES)):
        differ = _differ(gold, answer, _point(names, index), log_base)
        if differ:
            if not (_stepped(gold, names) or _stepped(answer, names)):
                return False
            on_integers = _same_on_integers(gold, answer, names, log_base)
            # n, k and m count: what agrees on whole numbers is the same.
            return on_integers if on_integers is False or names <= _COUNTING_NAMES else None
        close += differ is False
    if close < 2:
        if _stepped(gold, names) or _stepped(answer, names):
            on_integers = _same_on_integers(gold, answer, names, log_base)
            if on_integers is not None:
                return on_integers
        return _same_modular(gold, answer, names)
    if (same := _same_modular(gold, answer, names)) is not None:
        return same
    if _proved(gold, answer):
        return True
    if lawful(gold, answer) and _proved(*(_Expanded(log_base).visit(side) for side in (gold, answer))):
        return True
    if any(item.kind in _WHOLE_ARGUMENTS and symbols(item) for side in (gold, answer) for item in walk(side)):
        return _same_on_integers(gold, answer, names, log_base) if names <= _WHOLE_NAMES else None
    if piecewise(gold, answer) and not _complex(gold, answer):
        return same_in_regions(gold, answer, log_base)
    # Analytic (between poles) in every unknown: equal to 45 digits at points that depend on both texts, and so are not
    # known to the writer of either text.
    key = zlib.crc32(repr((gold, answer)).encode())
    # Principal branches may differ where real functions do not: then positive values only.
    indices = [index for index in range(len(_SCALES)) if index not in _MIXED or not _branches(gold, answer)]
    precise = [_same_precise(gold, answer, _point(names, index, key), log_base) for index in indices]
    if False in precise:
        return False
    return True if precise.count(True) >= 3 else None


def _complex(*nodes: Node) -> bool:
    return any(item.kind == "const" and item.value == "i" for node in nodes for item in walk(node))


_WHOLE_ARGUMENTS: Final[frozenset[NodeKind]] = frozenset(("fact", "binom", "floor", "ceil"))
_PARTS: Final[frozenset[NodeKind]] = frozenset(("root", "abs", "fn", "floor", "ceil", "fact", "binom", "pow"))


class _Expanded(Transformer):
    """Applies the laws of logarithms and powers, which hold where the unknowns are positive: see `lawful`."""

    def __init__(self, log_base: int) -> None:
        self.log_base = log_base

    def visit_root(self, node: Node) -> Node:
        return self._power(self.visit(node.args[0]), Node("div", (number(1), self.visit(node.args[1]))))

    def visit_pow(self, node: Node) -> Node:
        exponent = exact(node.args[1])
        if exponent is not None and exponent.denominator == 1:
            return Node("pow", (self.visit(node.args[0]), node.args[1]))
        return self._power(self.visit(node.args[0]), self.visit(node.args[1]))

    def visit_fn(self, node: Node) -> Node:
        name, argument = str(node.value), self.visit(node.args[0])
        if name not in ("ln", "log", "lg"):
            return Node("fn", (argument, *map(self.visit, node.args[1:])), name)
        base = node.args[1] if len(node.args) > 1 else number(10) if name == "lg" or self.log_base else None
        if name == "ln" or base is None:
            return self._logarithm(argument)
        return Node("div", (self._logarithm(argument), self._logarithm(self.visit(base))))

    def _power(self, base: Node, exponent: Node) -> Node:
        if base.kind == "mul":
            return Node("mul", tuple(self._power(factor, exponent) for factor in base.args))
        if base.kind == "div":
            return Node("div", tuple(self._power(part, exponent) for part in base.args))
        if base.kind == "pow":
            return self._power(base.args[0], Node("mul", (base.args[1], exponent)))
        terms = exponent.args if exponent.kind == "add" else (exponent,)
        powers = tuple(Node("pow", (base, term)) for term in terms)
        return powers[0] if len(powers) == 1 else Node("mul", powers)

    def _logarithm(self, argument: Node) -> Node:
        if argument.kind == "mul":
            return Node("add", tuple(map(self._logarithm, argument.args)))
        if argument.kind == "div":
            top, bottom = map(self._logarithm, argument.args)
            return Node("add", (top, Node("neg", (bottom,))))
        if argument.kind == "pow":
            return Node("mul", (argument.args[1], self._logarithm(argument.args[0])))
        if argument.kind == "const" and argument.value == "e":
            return number(1)
        # A logarithm of a number is an unknown of its own: what holds for any value holds for its.
        value = exact(argument)
        return Node("fn", (argument,), "ln") if value is None else Node("sym", (), f"ln {value}")


class _Share(Transformer):
    """Puts one new unknown in the place of parts that are equal: of roots of equal arguments, for example."""

    def __init__(self) -> None:
        self.known: list[tuple[Node, Node]] = []

    def visit(self, node: Node) -> Node:
        """See `Visitor.visit`."""
        if node.kind not in _PARTS or not symbols(node):
            return super().visit(node)
        if node.kind == "pow" and (power := exact(node.args[1])) is not None and power.denominator == 1:
            return super().visit(node)
        if node.kind == "fn" and node.value in _BY_SINE and len(node.args) == 1:
            return self.visit(Node("div", tuple(_trigonometric(name, node) for name in _BY_SINE[str(node.value)])))
        if node.kind == "fn" and node.value == "exp":
            node = Node("pow", (Node("const", (), "e"), node.args[0]))
        for part, name in self.known:
            inverse = part.kind == node.kind == "pow" and part.args[0] == node.args[0]
            if inverse and _proved(Node("neg", (part.args[1],)), node.args[1]):
                return Node("div", (number(1), name))
        if len(self.known) >= _MAX_PARTS:
            raise UndefinedError("too many parts")
        for part, name in self.known:
            if _same_part(part, node):
                return name
        self.known.append((node, Node("sym", (), f"part {len(self.known)}")))
        return self.known[-1][1]


_MAX_PARTS = 12
_BY_SINE = {"tan": ("sin", "cos"), "cot": ("cos", "sin"), "sec": ("", "cos"), "csc": ("", "sin")}


def _trigonometric(name: str, node: Node) -> Node:
    return Node("fn", node.args, name) if name else number(1)


def _same_part(one: Node, other: Node) -> bool:
    if (one.kind, one.value, len(one.args)) != (other.kind, other.value, len(other.args)):
        return False
    if all(_proved(a, b) for a, b in zip(one.args, other.args, strict=True)):
        return True
    return one.kind == "abs" and _proved(Node("neg", one.args), other.args[0])


def _proved(one: Node, other: Node) -> bool:
    """Whether two trees are one rational function of their unknowns and of the parts that they share.

    They are equal whatever the roots, logarithms and powers in them are, since both have the same.
    """
    if one == other:
        return True
    names = symbols(one) | symbols(other)
    if any(item.kind in _PARTS for item in walk(one)):
        share = _Share()
        try:
            one, other = share.visit(one), share.visit(other)
        except UndefinedError:
            return False
        names = symbols(one) | symbols(other)
    return bool(_same_modular(one, other, names) if names else exact(one) is not None and exact(one) == exact(other))
