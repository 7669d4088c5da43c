"""Which answers are finished numbers, with no arithmetic left to do."""

from __future__ import annotations

from fractions import Fraction

from mathturn_gym.verifier.reading._nodes import Node, Visitor, symbols
from mathturn_gym.verifier.reading._prepared import Prepared
from mathturn_gym.verifier.tiers._relations import is_equation, named_value

__all__ = ["asks_for_number", "is_literal", "is_literal_text"]


def _whole(node: Node) -> Fraction | None:
    """A literal number with its sign."""
    if node.kind == "neg":
        inner = _whole(node.args[0])
        return None if inner is None else -inner
    return node.value if node.kind == "num" and isinstance(node.value, Fraction) else None


def _power_of_ten(node: Node, least: int) -> bool:
    """Whether a tree is a power of ten that is large or small enough to be a way of writing, not a task."""
    if node.kind != "pow" or _whole(node.args[0]) != 10:
        return False
    power = _whole(node.args[1])
    return power is not None and power.denominator == 1 and abs(power) >= least


class _IsLiteral(Visitor[bool]):
    def visit_num(self, node: Node) -> bool:
        return True

    visit_mixed = visit_num

    def visit_neg(self, node: Node) -> bool:
        return all(map(self.visit, node.args))

    visit_percent = visit_neg
    visit_list = visit_neg

    def visit_div(self, node: Node) -> bool:
        # A fraction whose value is an integer is a division that was not done.
        top, bottom = _whole(node.args[0]), _whole(node.args[1])
        return top is not None and bottom is not None and bool(bottom) and (top / bottom).denominator != 1

    def visit_mul(self, node: Node) -> bool:
        return len(node.args) == 2 and _whole(node.args[0]) is not None and _power_of_ten(node.args[1], 1)

    def visit_rel(self, node: Node) -> bool:
        value = named_value(node) if is_equation(node) else None
        # `5+2=7` is a statement about numbers, and names nothing.
        return len(node.args) == 2 and value is not None and bool(symbols(node)) and self.visit(value)

    def visit_other(self, node: Node) -> bool:
        return _power_of_ten(node, 6)


_IS_LITERAL = _IsLiteral()


def is_literal(node: Node) -> bool:
    r"""Whether a tree is an integer, a decimal, a fraction, a mixed or a scientific number, perhaps named or in percent.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> [is_literal(parse(text).node) for text in ("-3/4", "18/2", "12+34", "6.02\\cdot 10^{23}", "x=5")]
    [True, False, False, True, True]
    """
    return _IS_LITERAL.visit(node)


def is_literal_text(read: Prepared) -> bool:
    """Whether a text is a literal number, whatever its units."""
    if read.value is not None and (read.value.denominator != 1 or read.text.lstrip("-").isdigit()):
        return True
    return any(is_literal(reading.node) for reading in read.readings)


def asks_for_number(gold: Prepared) -> bool:
    """Whether a gold is one literal number."""
    if gold.value is not None and "," not in gold.text:
        return is_literal_text(gold)
    return is_literal_text(gold) and not any(reading.node.kind == "list" for reading in gold.readings[:1])
