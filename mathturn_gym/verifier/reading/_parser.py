r"""A cleaned answer as a tree: recursive descent with a bound on depth and on tokens, so it always ends.

The grammar, from the outside in:

    list      item {"," | ";" | and | or} item
    item      set {"=" | "<" | … } set                     relations, memberships, congruences, ratios
    set       sum {\cup | \cap | \setminus} sum
    sum       ["+" | "-" | \pm] product {("+" | "-" | \pm | \mp) product}
    product   power {["*" | "/" | \div] power}             a missing sign multiplies
    power     atom {"^" atom | "!" | "%" | \degree | "_" atom}

What it does not cover (integrals, sums, limits, cases) raises `ParseError`: another tier's work.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from mathturn_gym.verifier.reading._cleaning import ROW
from mathturn_gym.verifier.reading._lexer import Token, listed, tokenize
from mathturn_gym.verifier.reading._nodes import (
    Node,
    NodeKind,
    ParseError,
    check_depth,
    is_name,
    number,
    ungroup,
    without_approximation,
)
from mathturn_gym.verifier.reading._phrases import may_follow

_MAX_DEPTH = 60
_CONSTANTS = {"\\pi": "pi", "\\infty": "inf"}
_SETS = "RZNQC"
# Expectation, probability, variance: names of functions to us.
_OPERATORS = "EPV"
GREEK = listed(
    """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega Gamma
    Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar partial triangle angle square star circ
    """
)
_PRIME = "'"
_ACCENTS = ("\\bar", "\\overline", "\\hat", "\\widehat", "\\tilde")
_MEMBERSHIPS = {
    "\\ni": "\\in",
    "\\notni": "\\notin",
    "\\supset": "\\subset",
    "\\supseteq": "\\subseteq",
    "\\nsupseteq": "\\nsubseteq",
}
_RELATIONS = ("=", "<", ">", "<=", ">=", "!=", "~", "\\in", ":", "\\equiv", *_MEMBERSHIPS, *_MEMBERSHIPS.values())
_JOIN = {"or": "or", "and": "and", ", and": "and", "and/or": "or", ",": ",", ", or": "or", "&": "and"}
_SET_OPERATIONS: Final[dict[str, NodeKind]] = {"\\cup": "union", "\\cap": "inter", "\\setminus": "minus"}
_PLUS_MINUS: Final[dict[str, NodeKind]] = {"\\pm": "pm", "\\mp": "mp"}
# Functions that are node kinds of their own, since brackets write them too.
_OWN_KINDS: Final[dict[str, NodeKind]] = {"abs": "abs", "floor": "floor", "ceil": "ceil"}
_TIMES: Final[dict[str, NodeKind]] = {"*": "mul", "/": "div", "div": "obelus"}
# Signs that begin a factor whose sign of multiplication was left out.
_STARTS_FACTOR = frozenset(
    ("(", "{", "[", "\\sqrt", "\\frac", "\\binom", "\\lfloor", "\\lceil", "\\begin{matrix}", *_ACCENTS, *_CONSTANTS)
) | {f"\\{name}" for name in GREEK}


class Parsed:
    r"""What a text holds: its tree and the units that were written behind numbers.

    Args:
        node: The tree.
        units: Unit texts, in their order.
        degrees: A degree sign was dropped.
        approximate: What is named is only said to be about equal to its value: `x \\approx 5`.
        commas: Where a comma stands before three digits: whether it was read as one between thousands (True) or as one
            between two items (False); None where there is no such comma.
    """

    __slots__ = ("approximate", "commas", "degrees", "node", "units")

    def __init__(self, node: Node, units: tuple[str, ...], degrees: bool, approximate: bool) -> None:
        self.node = node
        self.units = units
        self.degrees = degrees
        self.approximate = approximate
        self.commas: bool | None = None


def parse(text: str, *, thousands: bool = True) -> Parsed:
    r"""The tree of a cleaned text.

    Raises:
        ParseError: the text is not covered by the grammar.

    >>> parse("\\frac{1}{2}x").node.kind
    'mul'
    """
    parser = _Parser(tokenize(text, thousands=thousands))
    try:
        node = parser.whole()
    except RecursionError:
        raise ParseError("too deep") from None
    check_depth(node)
    node = ungroup(node)
    approximate = (
        parser.approximate and isinstance(node.value, tuple) and node.value[0] == "~" and is_name(node.args[0])
    )
    if parser.approximate:
        node = without_approximation(node)
    return Parsed(node, tuple(parser.units), parser.degrees, approximate)


def _times(left: Node, right: Node) -> Node:
    """A product, flat however long it is."""
    return Node("mul", (*left.args, right) if left.kind == "mul" else (left, right))


def _at_most_one(node: Node) -> bool:
    """Whether a number is 1 or less: what it counts stands in the singular."""
    numbers = [arg.value for arg in node.args] if node.kind == "div" else [node.value, Fraction(1)]
    top, bottom = numbers if len(numbers) == 2 else (None, None)
    return isinstance(top, Fraction) and isinstance(bottom, Fraction) and top <= bottom


def _literal(digits: str) -> Fraction:
    try:
        return Fraction(int(digits)) if digits.isdigit() else Fraction(digits)
    except ValueError:  # more digits than the interpreter is set to read
        raise ParseError("too many digits") from None


def _letter(letter: str) -> Node:
    return Node("const", (), letter) if letter in ("e", "i") else Node("sym", (), letter)


def _sum(terms: list[Node]) -> Node:
    if len(terms) == 2 and terms[1].kind == "neg" and terms[1].args[0].kind == "set":
        return Node("minus", (terms[0], terms[1].args[0]))
    return terms[0] if len(terms) == 1 else Node("add", tuple(terms))


# Functions that are written by others: their reciprocals, or the same function of the reciprocal.
_RECIPROCALS = {"sech": "cosh", "csch": "sinh", "coth": "tanh"}
_INVERTED = frozenset(("sin", "cos", "tan", "csc", "sec", "cot"))
_OF_RECIPROCALS = {"arcsec": "arccos", "arccsc": "arcsin", "arccot": "arctan"}


def _function(name: str, argument: Node, base: Node | None) -> Node:
    """A function of its argument, written with those that are evaluated."""
    if base is None and argument.kind == "fn" and argument.value == f"arc{name}" and len(argument.args) == 1:
        return argument.args[0]  # sin(arcsin x) is x wherever it is anything
    if name in _RECIPROCALS:
        return Node("div", (number(1), Node("fn", (argument,), _RECIPROCALS[name])))
    if name in ("max", "min") and argument.kind == "tuple" and len(argument.args) == 2:
        # The larger of two is their mean and half of their distance.
        one, other = argument.args
        difference = Node("abs", (Node("add", (one, Node("neg", (other,)))),))
        distance = difference if name == "max" else Node("neg", (difference,))
        return Node("div", (Node("add", (one, other, distance)), number(2)))
    if name in _OF_RECIPROCALS:
        return Node("fn", (Node("div", (number(1), argument)),), _OF_RECIPROCALS[name])
    return Node("fn", (argument,) if base is None else (argument, base), name)


class _Parser:
    """One pass over a list of tokens: each method reads what its name says from where the last one stopped.

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
        self.approximate = False

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
        if token.value == "[" and all(later.value != "]" for later in self.tokens[self.at + 1 :]):
            return False  # `[1, 2[`
        return token.kind == "op" and token.value in _STARTS_FACTOR

    def unit(self, token: Token, left: Node) -> bool:
        """Takes the unit behind an operand; False where the text joins alternatives and is no unit."""
        content = token.value.strip().lower()
        if content.strip(" ,~") in ("or", "and", "and/or", "") and content.strip(" ~"):
            return False
        if len(content) > 60 or not may_follow(content, one=_at_most_one(left)):
            raise ParseError("text that is no unit")
        self.at += 1
        power = ""
        if self.take("^"):
            mark = self.at
            self.power_argument()
            power = "^" + "".join(item.value for item in self.tokens[mark : self.at] if item.value not in "{}")
        if content.startswith("degree") or content == "deg":
            self.degree(left)
        elif content:
            self.units.append(content.strip(". ") + power)
        return True

    # From the outside in: lists, relations, sets, sums, products.

    def whole(self) -> Node:
        node = self.list_of()
        if self.at != len(self.tokens):
            raise ParseError("text left over")
        return node

    def joiner(self) -> str | None:
        """The separator that comes next, as `,`, `and` or `or`; it is taken."""
        found: str | None = None
        while (token := self.peek()) is not None:
            if token.kind == "op" and token.value in (",", ";", "and", "or", ROW):
                word = "," if token.value in (";", ROW) else token.value
            elif token.kind == "text" and (joined := _JOIN.get(token.value.strip().lower().strip(" ~"))) is not None:
                word = joined
            else:
                break
            found = word if found in (None, ",") else found
            self.at += 1
        return found

    def list_of(self) -> Node:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ParseError("too deep")
        items = [self.item()]
        words: list[str] = []
        while (word := self.joiner()) is not None:
            if self.peek() is None or self.is_op(")", "]", "\\}", "}"):
                break
            words.append(word)
            items.append(self.item())
        self.depth -= 1
        return items[0] if len(items) == 1 else Node("list", tuple(items), tuple(words))

    def item(self) -> Node:
        parts = [self.set_of()]
        ops: list[str] = []
        while (token := self.peek()) is not None and token.kind == "op" and token.value in _RELATIONS:
            self.at += 1
            ops.append(token.value)
            self.approximate |= token.value == "~"
            parts.append(self.set_of())
        if not ops:
            return parts[0]
        if len(ops) == 1 and ops[0] in _MEMBERSHIPS:
            # A contains x: x is in A.
            return Node("rel", (parts[1], parts[0]), (_MEMBERSHIPS[ops[0]],))
        if ops[0] == "\\equiv":
            return self.congruence(parts, ops)
        if all(op == ":" for op in ops):
            return Node("ratio", tuple(parts))
        if "\\equiv" in ops:
            raise ParseError("mixed relations")
        if ":" in ops:
            return self.ratios(parts, ops)
        return Node("rel", tuple(parts), tuple(ops))

    def ratios(self, parts: list[Node], ops: list[str]) -> Node:
        """`V_1 : V_2 = 11 : 21`: a relation between ratios."""
        sides = [[parts[0]]]
        signs: list[str] = []
        for op, part in zip(ops, parts[1:], strict=True):
            if op == ":":
                sides[-1].append(part)
            else:
                signs.append(op)
                sides.append([part])
        nodes = [side[0] if len(side) == 1 else Node("ratio", tuple(side)) for side in sides]
        return Node("rel", tuple(nodes), tuple(signs))

    def congruence(self, parts: list[Node], ops: list[str]) -> Node:
        bracket = self.take("(")
        if len(parts) != 2 or not self.take("mod"):
            raise ParseError("congruence without modulus")
        modulus = self.group() if self.is_op("{") else self.product()
        if bracket:
            self.expect(")")
        return Node("cong", (parts[0], parts[1], modulus))

    def set_of(self) -> Node:
        left = self.sum_of()
        while (token := self.peek()) is not None and token.kind == "op":
            kind = _SET_OPERATIONS.get(token.value)
            if kind is None:
                break
            self.at += 1
            right = self.sum_of()
            left = Node(kind, (*left.args, right)) if left.kind == kind == "union" else Node(kind, (left, right))
        return left

    def sum_of(self) -> Node:
        sign = "+"
        while (token := self.peek()) is not None and token.kind == "op" and token.value in ("+", "-", "\\pm", "\\mp"):
            sign = {"--": "+", "+-": "-", "-+": "-"}.get(sign + token.value, token.value)
            self.at += 1
        left = self.product()
        if sign == "-" and left.kind == "percent":
            left = Node("percent", (Node("neg", left.args),))
        elif sign == "-":
            left = Node("neg", (left,))
        elif sign in _PLUS_MINUS:
            left = Node(_PLUS_MINUS[sign], (number(0), left))
        terms = [left]
        while (token := self.peek()) is not None and token.kind == "op" and token.value in ("+", "-", "\\pm", "\\mp"):
            self.at += 1
            minus = 0
            while self.is_op("+", "-"):
                minus += self.is_op("-")
                self.at += 1
            right = self.product()
            right = Node("neg", (right,)) if minus % 2 else right
            if token.value in _PLUS_MINUS:
                terms = [Node(_PLUS_MINUS[token.value], (_sum(terms), right))]
            else:
                terms.append(Node("neg", (right,)) if token.value == "-" else right)
        return _sum(terms)

    def product(self) -> Node:
        left = self.power()
        if left.kind == "num" and self.starts_mixed(left):
            fraction = self.power()
            if fraction.kind == "percent":
                left = Node("percent", (Node("mixed", (left, fraction.args[0])),))
            else:
                left = Node("mixed", (left, fraction))
        while (token := self.peek()) is not None:
            if token.kind == "op" and token.value in _TIMES:
                self.at += 1
                minus = self.take("-")
                right = self.power()
                right = Node("neg", (right,)) if minus else right
                kind = _TIMES[token.value]
                left = _times(left, right) if kind == "mul" else Node(kind, (left, right))
            elif token.kind == "text":
                if not self.unit(token, left):
                    return left
            elif self.starts_factor(token):
                if token.kind == "num" and (left.args[-1] if left.kind == "mul" else left).kind == "num":
                    raise ParseError("two numbers side by side")
                left = _times(left, self.power())
            else:
                return left
        return left

    def starts_mixed(self, left: Node) -> bool:
        r"""Whether a proper fraction of literal integers follows an integer: `3\\frac{1}{2}`."""
        token = self.peek()
        value = left.value
        if token is None or token.value != "\\frac" or not isinstance(value, Fraction) or value.denominator != 1:
            return False
        mark = self.at
        fraction = self.power()
        self.at = mark
        fraction = fraction.args[0] if fraction.kind == "percent" else fraction
        top, bottom = (arg.value for arg in fraction.args) if fraction.kind == "div" else (None, None)
        return isinstance(top, Fraction) and isinstance(bottom, Fraction) and 0 < top < bottom

    # One operand, with its exponents, brackets, functions and units.

    def power(self) -> Node:
        """An operand with its exponents, factorials, subscripts."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
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
            elif token.value == _PRIME and node.kind == "sym":
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
        self.units.append("degrees")
        return node

    def subscript(self, node: Node) -> Node:
        """A name with its index, whatever that is, or a number with its base."""
        if node.kind == "num" or (node.kind == "group" and node.args[0].kind == "num"):
            return Node("based", (node if node.kind == "num" else node.args[0], self.power_argument()))
        if node.kind != "sym" and not (node.kind == "const" and node.value in ("e", "i")):
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
        if token is not None and token.kind == "op" and token.value in ("*", _PRIME):
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
            return Node("num", (), _literal(token.value))
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
            return Node("set", inner.args if inner.kind == "list" else (inner,))
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
        if value == "\\det":
            return Node("det", (self.power(),))
        if value in _CONSTANTS:
            return Node("const", (), _CONSTANTS[value])
        if value == "\\mathbb":
            self.expect("{")
            token = self.peek()
            self.at += 1
            self.expect("}")
            if token is None or token.value not in _SETS + _OPERATORS:
                raise ParseError("unknown set")
            return Node("sym", (), token.value if token.value in _OPERATORS else f"set:{token.value}")
        if value[1:] in GREEK or value == "\\ldots":
            return Node("sym", (), value)
        if value in _ACCENTS:
            return self.accented(value)
        raise ParseError(f"unknown command {value}")

    def accented(self, value: str) -> Node:
        """A name with a sign over it, as part of the name; digits with a bar were read by `clean` where they repeat."""
        node = self.power_argument()
        letters = node.args if node.kind == "mul" else (node,)
        if any(letter.kind not in ("sym", "const") for letter in letters):
            raise ParseError("a sign over an expression")
        if value == "\\hat" and letters[0].value in ("i", "j", "k", "\\imath", "\\jmath"):
            return node  # a unit vector, whatever is drawn over it
        accent = "bar" if value == "\\overline" else value.removeprefix("\\").removeprefix("wide")
        return Node("sym", (), f"{accent}:{''.join(str(letter.value) for letter in letters)}")

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
            if self.take(ROW):
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
        if self.take("\\mid"):
            # One event under the condition of another: P(A | B).
            inner = Node("rel", (inner, self.list_of()), ("\\mid",))
        self.bars = bars
        closing = self.peek()
        if closing is None or closing.value not in (")", "]", "["):
            raise ParseError("bracket not closed")
        self.at += 1
        if closing.value == "[" and (opening == "(" or inner.kind != "list"):
            raise ParseError("bracket not closed")
        left = "[" if opening == "[" else "("
        right = "]" if closing.value == "]" else ")"
        if inner.kind != "list":
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
        elif name in _OWN_KINDS:
            node = Node(_OWN_KINDS[name], (argument,))
        else:
            inverse = exponent == Node("neg", (number(1),)) and name in _INVERTED
            exponent = None if inverse else exponent
            name = f"arc{name}" if inverse else name
            node = _function(name, argument, base)
        return node if exponent is None else Node("pow", (node, exponent))

    def argument(self, name: str) -> Node:
        """What a function is applied to: a bracket, or factors up to the next sign or function."""
        if self.is_op("("):
            node = self.brackets()
            return node.args[0] if node.kind == "group" else node
        if name in ("sqrt", "cbrt"):
            return self.fraction_part()
        node = self.power()
        while (token := self.peek()) is not None and self.starts_factor(token):
            if token.kind == "fn" or token.value in ("(", "[", "|", "\\begin{matrix}"):
                break
            node = _times(node, self.power())
        return node
