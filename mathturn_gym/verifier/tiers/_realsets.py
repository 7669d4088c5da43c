r"""Sets of real numbers with numeric ends: intervals, finite sets, unions, differences, inequalities in one unknown.

Two sets are the same where they agree on every end point and in every gap between end points, of both sets together;
so `x<2 or x>3`, `(-\infty,2)\cup(3,\infty)` and `\mathbb{R}\setminus[2,3]` are one set, however they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from mathturn_gym.verifier.reading._nodes import Node, NodeKind, UndefinedError, Visitor, number, symbols
from mathturn_gym.verifier.tiers._fields import ExactField, FloatField
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar

__all__ = ["INEQUALITIES", "SetTree", "as_set", "same_set"]

INEQUALITIES = frozenset(("<", "<=", ">", ">=", "!="))
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval; None for an end at infinity."""

    low: Node | None
    low_closed: bool
    high: Node | None
    high_closed: bool


@dataclass(frozen=True, slots=True)
class Combined:
    """A union, intersection or difference of sets."""

    kind: NodeKind
    parts: tuple[SetTree, ...]


SetTree: TypeAlias = Piece | Combined
_ALL = Piece(None, False, None, False)


def _end(node: Node, sign: int) -> Node | None:
    """An end point, or None for the infinity of this sign."""
    inner = node.args[0] if node.kind == "neg" else node
    if inner.kind == "const" and inner.value == "inf":
        if (node.kind == "neg") != (sign < 0):
            raise UndefinedError("infinity on the wrong side")
        return None
    if symbols(node):
        raise UndefinedError("symbolic end")
    return node


def _float(node: Node) -> float:
    value = FloatField({}).visit(node)[0]
    if value.imag:
        raise UndefinedError("complex end")
    return value.real


def as_set(node: Node) -> SetTree | None:
    """The set that a tree stands for, or None where it is none, or its ends are not numbers."""
    try:
        return _as_set(node)
    except UndefinedError:
        return None


class _AsSet(Visitor[SetTree]):
    def visit_interval(self, node: Node) -> SetTree:
        brackets = str(node.value) if node.kind == "interval" else "()"
        if len(node.args) != 2:
            raise UndefinedError("a point of more than two dimensions")
        low, high = _end(node.args[0], -1), _end(node.args[1], 1)
        if low is not None and high is not None and _float(low) >= _float(high) and brackets != "[]":
            raise UndefinedError("a pair, and no interval")
        return Piece(low, brackets[0] == "[", high, brackets[1] == "]")

    visit_tuple = visit_interval

    def visit_set(self, node: Node) -> SetTree:
        points = tuple(Piece(_end(arg, 1), True, _end(arg, 1), True) for arg in node.args)
        for point, arg in zip(points, node.args, strict=True):
            if point.low is None or arg.kind in ("rel", "tuple", "list"):
                raise UndefinedError("not a set of numbers")
        return Combined("union", points)

    def visit_union(self, node: Node) -> SetTree:
        return Combined(node.kind, tuple(map(self.visit, node.args)))

    visit_inter = visit_union
    visit_minus = visit_union

    def visit_sym(self, node: Node) -> SetTree:
        if node.value != "set:R":
            raise UndefinedError("an unknown")
        return _ALL

    def visit_rel(self, node: Node) -> SetTree:
        return _from_relation(node)

    def visit_list(self, node: Node) -> SetTree:
        if not all(arg.kind == "rel" for arg in node.args):
            raise UndefinedError("a list of other things")
        return _from_list(node)

    def visit_other(self, node: Node) -> SetTree:
        raise UndefinedError("not a set")


_as_set = _AsSet().visit


def _from_list(node: Node) -> SetTree:
    """Several inequalities in one unknown: `or` unites, `and` intersects, a comma does what makes sense."""
    if len({name for arg in node.args for name in symbols(arg)}) != 1:
        raise UndefinedError("several unknowns")
    parts = tuple(_as_set(arg) for arg in node.args)
    words = node.value
    assert isinstance(words, tuple)
    if "or" in words:
        return Combined("union", parts)
    both = Combined("inter", parts)
    if "and" in words or any("!=" in (arg.value or ()) for arg in node.args if isinstance(arg.value, tuple)):
        return both
    nothing = Combined("union", ())
    return Combined("union", parts) if same_set(both, nothing) else both


def _from_relation(node: Node) -> SetTree:
    ops = node.value
    assert isinstance(ops, tuple)
    if ops == ("\\in",):
        return _as_set(node.args[1])
    if not INEQUALITIES.issuperset(map(str, ops)):
        raise UndefinedError("not an inequality")
    constraints = [
        _constraint(left, str(op), right) for left, op, right in zip(node.args, ops, node.args[1:], strict=False)
    ]
    return constraints[0] if len(constraints) == 1 else Combined("inter", tuple(constraints))


def _constraint(left: Node, op: str, right: Node) -> SetTree:
    if not symbols(left):
        left, op, right = right, _FLIPPED[op], left
    if symbols(right):
        raise UndefinedError("unknowns on both sides")
    if left.kind == "abs":
        both = (_constraint(left.args[0], op, right), _constraint(left.args[0], _FLIPPED[op], Node("neg", (right,))))
        return Combined("union" if op in (">", ">=") else "inter", both)
    slope, offset = _linear(left)
    if slope < 0:
        op = _FLIPPED[op]
    sign = 1 if op in ("<", "<=") else -1
    infinite = right.args[0] if right.kind == "neg" else right
    if infinite.kind == "const" and infinite.value == "inf":
        if slope != 1 or offset:
            raise UndefinedError("infinity in an inequality")
        bound = _end(right, sign)
    else:
        bound = right
        if offset:
            bound = Node("add", (bound, number(-offset)))
        if slope != 1:
            bound = Node("div", (bound, number(slope)))
    if op == "!=":
        assert bound is not None
        return Combined("minus", (_ALL, Piece(bound, True, bound, True)))
    if sign > 0:
        return Piece(None, False, bound, op == "<=")
    return Piece(bound, op == ">=", None, False)


def _linear(node: Node) -> tuple[Fraction, Fraction]:
    """Slope and offset of a tree that is linear in its only unknown; a name such as f(x) counts as one."""
    if node.kind == "sym" or (
        node.kind == "mul" and len(node.args) == 2 and all(arg.kind == "sym" for arg in node.args)
    ):
        return Fraction(1), Fraction(0)
    names = symbols(node)
    if len(names) != 1:
        raise UndefinedError("several unknowns")
    (name,) = names
    zero, one, two = (ExactField({name: Fraction(x)}).visit(node) for x in (0, 1, 2))
    seven = ExactField({name: Fraction(-7, 3)}).visit(node)
    slope = one - zero
    if not slope or two != zero + 2 * slope or seven != zero - Fraction(7, 3) * slope:
        raise UndefinedError("not linear")
    return slope, zero


def _pieces(tree: SetTree) -> Iterator[Piece]:
    if isinstance(tree, Piece):
        yield tree
    else:
        for part in tree.parts:
            yield from _pieces(part)


def _ranks(trees: tuple[SetTree, ...], rounding: Rounding) -> tuple[dict[int, int], int]:
    """A rank for each end point (by identity of its tree), equal where the end points are."""
    ends: dict[int, tuple[float, Node]] = {}
    for tree in trees:
        for piece in _pieces(tree):
            for node in (piece.low, piece.high):
                if node is not None and id(node) not in ends:
                    ends[id(node)] = _float(node), node
    ordered = sorted(ends.items(), key=lambda item: item[1][0])
    ranks: dict[int, int] = {}
    rank, before = -1, None
    for key, (value, node) in ordered:
        if before is None or not _equal(before, (value, node), rounding):
            rank += 1
        ranks[key] = rank
        before = value, node
    return ranks, rank + 1


def _equal(first: tuple[float, Node], second: tuple[float, Node], rounding: Rounding) -> bool:
    gap = abs(first[0] - second[0])
    if rounding.exact and gap > 1e-6 * max(1.0, abs(first[0])):
        return False
    same = same_scalar(first[1], second[1], rounding)
    if same is None:
        raise UndefinedError("ends that cannot be told apart")
    return same


def _holds(tree: SetTree, place: int, ranks: dict[int, int]) -> bool:
    """Whether a place belongs to a set: 2r + 1 is the end point of rank r, the even ones are the gaps."""
    if isinstance(tree, Combined):
        inside = [_holds(part, place, ranks) for part in tree.parts]
        if tree.kind == "union":
            return any(inside)
        if tree.kind == "inter":
            return all(inside)
        return inside[0] and not any(inside[1:])
    if tree.low is not None:
        low = 2 * ranks[id(tree.low)] + 1
        if place < low or (place == low and not tree.low_closed):
            return False
    if tree.high is not None:
        high = 2 * ranks[id(tree.high)] + 1
        if place > high or (place == high and not tree.high_closed):
            return False
    return True


def same_set(gold: SetTree, answer: SetTree, rounding: Rounding | None = None) -> bool | None:
    """Whether two sets have the same members; None where their end points cannot be ordered for certain."""
    try:
        ranks, count = _ranks((gold, answer), rounding or Rounding())
    except UndefinedError:
        return None
    return all(_holds(gold, place, ranks) == _holds(answer, place, ranks) for place in range(2 * count + 1))
