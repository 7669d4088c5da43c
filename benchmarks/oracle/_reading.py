"""Reads the plain form of a question back, through Python's own grammar and a short list of names."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import sympy


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
    return _walk(_tree(text), sympy.Integer, _Symbols(), _FUNCTIONS, _sympy_log)


def evaluated(
    text: str, lift: Callable[[int], Any], names: Mapping[str, Any], functions: Mapping[str, Callable[[Any], Any]]
) -> Any:
    """The value of a plain expression in any kind of number that can be calculated with.

    Args:
        text: The expression.
        lift: Makes such a number of an integer.
        names: What its letters stand for.
        functions: What its functions do.

    Raises:
        UnreadableError: it is none, or has another letter or function.
    """
    return _walk(_tree(text), lift, names, functions, None)


@lru_cache(maxsize=1024)
def _tree(text: str) -> ast.expr:
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
        return ast.parse(written, mode="eval").body
    except SyntaxError as error:
        raise UnreadableError(f"{text!r} is no expression") from error


def _multiplied(before: str, piece: str) -> bool:
    """Two neighbors without a sign between them are multiplied, unless the first is a function's name."""
    if before.startswith("log_") or before in _FUNCTIONS:
        return False
    return (before[-1].isalnum() or before == ")") and (piece[0].isalpha() or piece == "(")


class _Symbols(dict[str, Any]):
    """Every letter is itself, pi is pi."""

    def __missing__(self, name: str) -> Any:
        return sympy.pi if name == "pi" else sympy.Symbol(name)


def _sympy_log(base: int, inside: Any) -> Any:
    return sympy.log(inside) / sympy.log(base)


def _walk(
    node: ast.AST,
    lift: Callable[[int], Any],
    names: Mapping[str, Any],
    functions: Mapping[str, Callable[[Any], Any]],
    log: Callable[[int, Any], Any] | None,
) -> Any:
    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return lift(node.value)
        if isinstance(node, ast.Name):
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _APPLY:
            return _APPLY[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
            name = node.func.id
            if name.startswith("log_") and log is not None:
                return log(int(name[4:]), value(node.args[0]))
            return functions[name](value(node.args[0]))
        if isinstance(node, ast.Tuple) and lift is sympy.Integer:
            return sympy.Tuple(*map(value, node.elts))
        raise UnreadableError(f"{ast.dump(node)} is not in the language of the families")

    try:
        return value(node)
    except KeyError as error:
        raise UnreadableError(f"{error.args[0]!r} is not known here") from error


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
