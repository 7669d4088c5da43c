r"""A cleaned answer as tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from mathturn_gym.verifier.reading._nodes import ParseError

MAX_TOKENS = 1_500


def listed(words: str) -> frozenset[str]:
    """Words that are separated by spaces, as a set."""
    return frozenset(words.split())


FUNCTIONS = listed(
    """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh sech csch coth arcsec arccsc arccot ln log lg exp
    sqrt cbrt asin acos atan abs floor ceil max min gcd lcm
    """
)
_WORDS = {
    "pi": "\\pi",
    "infinity": "\\infty",
    "inf": "\\infty",
    "oo": "\\infty",
    "or": "or",
    "and": "and",
    "deg": "\\degree",
}
_COMMANDS = {
    "\\leq": "<=", "\\le": "<=", "\\leqslant": "<=", "\\geq": ">=", "\\ge": ">=", "\\geqslant": ">=", "\\lt": "<", "\\gt": ">",
    "\\ne": "!=", "\\neq": "!=", "\\approx": "~", "\\simeq": "~", "\\cdot": "*", "\\times": "*", "\\ast": "*", "\\div": "div",
    "\\lbrace": "\\{", "\\rbrace": "\\}", "\\lvert": "|", "\\rvert": "|", "\\vert": "|", "\\langle": "(", "\\rangle": ")",
    "\\lparen": "(", "\\rparen": ")", "\\lbrack": "[", "\\rbrack": "]", "\\lor": "or", "\\vee": "or", "\\land": "and",
    "\\wedge": "and", "\\varnothing": "\\emptyset", "\\backslash": "\\setminus", "\\pmod": "mod", "\\bmod": "mod", "\\mod": "mod",
    "\\colon": ":", "\\&": "and", "\\tg": "\\tan", "\\ctg": "\\cot", "\\operatorname": "", "\\imath": "i", "\\varphi": "\\phi",
    "\\varepsilon": "\\epsilon", "\\lg": "\\lg", "\\owns": "\\ni", "\\cosec": "\\csc",
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|\\text\s*\{(?P<text>[^{}]*)\}"
    r"|(?P<env>\\(?:begin|end)\{matrix\})"
    r"|(?P<command>\\[a-zA-Z]+|\\[{}&|])"
    r"|(?P<thousands>[1-9]\d{0,2}(?:,\d{3})+(?![\d])(?:\.\d+)?)"
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4}(?![\d]))?)"
    r"|(?P<word>[a-zA-Z]{2,})"
    r"|(?P<letter>[a-zA-Z])"
    r"|(?P<sign><=|>=|!=|==|\*\*|[-+*/^_(){}\[\]|,;:=<>!%&'\x01])"
)
_OPEN = {"(": 1, "[": 1, "\\{": 1, ")": -1, "]": -1, "\\}": -1}


class Token(NamedTuple):
    """A token: `num`, `sym`, `text`, `fn` or `op`, its text, and whether a space comes before it."""

    kind: str
    value: str
    spaced: bool


def _word(word: str, spaced: bool, out: list[Token]) -> None:
    """A run of letters: a function, a known word, or a product of single letters."""
    lower = word.lower()
    if word in FUNCTIONS:
        out.append(Token("fn", word, spaced))
    elif lower in _WORDS and (word == lower or len(word) > 2):
        out.append(Token("op", _WORDS[lower], spaced))
    elif word == "mod":
        out.append(Token("op", "mod", spaced))
    else:
        for index, letter in enumerate(word):
            out.append(Token("sym", letter, spaced and not index))


def tokenize(text: str, *, thousands: bool = True) -> list[Token]:
    r"""Tokens of a cleaned text.

    Args:
        text: See `clean`.
        thousands: Read `1,234` outside brackets as one number rather than as two.

    Raises:
        ParseError: a character that has no place in an answer, or too many tokens.

    >>> [token.value for token in tokenize("\\frac{1}{2} x \\le 3")]
    ['\\frac', '{', '1', '}', '{', '2', '}', 'x', '<=', '3']
    """
    out: list[Token] = []
    at, depth, spaced, size = 0, 0, False, len(text)
    while at < size:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ParseError(f"unknown character {text[at]!r}")
        kind, value = match.lastgroup, match.group()
        at = match.end()
        if kind == "space":
            spaced = True
            continue
        if kind == "thousands" and (not thousands or depth > 0):
            value = value.split(",", 1)[0]
            at = match.start() + len(value)
            kind = "number"
        if kind == "text":
            out.append(Token("text", match["text"], spaced))
        elif kind == "thousands":
            out.append(Token("num", value.replace(",", ""), spaced))
        elif kind == "number":
            out.append(Token("num", value, spaced))
        elif kind == "letter":
            out.append(Token("sym", value, spaced))
        elif kind == "word":
            _word(value, spaced, out)
        elif kind == "command" and value[1:] in FUNCTIONS and value not in ("\\sqrt",):
            out.append(Token("fn", value[1:], spaced))
        else:
            value = _COMMANDS.get(value, value)
            depth += _OPEN.get(value, 0)
            out.append(Token("op", {"**": "^", "==": "="}.get(value, value), spaced))
        spaced = False
        if len(out) > MAX_TOKENS:
            raise ParseError("too long")
    return out
