r"""The lower half of the grammar: one operand, with its brackets, functions, exponents and units."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from fractions import Fraction

from mathturn_gym.verifier.lexer import Token
from mathturn_gym.verifier.nodes import Node, ParseError, number
from mathturn_gym.verifier.words import NOT_A_UNIT

__all__ = ["MAX_DEPTH", "AtomParser", "times"]

MAX_DEPTH = 60
_CONSTANTS = {"\\pi": "pi", "\\infty": "inf"}
_SETS = frozenset("RZNQC")
_GREEK = frozenset(
    [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "eta",
        "theta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "phi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "hbar",
        "partial",
        "triangle",
        "angle",
        "square",
        "star",
        "circ",
    ]
)
_PRIMES = "'"


def times(left: Node, right: Node) -> Node:
    """A product, flat however long it is."""
    return Node("mul", (*left.args, right) if left.op == "mul" else (left, right))


def _letter(letter: str) -> Node:
    return Node("const", (), letter) if letter in ("e", "i") else Node("sym", (), letter)


class AtomParser(ABC):
    """Reads operands from a list of tokens; what stands inside of brackets is the upper half's work.

    Args:
        tokens: The tokens.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        self.in_function = 0
        self.units: list[str] = []
        self.degrees = False

    @abstractmethod
    def list_of(self) -> Node:
        """A list, or its only item."""

    @abstractmethod
    def item(self) -> Node:
        """A relation, or its only side."""

    @abstractmethod
    def set_of(self) -> Node:
        """A set expression or a sum."""

    @abstractmethod
    def sum_of(self) -> Node:
        """A sum."""

    def peek(self, offset: int = 0) -> Token | None:
        """The token at, or after, the place that has been reached."""
        index = self.at + offset
        return self.tokens[index] if index < len(self.tokens) else None

    def is_op(self, *values: str) -> bool:
        """Whether an operator among `values` comes next."""
        token = self.peek()
        return token is not None and token.kind == "op" and token.value in values

    def take(self, *values: str) -> bool:
        """Takes an operator among `values`, if one comes next."""
        if self.is_op(*values):
            self.at += 1
            return True
        return False

    def expect(self, *values: str) -> None:
        """Takes an operator among `values`, or gives up."""
        if not self.take(*values):
            raise ParseError(f"expected {values}")

    def starts_factor(self, token: Token) -> bool:
        """Whether a token begins a factor whose sign of multiplication was left out."""
        if token.kind in ("num", "sym", "fn"):
            return True
        if token.value == "|":
            return self.bars == 0
        return token.kind == "op" and (
            token.value in ("(", "{", "[", "\\sqrt", "\\frac", "\\binom", "\\lfloor", "\\lceil", "\\begin{matrix}")
            or token.value in _CONSTANTS
            or token.value[1:] in _GREEK
        )

    def unit(self, token: Token) -> bool:
        """Takes a unit; False where the text joins alternatives and is no unit."""
        content = token.value.strip().lower()
        if content.strip(" ,~") in ("or", "and", "and/or", "") and content.strip(" ~"):
            return False
        if len(content) > 40 or NOT_A_UNIT.search(content):
            raise ParseError("text that is no unit")
        self.at += 1
        power = ""
        if self.take("^"):
            mark = self.at
            self.power_argument()
            power = "^" + "".join(item.value for item in self.tokens[mark : self.at] if item.value not in "{}")
        if content.startswith("degree") or content == "deg":
            self.degrees = True
        elif content:
            self.units.append(content.strip(". ") + power)
        return True

    def power(self) -> Node:
        """An operand with its exponents, factorials, subscripts."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("too deep")
        node = self.postfix(self.atom())
        self.depth -= 1
        return node

    def postfix(self, node: Node) -> Node:
        """What follows an operand: exponents, factorials, percent and degree signs, subscripts."""
        while (token := self.peek()) is not None and token.kind == "op":
            if token.value == "^":
                self.at += 1
                node = Node("pow", (node, self.power_argument()))
            elif token.value == "!":
                self.at += 1
                node = Node("fact", (node,))
            elif token.value == "%":
                self.at += 1
                node = Node("percent", (node,))
            elif token.value == "\\degree":
                self.at += 1
                node = self.degree(node)
            elif token.value == "_":
                self.at += 1
                node = self.subscript(node)
            elif token.value == _PRIMES and node.op == "sym":
                self.at += 1
                node = Node("sym", (), f"{node.value}'")
            else:
                break
        return node

    def degree(self, node: Node) -> Node:
        """Degrees are radians inside a function, and a unit elsewhere."""
        if self.in_function:
            return Node("mul", (node, Node("div", (Node("const", (), "pi"), number(180)))))
        self.degrees = True
        return node

    def subscript(self, node: Node) -> Node:
        """A name with its index, whatever that is, or a number with its base."""
        if node.op == "num" or (node.op == "group" and node.args[0].op == "num"):
            return Node("based", (node if node.op == "num" else node.args[0], self.power_argument()))
        if node.op != "sym" and not (node.op == "const" and node.value in ("e", "i")):
            raise ParseError("subscript of an expression")
        mark, depth = self.at, 0
        while (token := self.peek()) is not None:
            self.at += 1
            depth += {"{": 1, "}": -1}.get(token.value, 0) if token.kind == "op" else 0
            if depth <= 0:
                break
        name = "".join(token.value for token in self.tokens[mark : self.at] if token.value not in ("{", "}"))
        if depth or not name:
            raise ParseError("subscript without an end")
        return Node("sym", (), f"{node.value}_{name}")

    def power_argument(self) -> Node:
        """What stands in an exponent or a subscript: a group, or one token with its sign."""
        if self.is_op("{"):
            return self.group()
        if self.take("-"):
            return Node("neg", (self.power_argument(),))
        self.take("+")
        token = self.peek()
        # `x^23` is x^2 times 3 in LaTeX, and x to the 23rd where people write plain text, as models do.
        if token is not None and token.kind == "op" and token.value in ("*", _PRIMES):
            self.at += 1
            return Node("sym", (), token.value)
        return self.atom()

    def group(self) -> Node:
        """Braces."""
        self.expect("{")
        bars, self.bars = self.bars, 0
        node = self.list_of()
        self.bars = bars
        self.expect("}")
        return node

    def atom(self) -> Node:
        """An operand without anything behind it."""
        token = self.peek()
        if token is None:
            raise ParseError("operand missing")
        if token.kind == "num":
            self.at += 1
            return Node("num", (), Fraction(token.value))
        if token.kind == "sym":
            self.at += 1
            return _letter(token.value)
        if token.kind == "fn":
            return self.function()
        if token.kind == "text":
            return self.text()
        return self.bracketed(token.value)

    def text(self) -> Node:
        """Words where an operand is expected."""
        token = self.peek()
        assert token is not None
        content = " ".join(token.value.lower().split())
        self.at += 1
        if not re.fullmatch(r"[a-z][a-z '\-]*", content):
            raise ParseError("text that is no word")
        return Node("text", (), content)

    def bracketed(self, value: str) -> Node:
        """An operand that begins with a bracket or a command."""
        if value == "{":
            return self.group()
        if value in ("(", "[", "]"):
            return self.brackets()
        if value == "\\{":
            self.at += 1
            if self.take("\\}"):
                return Node("set")
            inner = self.list_of()
            self.expect("\\}")
            return Node("set", inner.args if inner.op == "list" else (inner,))
        if value == "\\emptyset":
            self.at += 1
            return Node("set")
        if value == "|":
            self.at += 1
            self.bars += 1
            inner = self.set_of()
            self.expect("|")
            self.bars -= 1
            return Node("abs", (inner,))
        if value in ("\\lfloor", "\\lceil"):
            self.at += 1
            inner = self.set_of()
            self.expect("\\rfloor" if value == "\\lfloor" else "\\rceil")
            return Node("floor" if value == "\\lfloor" else "ceil", (inner,))
        return self.command(value)

    def command(self, value: str) -> Node:
        """An operand that begins with a command."""
        self.at += 1
        if value in ("\\frac", "\\binom"):
            top = self.fraction_part()
            bottom = self.fraction_part()
            return Node("div" if value == "\\frac" else "binom", (top, bottom))
        if value == "\\sqrt":
            degree = number(2)
            if self.take("["):
                degree = self.sum_of()
                self.expect("]")
            return Node("root", (self.fraction_part(), degree))
        if value == "\\begin{matrix}":
            return self.matrix()
        if value in _CONSTANTS:
            return Node("const", (), _CONSTANTS[value])
        if value == "\\mathbb":
            self.expect("{")
            token = self.peek()
            self.at += 1
            self.expect("}")
            if token is None or token.value not in _SETS:
                raise ParseError("unknown set")
            return Node("sym", (), f"set:{token.value}")
        if value[1:] in _GREEK or value == "\\ldots":
            return Node("sym", (), value)
        if value == "\\bar" or value == "\\overline":
            return self.repeating(value)
        raise ParseError(f"unknown command {value}")

    def repeating(self, value: str) -> Node:
        """A name with a bar, as part of the name; digits with a bar were read by `clean` where they repeat."""
        node = self.power_argument()
        if node.op not in ("sym", "const"):
            raise ParseError("a bar over an expression")
        return Node("sym", (), f"bar:{node.value}")

    def fraction_part(self) -> Node:
        r"""An argument of `\\frac` or `\\sqrt`: a group, one digit, or an atom."""
        token = self.peek()
        if token is None:
            raise ParseError("operand missing")
        if token.kind == "num" and len(token.value) > 1 and token.value.isdigit():
            # \frac12 is a half, and \frac123 a half times three.
            digits = [Token("num", token.value[0], False), Token("num", token.value[1:], False)]
            self.tokens[self.at : self.at + 1] = digits
            self.at += 1
            return number(int(token.value[0]))
        return self.group() if token.value == "{" else self.atom()

    def matrix(self) -> Node:
        """Rows of equal length."""
        rows: list[list[Node]] = [[]]
        while not self.take("\\end{matrix}"):
            if self.take("\x01"):
                rows.append([])
            elif not self.take("&"):
                rows[-1].append(self.item())
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise ParseError("rows of different lengths")
        return Node("matrix", tuple(entry for row in rows for entry in row), (len(rows), len(rows[0])))

    def brackets(self) -> Node:
        """Round and square brackets: a group, a tuple or an interval."""
        opening = self.tokens[self.at].value
        self.at += 1
        bars, self.bars = self.bars, 0
        inner = self.list_of()
        self.bars = bars
        closing = self.peek()
        if closing is None or closing.value not in (")", "]", "["):
            raise ParseError("bracket not closed")
        self.at += 1
        if closing.value == "[" and opening != "]":
            raise ParseError("bracket not closed")
        left = "[" if opening == "[" else "("
        right = "]" if closing.value == "]" else ")"
        if inner.op != "list":
            if left + right in ("()", "[]"):
                return Node("group", (inner,))
            raise ParseError("brackets that do not match")
        if len(inner.args) == 2 and left + right != "()":
            return Node("interval", inner.args, left + right)
        if left + right not in ("()", "[]"):
            raise ParseError("brackets that do not match")
        return Node("tuple", inner.args)

    def function(self) -> Node:
        """A function with its exponent and its base."""
        name = self.tokens[self.at].value
        self.at += 1
        exponent: Node | None = None
        base: Node | None = None
        while self.is_op("^", "_"):
            if self.take("_"):
                base = self.power_argument()
            else:
                self.at += 1
                exponent = self.power_argument()
        self.in_function += 1
        argument = self.argument(name)
        self.in_function -= 1
        if name in ("sqrt", "cbrt"):
            node = Node("root", (argument, number(2 if name == "sqrt" else 3)))
        elif name in ("abs", "floor", "ceil"):
            node = Node(name, (argument,))
        else:
            inverse = exponent == Node("neg", (number(1),)) and name in ("sin", "cos", "tan")
            exponent = None if inverse else exponent
            name = f"arc{name}" if inverse else name
            node = Node("fn", (argument,) if base is None else (argument, base), name)
        return node if exponent is None else Node("pow", (node, exponent))

    def argument(self, name: str) -> Node:
        """What a function is applied to: a bracket, or factors up to the next sign or function."""
        if self.is_op("("):
            node = self.brackets()
            return node.args[0] if node.op == "group" else node
        if name in ("sqrt", "cbrt"):
            return self.fraction_part()
        node = self.power()
        while (token := self.peek()) is not None and self.starts_factor(token):
            if token.kind == "fn" or token.value in ("(", "[", "|", "\\begin{matrix}"):
                break
            node = times(node, self.power())
        return node
