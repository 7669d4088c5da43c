"""Which answers are finished numbers, with no arithmetic left to do."""

from __future__ import annotations

from fractions import Fraction

from mathturn_gym.verifier.nodes import Node, symbols
from mathturn_gym.verifier.relations import is_equation, named_value

__all__ = ["is_literal"]


def _whole(node: Node) -> Fraction | None:
    """A literal number with its sign."""
    if node.op == "neg":
        inner = _whole(node.args[0])
        return None if inner is None else -inner
    return node.value if node.op == "num" and isinstance(node.value, Fraction) else None


def is_literal(node: Node) -> bool:
    r"""Whether a tree is an integer, a decimal, a fraction, a mixed or a scientific number, perhaps named or in percent.

    A fraction whose value is an integer is a division that was not done.

    >>> from mathturn_gym.verifier.parser import parse
    >>> [is_literal(parse(text).node) for text in ("-3/4", "18/2", "12+34", "6.02\\cdot 10^{23}", "x=5")]
    [True, False, False, True, True]
    """
    if is_equation(node):
        value = named_value(node)
        # `5+2=7` is a statement about numbers, and names nothing.
        return len(node.args) == 2 and value is not None and bool(symbols(node)) and is_literal(value)
    if node.op in ("neg", "percent", "list"):
        return all(map(is_literal, node.args))
    if node.op in ("num", "mixed"):
        return True
    if node.op == "div":
        top, bottom = _whole(node.args[0]), _whole(node.args[1])
        return top is not None and bottom is not None and bool(bottom) and (top / bottom).denominator != 1
    if node.op == "mul":
        return len(node.args) == 2 and _whole(node.args[0]) is not None and _power_of_ten(node.args[1], 1)
    return _power_of_ten(node, 6)


def _power_of_ten(node: Node, least: int) -> bool:
    """Whether a tree is a power of ten that is large or small enough to be a way of writing, not a task."""
    if node.op != "pow" or _whole(node.args[0]) != 10:
        return False
    power = _whole(node.args[1])
    return power is not None and power.denominator == 1 and abs(power) >= least
