"""The syntax tree of an answer: small, immutable, and never run as code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

__all__ = [
    "MAX_DEPTH",
    "Node",
    "ParseError",
    "UndefinedError",
    "Value",
    "check_depth",
    "has_op",
    "number",
    "replace_pm",
    "symbols",
    "ungroup",
    "walk",
]

MAX_DEPTH = 120
"""Levels of a tree; what is deeper is no answer, and recursion stays far from Python's limit."""

Value: TypeAlias = Fraction | str | int | tuple[str, ...] | tuple[int, int] | None


class ParseError(Exception):
    """A text that our grammar does not cover; somebody else may understand it."""


class UndefinedError(ArithmeticError):
    """A tree has no value here: outside the domain, outside the bounds, or not certain."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and what it is applied to.

    Args:
        op: `num`, `sym`, `const` (pi, e, i, inf), `text`; `add`, `neg`, `mul`, `div`, `obelus`, `pow`, `root`, `fn`,
            `abs`, `floor`, `ceil`, `fact`, `binom`, `pm`, `mp`, `percent`; `list`, `tuple`, `set`, `interval`, `matrix`,
            `union`, `inter`, `minus`, `rel`, `ratio`, `cong`, `based`.
        args: The operands.
        value: What `op` needs beyond them: a number, a name, the relation signs, a matrix' shape.
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Value = None


def number(value: int | Fraction) -> Node:
    """A literal number."""
    return Node("num", (), Fraction(value))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(top.args)


def check_depth(node: Node) -> None:
    """Raises `ParseError` where a tree has more than `MAX_DEPTH` levels."""
    level: tuple[Node, ...] = (node,)
    for _ in range(MAX_DEPTH):
        level = tuple(arg for item in level for arg in item.args)
        if not level:
            return
    raise ParseError("too deep")


def ungroup(node: Node) -> Node:
    """The tree without its round brackets, which have done their work."""
    while node.op == "group":
        node = node.args[0]
    return Node(node.op, tuple(ungroup(arg) for arg in node.args), node.value) if node.args else node


def symbols(node: Node) -> frozenset[str]:
    """Names of the unknowns in a node."""
    return frozenset(str(item.value) for item in walk(node) if item.op in ("sym", "text"))


def has_op(node: Node, *ops: str) -> bool:
    """Whether one of these operations occurs."""
    return any(item.op in ops for item in walk(node))


def replace_pm(node: Node, sign: int) -> Node:
    """The node with every ± read as `sign` and every ∓ as its opposite."""
    args = tuple(replace_pm(arg, sign) for arg in node.args)
    if node.op in ("pm", "mp"):
        right = args[1] if (sign > 0) == (node.op == "pm") else Node("neg", (args[1],))
        return Node("add", (args[0], right))
    return Node(node.op, args, node.value)
