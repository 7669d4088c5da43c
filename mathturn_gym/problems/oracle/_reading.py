"""Reads the plain form of a question back into sympy, through Python's own grammar and a short list of names."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any, Final

import sympy

__all__ = ["UnreadableError", "expression", "gold_value", "numbers"]


class UnreadableError(ValueError):
    """The text is not one that the families write."""


_TOKEN: Final = re.compile(r"\s*(\d+|log_\d+|[A-Za-z]+|\*\*|[-+*/^()|,])")
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "sqrt": sympy.sqrt,
    "ln": sympy.log,
}
_APPLY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def expression(text: str) -> Any:
    """A plain expression as sympy: `3x^2 - (x + 1)(x - 2)/5`.

    Raises:
        UnreadableError: it is none.

    >>> expression("2x^2 - (x + 1)/4").subs("x", 3)
    17
    """
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise UnreadableError(f"unexpected {text[at : at + 10]!r} in {text!r}")
        tokens.append(match[1])
        at = match.end()
    written = ""
    for before, piece in zip([None, *tokens], tokens, strict=False):
        if before is not None and _multiplied(before, piece):
            written += "*"
        written += "**" if piece == "^" else piece
    try:
        return _value(ast.parse(written, mode="eval").body)
    except SyntaxError as error:
        raise UnreadableError(f"{text!r} is no expression") from error


def _multiplied(before: str, piece: str) -> bool:
    """Two neighbours without a sign between them are multiplied, unless the first is a function's name."""
    if before.startswith("log_") or before in _FUNCTIONS:
        return False
    return (before[-1].isalnum() or before == ")") and (piece[0].isalpha() or piece == "(")


def _value(node: ast.AST) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return sympy.Integer(node.value)
    if isinstance(node, ast.Name):
        return sympy.pi if node.id == "pi" else sympy.Symbol(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _APPLY:
        return _APPLY[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        inside, name = _value(node.args[0]), node.func.id
        if name.startswith("log_"):
            return sympy.log(inside) / sympy.log(int(name[4:]))
        return _FUNCTIONS[name](inside)
    if isinstance(node, ast.Tuple):
        return sympy.Tuple(*(_value(part) for part in node.elts))
    raise UnreadableError(f"{ast.dump(node)} is not in the language of the families")


_FRAC: Final = re.compile(r"\\frac\{((?:[^{}]|\{[^{}]*\})*)\}\{((?:[^{}]|\{[^{}]*\})*)\}")


def gold_value(gold: str) -> Any:
    r"""A gold answer of a family as sympy; matrices as `sympy.Matrix`.

    >>> gold_value(r"\frac{-3+\sqrt{5}}{2}") == (sympy.sqrt(5) - 3) / 2
    True
    """
    if "pmatrix" in gold:
        body = re.sub(r"\\(begin|end)\{pmatrix\}", "", gold)
        return sympy.Matrix([[expression(cell) for cell in row.split("&")] for row in body.split(r"\\")])
    text = _FRAC.sub(r"((\1)/(\2))", gold)
    text = re.sub(r"\\sqrt\{(\d+)\}", r"sqrt(\1)", text).replace(r"\pi", "pi").replace(r"\ln", "ln")
    return expression(re.sub(r"(\d)(sqrt|pi|ln)", r"\1*\2", text))


def numbers(text: str) -> list[int]:
    """All whole numbers of a text, signs included where they stand directly before a digit.

    >>> numbers("from -3 to 4")
    [-3, 4]
    """
    return [int(number) for number in re.findall(r"(?<![\w)])-?\d+|\d+", text)]
