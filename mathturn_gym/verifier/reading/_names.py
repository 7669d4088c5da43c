r"""What only names something: the left sides of `x = 3`, `f(2) = 5`, `AB = 7`, `(x, y) = (1, 2)`."""

from __future__ import annotations

from mathturn_gym.verifier.reading._nodes import Node, Transformer, Visitor, symbols

__all__ = ["is_curve_name", "is_name", "without_approximation"]

# Letters that stand for unknowns side by side (`xy`), where others call something (`f(x)`, which is read the same way).
_UNKNOWNS = frozenset("xyzabcuvtnmk")


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
    visit_abs = visit_add
    visit_ratio = visit_add
    visit_fn = visit_add

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
