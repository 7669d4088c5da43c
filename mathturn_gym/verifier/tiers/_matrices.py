"""Matrices that are still to be added, subtracted or multiplied, as the matrix that comes out."""

from __future__ import annotations

import functools
from fractions import Fraction

from mathturn_gym.verifier.reading._nodes import Node, Transformer, UndefinedError

__all__ = ["with_matrices_worked_out"]

_MAX_POWER = 6


class _WorkOut(Transformer):
    """Raises `UndefinedError` where shapes do not fit, or a matrix stands where only a number can."""

    def visit_add(self, node: Node) -> Node:
        args = tuple(map(self.visit, node.args))
        if not any(arg.kind == "matrix" for arg in args):
            return Node("add", args)
        first = args[0]
        if any(arg.kind != "matrix" or arg.value != first.value for arg in args):
            raise UndefinedError("matrices of different shapes")
        return Node(
            "matrix",
            tuple(Node("add", entries) for entries in zip(*(arg.args for arg in args), strict=True)),
            first.value,
        )

    def visit_neg(self, node: Node) -> Node:
        inner = self.visit(node.args[0])
        if inner.kind != "matrix":
            return Node("neg", (inner,))
        return Node("matrix", tuple(Node("neg", (entry,)) for entry in inner.args), inner.value)

    def visit_mul(self, node: Node) -> Node:
        result, *rest = map(self.visit, node.args)
        for arg in rest:
            result = _times(result, arg)
        return result

    def visit_pow(self, node: Node) -> Node:
        base, exponent = self.visit(node.args[0]), node.args[1]
        if base.kind != "matrix":
            return Node("pow", (base, exponent))
        rows, columns = _shape(base)
        if exponent.kind == "sym" and exponent.value == "T":
            entries = [base.args[row * columns + column] for column in range(columns) for row in range(rows)]
            return Node("matrix", tuple(entries), (columns, rows))
        power = exponent.value
        if not isinstance(power, Fraction) or power not in range(1, _MAX_POWER + 1):
            raise UndefinedError("power of a matrix")
        return functools.reduce(_times, [base] * int(power))


_WORK_OUT = _WorkOut()


def _times(left: Node, right: Node) -> Node:
    if left.kind != "matrix" and right.kind != "matrix":
        return Node("mul", (left, right))
    if left.kind != "matrix" or right.kind != "matrix":
        matrix, factor = (left, right) if left.kind == "matrix" else (right, left)
        return Node("matrix", tuple(Node("mul", (factor, entry)) for entry in matrix.args), matrix.value)
    (rows, inner), (other, columns) = _shape(left), _shape(right)
    if inner != other:
        raise UndefinedError("matrices that cannot be multiplied")
    entries = []
    for row in range(rows):
        for column in range(columns):
            products = [
                Node("mul", (left.args[row * inner + k], right.args[k * columns + column])) for k in range(inner)
            ]
            entries.append(products[0] if inner == 1 else Node("add", tuple(products)))
    return Node("matrix", tuple(entries), (rows, columns))


def _shape(matrix: Node) -> tuple[int, int]:
    assert isinstance(matrix.value, tuple)
    rows, columns = map(int, matrix.value)
    return rows, columns


def _holds_matrix(node: Node) -> bool:
    """Whether a matrix stands under nothing but signs of arithmetic and equality."""
    if node.kind not in ("add", "mul", "neg", "rel", "pow"):
        return False
    return any(arg.kind == "matrix" or _holds_matrix(arg) for arg in node.args)


def with_matrices_worked_out(node: Node) -> Node:
    r"""The tree with its sums and products of matrices as matrices; the tree itself where there is nothing to work out.

    >>> from mathturn_gym.verifier.reading._parser import parse
    >>> tree = parse("\\begin{matrix}1\x012\\end{matrix}+\\begin{matrix}3\x014\\end{matrix}").node
    >>> with_matrices_worked_out(tree).kind
    'matrix'
    """
    if not _holds_matrix(node):
        return node
    try:
        return _WORK_OUT.visit(node)
    except UndefinedError:
        return node
