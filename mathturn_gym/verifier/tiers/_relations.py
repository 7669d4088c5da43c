"""Relations, named values and sets of real numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from mathturn_gym.verifier.reading._nodes import (
    Node,
    NodeKind,
    Transformer,
    UndefinedError,
    Visitor,
    is_curve_name,
    is_name,
    number,
    symbols,
    walk,
)
from mathturn_gym.verifier.reading._phrases import names_asked
from mathturn_gym.verifier.tiers._fields import ExactField, FloatField, exact
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar

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
    words = node.value
    assert isinstance(words, tuple)
    if mixes_and_with_or(node):
        return Combined("union", tuple(map(_as_set, clauses(node))))
    parts = tuple(_as_set(arg) for arg in node.args)
    if "or" in words:
        return Combined("union", parts)
    both = Combined("inter", parts)
    if "and" in words or any("!=" in (arg.value or ()) for arg in node.args if isinstance(arg.value, tuple)):
        return both
    nothing = Combined("union", ())
    return Combined("union", parts) if same_set(both, nothing) else both


def mixes_and_with_or(node: Node) -> bool:
    """Whether a list joins its items by both words, of which "and" binds tighter."""
    return node.kind == "list" and isinstance(node.value, tuple) and {"and", "or"} <= set(node.value)


def clauses(node: Node) -> tuple[Node, ...]:
    """What "or" joins in a list that `mixes_and_with_or`.

    Raises:
        UndefinedError: commas stand among the words, and may mean either.
    """
    words = node.value
    assert isinstance(words, tuple)
    if "," in words:
        raise UndefinedError("a comma beside and/or")
    found: list[list[Node]] = [[node.args[0]]]
    for word, item in zip(words, node.args[1:], strict=True):
        if word == "or":
            found.append([item])
        else:
            found[-1].append(item)
    return tuple(
        items[0] if len(items) == 1 else Node("list", tuple(items), ("and",) * (len(items) - 1)) for items in found
    )


def _from_relation(node: Node) -> SetTree:
    ops = node.value
    assert isinstance(ops, tuple)
    if ops == ("\\in",):
        return _as_set(node.args[1])
    if ops == ("=",) and node.args[0].kind == "sym":
        point = _end(node.args[1], 1)
        return Piece(point, True, point, True)
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
    square = _quadratic(left, op, right)
    if square is not None:
        return square
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


def _quadratic(left: Node, op: str, right: Node) -> SetTree | None:
    """The solutions of an inequality of the second degree with rational coefficients; None for any other."""
    names, bound = symbols(left), exact(right)
    if len(names) != 1 or bound is None or op == "!=" or not _polynomial(left):
        return None
    (name,) = names
    values = [ExactField({name: Fraction(x)}).visit(left) - bound for x in (-1, 0, 1, 2, 3)]
    c, a = values[1], (values[0] + values[2]) / 2 - values[1]
    b = (values[2] - values[0]) / 2
    if not a or any(a * x * x + b * x + c != value for x, value in ((2, values[3]), (3, values[4]))):
        return None
    square = b * b - 4 * a * c
    closed, above = op in ("<=", ">="), (op in (">", ">=")) == (a > 0)
    if square < 0:
        return _ALL if above else Combined("union", ())
    root = Node("root", (number(square), number(2)))
    low, high = (
        Node("div", (Node("add", (number(-b), sign)), number(2 * a)))
        for sign in ((Node("neg", (root,)), root) if a > 0 else (root, Node("neg", (root,))))
    )
    between = Piece(low, closed != above, high, closed != above)
    if not square:
        # One end twice: nothing lies between.
        point = Piece(low, True, low, True)
        if above:
            return _ALL if closed else Combined("minus", (_ALL, point))
        return point if closed else Combined("union", ())
    return Combined("minus", (_ALL, between)) if above else between


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
        raise UndefinedError("ends that cannot be distinguished")
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


_POLYNOMIAL = frozenset(("num", "sym", "add", "neg", "mul", "mixed"))
_NOT_SCALAR = frozenset(("tuple", "list", "set", "matrix", "interval", "union", "ratio"))


def is_equation(node: Node) -> bool:
    """Whether a tree is a chain of equalities."""
    return node.kind == "rel" and isinstance(node.value, tuple) and all(op == "=" for op in node.value)


def named_value(equation: Node) -> Node | None:
    """What an equation says of the name on its left: its last side; None where it is no such statement.

    `5+2=7` says 7 where it is true.
    """
    if not is_equation(equation):
        return None
    left, right = equation.args[0], equation.args[-1]
    if is_name(left) and not (left.kind == "sym" and left.value in symbols(right)):
        return right if _asked_for(left) else None
    if is_name(right) and right.kind == "sym" and not symbols(left) and len(equation.args) == 2:
        return left
    # `42 = 42` is true of everything, and no answer.
    if not symbols(equation) and left != right and all(same_scalar(left, side) for side in equation.args[1:]):
        return right
    return None


def _asked_for(name: Node) -> bool:
    """Whether the words of a name are known to name what is asked: `half of x` names something else."""
    words = [str(item.value) for item in walk(name) if item.kind == "text"]
    return not words or (len(words) == 1 and names_asked(words[0]))


def name_of(equation: Node) -> Node | None:
    """The side of an equation that names what `named_value` tells; None where it tells of numbers alone."""
    for side in (equation.args[0], equation.args[-1]):
        if is_name(side):
            return side
    return None


# Names of functions, and of their values: y = x^2 and f(x) = x^2 are one function.
_FUNCTION_NAMES = frozenset("yfghFGPpqQr")


def _function_name(name: Node) -> bool:
    """Whether a name is a function's: `f`, `y`, `f(x)`; not `f(2)`, which is a number."""
    head, *rest = name.args if name.kind == "mul" else (name,)
    return head.kind == "sym" and head.value in _FUNCTION_NAMES and all(arg.kind == "sym" for arg in rest)


class _Bare(Transformer):
    """A name without what only says of what kind it is: bars around it, a sign for an angle."""

    def visit_abs(self, node: Node) -> Node:
        # |AB| is the length of AB; |x| is no x.
        return self.visit(node.args[0]) if _segment(node.args[0]) else node

    def visit_sym(self, node: Node) -> Node:
        # The line over AB says that it is a segment.
        letters = str(node.value).removeprefix("bar:")
        if letters == node.value or len(letters) < 2 or not letters.isupper():
            return node
        return Node("mul", tuple(Node("sym", (), letter) for letter in letters))

    def visit_mul(self, node: Node) -> Node:
        args = tuple(self.visit(arg) for arg in node.args if arg.value not in ("\\angle", "\\triangle"))
        if len(args) == len(node.args) - 1 == 2:
            return node  # no angle has two letters
        return args[0] if len(args) == 1 else Node("mul", args)


_bare = _Bare().visit


def one_name(gold: Node, answer: Node, *, functions: bool) -> bool:
    """Whether two names may stand for one thing: the same name, two of functions, or one of them in words.

    Args:
        gold: The name of the gold's value.
        answer: The name of the answer's value.
        functions: Whether both values depend on an unknown: f(x) = x^2 and y = x^2 are one, p = 9 and q = 9 are not.
    """
    if gold == answer or _bare(gold) == _bare(answer):
        return True
    if (gold.kind == "text") != (answer.kind == "text"):
        return True
    if _segment(_bare(gold)) and _segment(_bare(answer)):
        return _bare(gold).args == _bare(answer).args[::-1]
    applied = [_applied(name) for name in (gold, answer)]
    if all(applied) and gold.args[0] == answer.args[0]:
        # W(n) and W(x): the argument has no name of its own.
        return True
    if not functions:
        return False
    return _function_name(gold) and _function_name(answer)


# P and E are measures, of whose arguments the value depends.
_APPLIED_NAMES = frozenset("fghuvwABCDFGHIJKLMNOQRSTUVWXYZ")


def _applied(name: Node) -> bool:
    """Whether a name is a function's with an unknown behind it: `W(n)`."""
    return (
        name.kind == "mul"
        and len(name.args) == 2
        and all(arg.kind == "sym" for arg in name.args)
        and name.args[0].value in _APPLIED_NAMES
        and str(name.args[1].value).islower()
        and not is_curve_name(name)
    )


def _segment(name: Node) -> bool:
    """Whether a name is made of points: AB is BA, and the angle ABC is CBA."""
    return name.kind == "mul" and all(arg.kind == "sym" and str(arg.value).isupper() for arg in name.args)


class _Rename(Transformer):
    """Gives every unknown another name."""

    def visit_sym(self, node: Node) -> Node:
        return Node("sym", (), f"{node.value}''")


class _Replace(Transformer):
    """Puts a tree in the place of an unknown."""

    def __init__(self, name: str, value: Node) -> None:
        self.name = name
        self.value = value

    def visit_sym(self, node: Node) -> Node:
        return self.value if node.value == self.name else node


_renamed = _Rename().visit


def _polynomial(node: Node) -> bool:
    for item in walk(node):
        if item.kind == "pow":
            power = exact(item.args[1])
            if power is None or power.denominator != 1 or power < 0:
                return False
        elif item.kind == "div":
            if symbols(item.args[1]):
                return False
        elif item.kind not in _POLYNOMIAL:
            return False
    return True


def _solved(equation: Node, other: Node) -> bool:
    """Whether what an equation says of a single unknown certainly does not solve another equation."""
    value, name = named_value(equation), equation.args[0]
    if value is None or name.kind != "sym" or name.value not in symbols(other):
        return True
    sides = Node("add", (other.args[0], Node("neg", (other.args[1],))))
    return same_scalar(_Replace(str(name.value), value).visit(sides), number(0)) is not False


def same_equation(gold: Node, answer: Node) -> bool | None:
    """Whether two equations differ by a constant factor only: F(p) G(q) = F(q) G(p) at any two points p and q."""
    if len(gold.args) != 2 or len(answer.args) != 2:
        return None
    first, second = (Node("add", (node.args[0], Node("neg", (node.args[1],)))) for node in (gold, answer))
    if any(item.kind in _NOT_SCALAR for node in (gold, answer) for item in walk(node)):
        return None
    true_always = same_scalar(first, number(0)), same_scalar(second, number(0))
    if true_always != (False, False):
        # `2+2=5` is not `2+2=4`: one is true of everything, and the other is not. What divides by zero is true of nothing.
        if True in true_always and (undefined(gold) or undefined(answer)):
            return False
        return False if None not in true_always and true_always[0] != true_always[1] else None
    if not (_solved(gold, answer) and _solved(answer, gold)):
        return False
    proportional = same_scalar(Node("mul", (first, _renamed(second))), Node("mul", (_renamed(first), second)))
    if proportional is False and not (_polynomial(first) and _polynomial(second)):
        return None
    return proportional


def undefined(node: Node) -> bool:
    """Whether a tree certainly has no value: a quotient by zero, a power of it, a logarithm of zero or to the base 0 or 1."""
    for item in walk(node):
        values = [exact(arg) for arg in item.args]
        if item.kind in ("div", "obelus") and values[1] == 0:
            return True
        if item.kind == "pow" and values[0] == 0 and (values[1] or 0) < 0:
            return True
        if item.kind == "fn" and item.value in ("log", "ln", "lg") and (values[0] == 0 or values[1:] in ([0], [1])):
            return True
    return False


def same_inequality(gold: Node, answer: Node) -> bool | None:
    """Whether two inequalities between expressions differ by a positive factor only; None where that is not known."""
    if any(
        node.kind != "rel" or len(node.args) != 2 or not isinstance(node.value, tuple) or len(node.value) != 1
        for node in (gold, answer)
    ):
        return None
    sides: list[tuple[str, Node]] = []
    for node in (gold, answer):
        assert isinstance(node.value, tuple)
        op, (left, right) = str(node.value[0]), node.args
        if op not in INEQUALITIES or any(item.kind in _NOT_SCALAR for item in walk(node)):
            return None
        if op in ("<", "<="):
            op, left, right = _FLIPPED[op], right, left
        sides.append((op, Node("add", (left, Node("neg", (right,))))))
    (first_op, first), (second_op, second) = sides
    if not (_polynomial(first) and _polynomial(second)):
        return None
    names = symbols(first) | symbols(second)
    for start in (2, 17, 90):
        point = {name: Fraction(start + 5 * index, 7) for index, name in enumerate(sorted(names))}
        try:
            factor = ExactField(point).visit(second) / ExactField(point).visit(first)
        except (UndefinedError, ZeroDivisionError):
            continue
        equal = same_scalar(Node("mul", (number(factor), first)), second)
        if equal:
            return first_op == second_op and (factor > 0 or first_op == "!=")
        # Linear ones hold on the same half of the space only if they are the same; others may differ and hold everywhere.
        return False if equal is False and _linear_in_all(first) and _linear_in_all(second) else None
    return None


_TRIED = (
    Fraction(-37, 4),
    Fraction(-13, 8),
    Fraction(-3, 16),
    Fraction(5, 16),
    Fraction(7, 8),
    Fraction(11, 4),
    Fraction(61, 8),
)


def hold_elsewhere(gold: Node, answer: Node) -> bool:
    """Whether one of two relations certainly holds at a point where the other certainly does not."""
    names = sorted(symbols(gold) | symbols(answer))
    for shift in range(len(_TRIED)):
        point = {name: _TRIED[(shift + 3 * index) % len(_TRIED)] for index, name in enumerate(names)}
        found = {_holds_at(node, point) for node in (gold, answer)}
        if found == {True, False}:
            return True
    return False


def _holds_at(relation: Node, point: Mapping[str, Fraction]) -> bool | None:
    """Whether a chain of relations holds at a point; None where floats cannot tell."""
    ops = relation.value
    assert isinstance(ops, tuple)
    field, certain = FloatField(point), True
    for left, op, right in zip(relation.args, ops, relation.args[1:], strict=False):
        try:
            (a, error), (b, other) = field.visit(left), field.visit(right)
        except UndefinedError:
            return None
        gap = a.real - b.real
        if a.imag or b.imag or abs(gap) <= 4 * (error + other):
            certain = False
        elif op == "=" or ((op in ("<", "<=")) != (gap < 0) and op != "!="):
            return False
    return True if certain else None


def _linear_in_all(node: Node) -> bool:
    return all(
        item.kind != "pow" and sum(bool(symbols(arg)) for arg in item.args) < 2
        for item in walk(node)
        if item.kind in ("mul", "pow")
    )


def same_congruence(gold: Node, answer: Node) -> bool | None:
    """Whether `a = b (mod m)` and `c = d (mod m)` say the same of the same unknown."""
    (left, residue, modulus), (other, second, other_modulus) = gold.args, answer.args
    numbers = [exact(node) for node in (residue, modulus, second, other_modulus)]
    if left != other or None in numbers:
        return None
    a, m, b, n = (value or Fraction(0) for value in numbers)
    return m == n and m != 0 and (a - b) % m == 0


def _clock(node: Node) -> bool:
    """Whether a ratio of two numbers may be a time of day; `5:00` certainly is."""
    second = exact(node.args[1]) if len(node.args) == 2 else None
    return second == 0


def same_ratio(gold: Node, answer: Node, rounding: Rounding) -> bool | None:
    """Ratios up to a common factor; what divides by zero is a time, and times are not reduced."""
    if gold.kind != answer.kind:
        ratio, value = (gold, answer) if gold.kind == "ratio" else (answer, gold)
        if len(ratio.args) != 2 or _clock(ratio):
            return False
        return same_scalar(Node("div", ratio.args), value, rounding)
    if len(gold.args) != len(answer.args):
        return False
    if _clock(gold) or _clock(answer):
        return gold == answer
    found = [
        same_scalar(Node("mul", (gold.args[0], second)), Node("mul", (first, answer.args[0])), rounding)
        for first, second in zip(gold.args[1:], answer.args[1:], strict=True)
    ]
    return False if False in found else None if None in found else True
