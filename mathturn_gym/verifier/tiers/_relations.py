"""Equations, congruences and ratios: when two of them say the same."""

from __future__ import annotations

from fractions import Fraction

from mathturn_gym.verifier.reading._names import is_curve_name, is_name
from mathturn_gym.verifier.reading._nodes import Node, Transformer, number, symbols, walk
from mathturn_gym.verifier.tiers._fields import exact
from mathturn_gym.verifier.tiers._scalar import Rounding, same_scalar

__all__ = [
    "is_equation",
    "name_of",
    "named_value",
    "one_name",
    "same_congruence",
    "same_equation",
    "same_ratio",
    "undefined",
]

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
        return right
    if is_name(right) and right.kind == "sym" and not symbols(left) and len(equation.args) == 2:
        return left
    # `42 = 42` is true of everything, and no answer.
    if not symbols(equation) and left != right and all(same_scalar(left, side) for side in equation.args[1:]):
        return right
    return None


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
        return self.visit(node.args[0])

    def visit_mul(self, node: Node) -> Node:
        args = tuple(self.visit(arg) for arg in node.args if arg.value not in ("\\angle", "\\triangle"))
        return args[0] if len(args) == 1 else Node("mul", args)


_bare = _Bare().visit


def one_name(gold: Node, answer: Node) -> bool:
    """Whether two names may stand for one thing: the same name, two of functions, or one of them in words."""
    if gold == answer or _bare(gold) == _bare(answer):
        return True
    if _function_name(gold) and _function_name(answer):
        return True
    if (gold.kind == "text") != (answer.kind == "text"):
        return True
    # W(n) and W(x): the argument has no name of its own.
    applied = [
        name.kind == "mul"
        and len(name.args) == 2
        and all(arg.kind == "sym" for arg in name.args)
        and not is_curve_name(name)
        for name in (gold, answer)
    ]
    return all(applied) and gold.args[0] == answer.args[0]


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
