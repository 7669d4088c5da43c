r"""Formulas in texts that a stranger wrote, as MathML that browsers set themselves.

    text ─► formulas_in ─► latex2mathml ─► checked tree of elements, attributes and texts ─► the viewer's data

Nothing of latex2mathml's own serialization is used, which does not escape texts: its tree is copied element by element, and
whatever is not on the lists below makes the formula one that is shown as it was written. So is a formula that moves, hides,
colors or redefines (set, it would not show what was written), that does not parse, or that sets to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias
from xml.etree.ElementTree import Element

from latex2mathml.converter import Converter

from mathturn_gym.base.text import visible

Tree: TypeAlias = "list[Any]"
"""[tag, attributes, child, …]; a child is a tree or a text."""

LONGEST: Final = 800
"""Characters of a formula: the converter takes quadratic time where a text is full of `&`."""
SEARCHED: Final = 20_000
"""Characters of a text in which formulas are looked for: as many as the page shows at first."""
_MOST_TRIES: Final = 1_000
_MOST_IN_A_TEXT: Final = 400
_MOST_CHARACTERS: Final = 1_000_000
_DEEPEST: Final = 60


class Formula(NamedTuple):
    """A formula of a text."""

    start: int  # where it begins
    end: int  # where it ends
    inner: str  # its TeX, without what delimits it
    display: bool  # on a line of its own


_OPENING: Final = re.compile(r"[$\\]")
_ENVIRONMENT: Final = re.compile(
    r"\\begin\{((?:align|aligned|equation|gather|gathered|cases|array|split|[pbBvV]?matrix)\*?)\}"
)
_BOX: Final = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_NO_INLINE: Final = re.compile(r"\A\s|\s\Z|\n\s*\n")


def formulas_in(text: str) -> Iterator[Formula]:
    r"""Yields the formulas of a text, from left to right.

    >>> [one.inner for one in formulas_in(r"$5 and $6, $x^2$ and \boxed{7}.")]
    ['x^2', '\\boxed{7}']
    """
    at = found = 0
    for _ in range(_MOST_TRIES):
        opening = _OPENING.search(text, at, SEARCHED)
        if opening is None or found == _MOST_IN_A_TEXT:
            return
        at = opening.start()
        formula = _formula_at(text, at)
        if formula is not None:
            yield formula
            at, found = formula.end, found + 1
        else:
            at += 2 if text[at] == "\\" or text.startswith("$$", at) else 1


def _formula_at(text: str, at: int) -> Formula | None:
    window = text[at : min(at + LONGEST, SEARCHED)]
    for opening, closing, display in (("$$", "$$", True), ("\\(", "\\)", False), ("\\[", "\\]", True)):
        if window.startswith(opening):
            return _between(window, at, opening, closing, display)
    if window[0] == "$":
        found = _between(window, at, "$", "$", False)
        # a price is no formula: `$5 and $6` opens before a digit and would close after a space.
        if found is None or _NO_INLINE.search(found.inner) or text[found.end : found.end + 1].isdigit():
            return None
        return found
    if _BOX.match(window):
        end = _closing_brace(window)
        return None if end < 0 else Formula(at, at + end + 1, window[: end + 1], display=False)
    environment = _ENVIRONMENT.match(window)
    if environment is not None:
        closing = f"\\end{{{environment[1]}}}"
        end = window.find(closing)
        return None if end < 0 else Formula(at, at + end + len(closing), window[: end + len(closing)], display=True)
    return None


def _between(window: str, at: int, opening: str, closing: str, display: bool) -> Formula | None:
    end = window.find(closing, len(opening))
    inner = window[len(opening) : end]
    return Formula(at, at + end + len(closing), inner, display) if end >= 0 and inner.strip() else None


def _closing_brace(text: str) -> int:
    """Returns where the first brace of a text closes, or -1."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] in "{}":
            depth += 1 if match[0] == "{" else -1
            if not depth:
                return match.start()
    return -1


# ---- from TeX to a checked tree


_TRICKS: Final = re.compile(
    r"\\(?:href|url|includegraphics|html|style|class|css|verb|unicode|[mh]?kern|[mh]skip|hspace|vspace|raise|lower|move"
    r"|[vh]?phantom|[a-z]*[lrc]lap|smash|skew|rule|(?:text|back)?color|f?colorbox|definecolor|[egx]?def|let|futurelet"
    r"|(?:re)?newcommand|providecommand|char|tag)|(?:\\!\s*){4}"
)
# Environments as the converter knows them, and without the numbers that it would add.
_SAME_AS: Final = (
    ("{aligned}", "{align*}"),
    ("{align}", "{align*}"),
    ("{gathered}", "{matrix}"),
    ("{gather}", "{matrix}"),
    ("{gather*}", "{matrix}"),
)
_LEAVES: Final = ("mi", "mn", "mo", "mtext", "mspace")
_SCRIPTS: Final = ("msub", "msup", "msubsup", "munder", "mover", "munderover")
_ELEMENTS: Final = frozenset([*_LEAVES, *_SCRIPTS, "mrow", "mfrac", "msqrt", "mroot", "mstyle", "mtable", "mtr", "mtd"])
_BOOLEAN: Final = re.compile("true|false")
_ATTRIBUTES: Final = {
    **dict.fromkeys(
        ("displaystyle", "stretchy", "fence", "accent", "accentunder", "movablelimits", "largeop"), _BOOLEAN
    ),
    "scriptlevel": re.compile("[012]"),
    "form": re.compile("prefix|infix|postfix"),
    "linethickness": re.compile("0"),
    "columnalign": re.compile("left|right|center"),
    "mathvariant": re.compile("normal|bold|italic|bold-italic|monospace|sans-serif"),
    "width": re.compile(r"[012](\.\d+)?em|-0\.167em"),
    "minsize": re.compile(r"[0123](\.\d+)?em"),
    "maxsize": re.compile(r"[0123](\.\d+)?em"),
}
# Attributes that are left out: without them a formula says the same.
_LOOKS: Final = frozenset(
    ["rowspacing", "columnspacing", "rowlines", "columnlines", "lspace", "rspace", "separator", "symmetric", "height"]
)
_NUMBERED: Final = re.compile(r"&#x([0-9A-Fa-f]{1,6});")
_SILENT: Final = str.maketrans("", "", "\u2061\u2062\u2063\u2064")


class FormulaSetter:
    """Turns formulas into trees, each once, until there have been too many for one page."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], Tree | None] = {}
        self._left = _MOST_CHARACTERS

    def __call__(self, inner: str, *, display: bool = False) -> Tree | None:
        """Returns the formula as a tree of MathML, or None where it is to be shown as it was written."""
        key = (inner, display)
        if key not in self._known:
            self._left -= len(inner)
            self._known[key] = _tree(inner, display) if self._left >= 0 and len(inner) <= LONGEST else None
        return self._known[key]


def _tree(inner: str, display: bool) -> Tree | None:
    if _TRICKS.search(inner) or visible(inner) != inner:
        return None
    for ours, theirs in _SAME_AS:
        inner = inner.replace(ours, theirs)
    try:
        math = Converter(display="block" if display else "inline").convert_to_element(inner)
        children = [_checked(child, 0) for child in math]
    except Exception:  # broken TeX is what models write; the converter raises whatever it runs into
        return None
    tree: Tree = ["math", {"display": "block"} if display else {}, *children]
    return tree if _says_something(tree) else None


class _Unfit(Exception):  # noqa: N818 - no error: the formula is shown as it was written
    pass


def _checked(element: Element, depth: int) -> Tree:
    """Returns the element as a tree of what is allowed."""
    tag, attributes = element.tag, dict(element.attrib)
    if tag == "menclose" and attributes.pop("notation", "") == "box":
        # Browsers draw no `menclose`: the page's styles draw this frame.
        tag, kept = "mrow", {"class": "boxed"}
    elif tag in _ELEMENTS and depth <= _DEEPEST:
        kept = {}
    else:
        raise _Unfit
    for name, value in attributes.items():
        if name in _ATTRIBUTES and _ATTRIBUTES[name].fullmatch(value):
            kept[name] = value
        elif name not in _LOOKS:
            raise _Unfit
    text = _NUMBERED.sub(lambda found: chr(int(found[1], 16)), element.text or "").translate(_SILENT)
    if text.startswith("\\") or text == "&" or visible(text) != text:
        raise _Unfit  # an unknown command, a stray `&`
    inside: Tree = [_checked(child, depth + 1) for child in element]
    if tag == "mrow" and not kept and len(inside) == 1 and not text:
        return list(inside[0])
    return [tag, kept, *([text] if text else []), *inside]


def _says_something(tree: Tree) -> bool:
    return any(child.strip() if isinstance(child, str) else _says_something(child) for child in tree[2:])
