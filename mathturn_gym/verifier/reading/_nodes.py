"""The syntax tree of an answer: a closed set of node kinds, and the visitors that walk it; never run as code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, get_args

MAX_DEPTH = 120
"""Levels of a tree; what is deeper is no answer, and recursion stays far from Python's limit."""

NodeKind: TypeAlias = Literal[
    # Leaves: a literal number; an unknown; pi, e, i or inf; words.
    "num",
    "sym",
    "const",
    "text",
    # Arithmetic. `obelus` is ÷ (which does not bind like a fraction), `mixed` is 3 1/2, `mp` is ∓.
    "add",
    "neg",
    "mul",
    "div",
    "obelus",
    "pow",
    "root",
    "fn",
    "abs",
    "floor",
    "ceil",
    "fact",
    "binom",
    "percent",
    "mixed",
    "pm",
    "mp",
    # Round brackets that group; `ungroup` takes them away when they have done their work.
    "group",
    # Collections. `value` holds a list's separators, an interval's brackets, a matrix' shape.
    "list",
    "tuple",
    "set",
    "interval",
    "matrix",
    "det",
    "union",
    "inter",
    "minus",
    # Statements: a chain of relations (`value` holds the signs), a : b, a = b (mod m), digits with their base.
    "rel",
    "ratio",
    "cong",
    "based",
]
KINDS: Final[tuple[NodeKind, ...]] = get_args(NodeKind)

Value: TypeAlias = Fraction | str | int | tuple[str, ...] | tuple[int, int] | None
R = TypeVar("R")


class ParseError(Exception):
    """A text that our grammar does not cover; somebody else may understand it."""


class UndefinedError(ArithmeticError):
    """A tree has no value here: outside the domain, outside the bounds, or not certain."""


class HiddenError(UndefinedError):
    """A part of a tree is too small here to be seen in its value: `x + e^{-1000x^2}` at any point but 0."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation and what it is applied to.

    Args:
        kind: One of `KINDS`; nothing else exists.
        args: The operands.
        value: What the kind needs beyond them: a number, a name, the relation signs, a matrix' shape.
    """

    kind: NodeKind
    args: tuple[Node, ...] = ()
    value: Value = None


class Visitor(Generic[R]):
    """A function on trees, one method for each kind it knows: `visit_num`, `visit_add` …; the rest is `visit_other`.

    >>> class Depth(Visitor[int]):
    ...     def visit_other(self, node: Node) -> int:
    ...         return 1 + max(map(self.visit, node.args), default=0)
    >>> Depth().visit(Node("neg", (number(1),)))
    2
    """

    _methods: ClassVar[dict[NodeKind, Callable[[Any, Node], Any]]] = {}

    def __init_subclass__(cls) -> None:
        """Makes the table of methods, and refuses a method for a kind that does not exist."""
        super().__init_subclass__()
        named = {name.removeprefix("visit_") for name in dir(cls) if name.startswith("visit_")}
        unknown = named - {*KINDS, "other"}
        if unknown:
            raise TypeError(f"{cls.__name__} visits node kinds that do not exist: {sorted(unknown)}")
        cls._methods = {kind: getattr(cls, f"visit_{kind}", cls.visit_other) for kind in KINDS}

    def visit(self, node: Node) -> R:
        """The function's value at a node."""
        result: R = self._methods[node.kind](self, node)
        return result

    def visit_other(self, node: Node) -> R:
        """The value at kinds without a method of their own."""
        raise NotImplementedError(f"{type(self).__name__} has no visit_{node.kind}")


class Transformer(Visitor[Node]):
    """A visitor that makes a new tree: what it has no method for is kept, with its operands transformed."""

    def visit_other(self, node: Node) -> Node:
        """The node over its transformed operands."""
        return Node(node.kind, tuple(map(self.visit, node.args)), node.value) if node.args else node


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


class _Ungroup(Transformer):
    def visit_group(self, node: Node) -> Node:
        return self.visit(node.args[0])


class _ReplacePm(Transformer):
    """Reads every ± as `sign` and every ∓ as its opposite."""

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def visit_pm(self, node: Node) -> Node:
        left, right = map(self.visit, node.args)
        plus = (self.sign > 0) == (node.kind == "pm")
        return Node("add", (left, right if plus else Node("neg", (right,))))

    visit_mp = visit_pm


_UNGROUP = _Ungroup()
_REPLACE_PM = {sign: _ReplacePm(sign) for sign in (1, -1)}


def ungroup(node: Node) -> Node:
    """The tree without its round brackets, which have done their work."""
    return _UNGROUP.visit(node)


def symbols(node: Node) -> frozenset[str]:
    """Names of the unknowns in a node."""
    return frozenset(str(item.value) for item in walk(node) if item.kind in ("sym", "text"))


def has_kind(node: Node, *kinds: NodeKind) -> bool:
    """Whether one of these kinds occurs."""
    return any(item.kind in kinds for item in walk(node))


def replace_pm(node: Node, sign: Literal[1, -1]) -> Node:
    """The node with every ± read as `sign` and every ∓ as its opposite."""
    return _REPLACE_PM[sign].visit(node)


# Letters that stand for unknowns side by side (`xy`), where others call something (`f(x)`, which is read the same way).
_UNKNOWNS = frozenset("xyzabcuvtnmk")


_SOLVED_FOR = frozenset("xyztuvnmk")


class _IsName(Visitor[bool]):
    """Whether a side of an equation only names something: x, f(x), f(2), AB, |AB|, dy/dx, a+b, (x, y), a_1 : b_1."""

    def visit_sym(self, node: Node) -> bool:
        return True

    visit_text = visit_sym

    def visit_const(self, node: Node) -> bool:
        return node.value in ("e", "i")

    def visit_mul(self, node: Node) -> bool:
        if node.args[0].kind == "sym":
            return all(self.visit(arg) or arg.kind == "num" for arg in node.args[1:])
        return self.visit_add(node)

    def visit_add(self, node: Node) -> bool:
        return all(map(self.visit, node.args))

    visit_div = visit_add
    visit_tuple = visit_add
    visit_list = visit_add
    visit_ratio = visit_add

    def visit_abs(self, node: Node) -> bool:
        # |AB| and sin A are asked for; of an unknown they say less than its value: `|x| = 5`, `\\ln x = 5`.
        return self.visit_add(node) and not (node.args[0].kind == "sym" and node.args[0].value in _SOLVED_FOR)

    visit_fn = visit_abs

    def visit_rel(self, node: Node) -> bool:
        # The event of P(X = 1).
        return all(self.visit(arg) or arg.kind == "num" for arg in node.args)

    def visit_other(self, node: Node) -> bool:
        return False


is_name = _IsName().visit


def is_curve_name(node: Node) -> bool:
    """Whether what might be a name is rather one side of a relation between several unknowns: `x + y`, `xy`."""
    if node.kind == "add":
        return len(symbols(node)) > 1
    return node.kind == "mul" and all(arg.kind == "sym" and arg.value in _UNKNOWNS for arg in node.args)


class _WithoutApproximation(Transformer):
    """`x = a ≈ b` says a; `x ≈ b` says b, for want of anything better; `a ≈ b` says a."""

    def visit_rel(self, node: Node) -> Node:
        args = tuple(map(self.visit, node.args))
        signs = node.value
        assert isinstance(signs, tuple)
        if "~" not in signs:
            return Node("rel", args, node.value)
        cut = signs.index("~")
        head, before = args[: cut + 1], tuple(map(str, signs[:cut]))
        if before:
            return Node("rel", head, before)
        return Node("rel", (head[0], args[1]), ("=",)) if is_name(head[0]) else head[0]


without_approximation = _WithoutApproximation().visit
