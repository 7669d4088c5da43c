r"""A cleaned answer as a tree: recursive descent with a bound on depth and on tokens, so it always ends.

The grammar, from the outside in:

    list      item {"," | ";" | and | or} item
    item      set {"=" | "<" | … } set                     relations, memberships, congruences, ratios
    set       sum {\cup | \cap | \setminus} sum
    sum       ["+" | "-" | \pm] product {("+" | "-" | \pm | \mp) product}
    product   power {["*" | "/" | \div] power}             a missing sign multiplies
    power     atom {"^" atom | "!" | "%" | \degree | "_" atom}

What it does not cover (integrals, sums, limits, cases) raises `ParseError`: another judge's work.
"""

from __future__ import annotations

from fractions import Fraction

from mathturn_gym.verifier.atoms import MAX_DEPTH, AtomParser, times
from mathturn_gym.verifier.lexer import tokenize
from mathturn_gym.verifier.nodes import Node, ParseError, check_depth, number, ungroup

__all__ = ["Parsed", "parse"]

_RELATIONS = ("=", "<", ">", "<=", ">=", "!=", "~", "\\in", ":", "\\equiv")
_JOIN = {"or": "or", "and": "and", ", and": "and", "and/or": "or", ",": ",", ", or": "or", "&": "and"}


class Parsed:
    """What a text holds: its tree and the units that were written behind numbers.

    Args:
        node: The tree.
        units: Unit texts, in their order.
        degrees: A degree sign was dropped.
    """

    __slots__ = ("degrees", "node", "units")

    def __init__(self, node: Node, units: tuple[str, ...], degrees: bool) -> None:
        self.node = node
        self.units = units
        self.degrees = degrees


def parse(text: str, *, thousands: bool = True) -> Parsed:
    r"""The tree of a cleaned text.

    Raises:
        ParseError: the text is not covered by the grammar.

    >>> parse("\\frac{1}{2}x").node.op
    'mul'
    """
    parser = _Parser(tokenize(text, thousands=thousands))
    try:
        node = parser.whole()
    except RecursionError:
        raise ParseError("too deep") from None
    check_depth(node)
    return Parsed(ungroup(node), tuple(parser.units), parser.degrees)


class _Parser(AtomParser):
    def whole(self) -> Node:
        node = self.list_of()
        if self.at != len(self.tokens):
            raise ParseError("text left over")
        return node

    def joiner(self) -> str | None:
        """The separator that comes next, as `,`, `and` or `or`; it is taken."""
        found: str | None = None
        while (token := self.peek()) is not None:
            if token.kind == "op" and token.value in (",", ";", "and", "or"):
                word = "," if token.value == ";" else token.value
            elif token.kind == "text" and (joined := _JOIN.get(token.value.strip().lower().strip(" ~"))) is not None:
                word = joined
            else:
                break
            found = word if found in (None, ",") else found
            self.at += 1
        return found

    def list_of(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
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
            parts.append(self.set_of())
        if not ops:
            return parts[0]
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
            op = {"\\cup": "union", "\\cap": "inter", "\\setminus": "minus"}.get(token.value)
            if op is None:
                break
            self.at += 1
            right = self.sum_of()
            left = Node(op, (*left.args, right)) if left.op == op == "union" else Node(op, (left, right))
        return left

    def sum_of(self) -> Node:
        sign = "+"
        while (token := self.peek()) is not None and token.kind == "op" and token.value in ("+", "-", "\\pm", "\\mp"):
            sign = {"--": "+", "+-": "-", "-+": "-"}.get(sign + token.value, token.value)
            self.at += 1
        left = self.product()
        if sign == "-" and left.op == "percent":
            left = Node("percent", (Node("neg", left.args),))
        elif sign == "-":
            left = Node("neg", (left,))
        elif sign in ("\\pm", "\\mp"):
            left = Node(sign[1:], (number(0), left))
        terms = [left]
        while (token := self.peek()) is not None and token.kind == "op" and token.value in ("+", "-", "\\pm", "\\mp"):
            self.at += 1
            minus = 0
            while self.is_op("+", "-"):
                minus += self.is_op("-")
                self.at += 1
            right = self.product()
            right = Node("neg", (right,)) if minus % 2 else right
            if token.value in ("\\pm", "\\mp"):
                terms = [Node(token.value[1:], (_sum(terms), right))]
            else:
                terms.append(Node("neg", (right,)) if token.value == "-" else right)
        return _sum(terms)

    def product(self) -> Node:
        left = self.power()
        if left.op == "num" and self.starts_mixed(left):
            fraction = self.power()
            if fraction.op == "percent":
                left = Node("percent", (Node("mixed", (left, fraction.args[0])),))
            else:
                left = Node("mixed", (left, fraction))
        while (token := self.peek()) is not None:
            if token.kind == "op" and token.value in ("*", "/", "div"):
                self.at += 1
                minus = self.take("-")
                right = self.power()
                right = Node("neg", (right,)) if minus else right
                op = {"*": "mul", "/": "div", "div": "obelus"}[token.value]
                left = times(left, right) if op == "mul" else Node(op, (left, right))
            elif token.kind == "text":
                if not self.unit(token):
                    return left
            elif self.starts_factor(token):
                left = times(left, self.power())
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
        fraction = fraction.args[0] if fraction.op == "percent" else fraction
        top, bottom = (arg.value for arg in fraction.args) if fraction.op == "div" else (None, None)
        return isinstance(top, Fraction) and isinstance(bottom, Fraction) and 0 < top < bottom


def _sum(terms: list[Node]) -> Node:
    if len(terms) == 2 and terms[1].op == "neg" and terms[1].args[0].op == "set":
        return Node("minus", (terms[0], terms[1].args[0]))
    return terms[0] if len(terms) == 1 else Node("add", tuple(terms))
