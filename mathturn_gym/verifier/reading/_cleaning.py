r"""One spelling for what is written in many ways: unicode, spacing, fonts, delimiters, thousands, units.

Everything here is a handful of linear passes over a text of bounded length; nothing changes what an answer means.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Final

from mathturn_gym.verifier.reading._delimiters import closing_brace

# Greek; fractions, roots, functions; operations and relations; arrows; delimiters; accents, and what is drawn around; fonts,
# colors and sizes; dots, spaces, rows; signs. Only names of four letters and more are looked up: short ones may be anybody's macros.
_NAMES: Final = """
alpha beta gamma delta epsilon varepsilon zeta theta vartheta iota kappa varkappa lambda sigma varsigma upsilon omega
varphi varpi varrho Gamma Delta Theta Lambda Sigma Upsilon Omega digamma aleph beth ell hbar imath jmath
frac dfrac tfrac cfrac sqrt binom dbinom tbinom choose over atop arcsin arccos arctan arccot arcsec arccsc arctg sinh
cosh tanh coth limsup liminf prod coprod iint iiint oint bigcup bigcap bigsqcup bigvee bigwedge bigoplus bigotimes
bigodot bigtriangleup bigtriangledown argmax argmin operatorname mathop mathbin mathrel mathord injlim projlim
cdot cdots cdotp times divideontimes circ bullet star oplus ominus otimes odot oslash wedge setminus smallsetminus
bmod pmod approx approxeq simeq cong equiv doteq propto leqq leqslant geqq geqslant less gtrsim lesssim prec succ
preceq succeq notin subset supset subseteq supseteq subsetneq supsetneq nsubseteq parallel nparallel perp mid nmid
land lnot forall exists nexists emptyset varnothing infty partial nabla prime backprime degree angle measuredangle
sphericalangle triangle square blacksquare Box Diamond diamond lozenge therefore because models vdash dashv asymp ll
gg amalg uplus sqcap sqcup mapsto
rightarrow leftarrow Rightarrow Leftarrow longrightarrow longleftarrow Longrightarrow Longleftarrow leftrightarrow
Leftrightarrow longleftrightarrow Longleftrightarrow uparrow downarrow Uparrow Downarrow updownarrow searrow nearrow
swarrow nwarrow hookrightarrow hookleftarrow xrightarrow xleftarrow longmapsto implies impliedby rightharpoonup
leftharpoonup rightleftharpoons
left right bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigg Bigg bigm Bigm middle langle rangle lvert rvert lVert
rVert vert Vert lfloor rfloor lceil rceil lbrace rbrace lbrack rbrack lparen rparen lgroup rgroup backslash
overline underline overbrace underbrace overset underset overrightarrow overleftarrow overleftrightarrow overparen
overarc widehat widetilde hat bar tilde acute grave breve check dddot mathring vec arc stackrel substack boxed fbox
framebox cancel bcancel xcancel cancelto sout not phantom hphantom vphantom smash
text textbf textit textrm textsf texttt textnormal textsc textup textmd textcolor color colorbox fcolorbox mathrm
mathbf mathit mathsf mathtt mathcal mathbb mathfrak mathscr mathnormal boldsymbol bold emph mbox hbox vbox ensuremath
displaystyle textstyle scriptstyle scriptscriptstyle tiny small large Large LARGE huge Huge normalsize footnotesize
scriptsize itshape bfseries rmfamily
dots ldots vdots ddots dotsb dotsc dotsm dotsi dotso quad qquad hspace vspace hfill hskip mskip enspace thinspace
medspace thickspace negthinspace space begin end hline cline multicolumn multirow nonumber notag label tag newline
limits nolimits displaylimits mathstrut strut allowbreak noindent array cases matrix pmatrix bmatrix
dollar pounds euro yen percent copyright checkmark dagger ddagger star textdegree textdollar celsius degreeCelsius
complement eth mho Finv Game hslash Bbbk wp Re Im top bot flat natural sharp spadesuit heartsuit diamondsuit clubsuit
"""
COMMANDS: Final = frozenset(_NAMES.split())


ROW = "\x01"
r"""Stands for LaTeX's row break `\\`, so that no other rule takes its backslashes for a command."""

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "×": "\\times ", "⋅": "\\cdot ", "·": "\\cdot ",
    "∙": "\\cdot ", "•": "\\cdot ", "∗": "*", "÷": "\\div ", "∕": "/", "⁄": "/", "π": "\\pi ", "∞": "\\infty ", "√": "\\sqrt ",
    "∛": "\\sqrt[3] ", "∜": "\\sqrt[4] ", "≔": "=", "∣": "|", "⟹": "\\implies ", "⇒": "\\implies ", "→": "\\to ",
    "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "≈": "\\approx ", "∈": "\\in ", "∪": "\\cup ", "∋": "\\ni ", "∌": "\\notni ", "∉": "\\notin ", "⊂": "\\subset ", "⊆": "\\subseteq ", "⊃": "\\supset ", "⊇": "\\supseteq ", "⊈": "\\nsubseteq ", "⊉": "\\nsupseteq ",
    "∩": "\\cap ", "∖": "\\setminus ", "°": "^\\circ ", "º": "^\\circ ", "±": "\\pm ", "∓": "\\mp ", "ℝ": "\\mathbb{R}",
    "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}", "∅": "\\emptyset ", "≡": "\\equiv ",
    "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "⟨": "\\langle ", "⟩": "\\rangle ", "∧": "\\land ",
    "∨": "\\lor ", "…": "\\ldots ", "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "δ": "\\delta ", "θ": "\\theta ",
    "λ": "\\lambda ", "μ": "\\mu ", "φ": "\\phi ", "ω": "\\omega ", "σ": "\\sigma ", "ρ": "\\rho ", "τ": "\\tau ", "ε": "\\epsilon ",
    "Δ": "\\Delta ", "‘": "'", "’": "'", "“": '"', "”": '"', "，": ",", "：": ":", "；": ";", "（": "(", "）": ")", "。": ".",
    "或": " or ", "和": " and ", "与": " and ", "及": " and ", "、": ", ", "€": "", "£": "", "¥": "", "₹": "", "′": "'",
}  # fmt: skip
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺⁼⁽⁾ⁿˣʸᵏᵐᵗᵃᵇⁱ", "0123456789-+=()nxykmtabi", strict=True))
_SUB = {"₀": "0", "₁": "1", "₂": "2", "₃": "3", "₄": "4", "₅": "5", "₆": "6", "₇": "7", "₈": "8", "₉": "9"}
_SUPER_RUN = re.compile("[" + "".join(_SUPER) + "]+")
_SUB_RUN = re.compile("[" + "".join(_SUB) + "]+")
_NON_ASCII = re.compile(r"[^\x00-\x7f]")
_TURNING = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"


def _ascii(match: re.Match[str]) -> str:
    char = match.group()
    if (known := _UNICODE.get(char)) is not None:
        return known
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    category = unicodedata.category(char)
    # A mark over or through a sign changes it, and so does one that turns the direction of what follows.
    if (category == "Cf" and char not in _TURNING) or unicodedata.name(char, "").startswith("VARIATION SELECTOR"):
        return ""
    if category == "Zs":
        return "~"
    if unicodedata.decomposition(char).startswith(("<circle>", "<super>", "<sub>")):
        return char  # a circled 5 beside a 2 is no 52
    plain = unicodedata.normalize("NFKC", char)
    if "⁄" in plain:
        top, bottom = plain.split("⁄", 1)
        return f"\\frac{{{top}}}{{{bottom}}}"
    return plain if plain.isascii() else char


# `√12` is the root of 12, where `\\sqrt12` is that of 1 times 2; `³⁄₄` and `³/₄` are fractions.
_ROOT_SIGN = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|\([^()]{0,200}\))")
_ROOT_DEGREES = {"√": "", "∛": "[3]", "∜": "[4]"}
_SMALL_FRACTION = re.compile(f"([{''.join(list(_SUPER)[:10])}]+)[⁄/∕]([{''.join(_SUB)}]+)")


def _small_fraction(match: re.Match[str]) -> str:
    top, bottom = "".join(_SUPER[char] for char in match[1]), "".join(_SUB[char] for char in match[2])
    return f"\\frac{{{top}}}{{{bottom}}}"


def _root(match: re.Match[str]) -> str:
    inner = match[2][1:-1] if match[2].startswith("(") else match[2]
    return f"\\sqrt{_ROOT_DEGREES[match[1]]}{{{inner}}}"


# A sign of currency before or behind a number is a unit.
_MONEY = re.compile(r"([€£¥₹])\s{0,3}(\d[\d.,]{0,40})|(\d[\d.,]{0,40})\s{0,3}([€£¥₹])")
_CURRENCIES = {"€": "euros", "£": "sterling", "¥": "yen", "₹": "rupees"}


def _money(match: re.Match[str]) -> str:
    return f"{match[2] or match[3]}\\text{{ {_CURRENCIES[match[1] or match[4]]}}}"


def _to_ascii(text: str) -> str:
    text = _MONEY.sub(_money, unicodedata.normalize("NFC", text))
    text = _SMALL_FRACTION.sub(_small_fraction, text)
    text = _ROOT_SIGN.sub(_root, text)
    text = _SUPER_RUN.sub(lambda run: "^{" + "".join(_SUPER[char] for char in run.group()) + "}", text)
    text = _SUB_RUN.sub(lambda run: "_{" + "".join(_SUB[char] for char in run.group()) + "}", text)
    # A vulgar fraction after a digit is a mixed number, which \frac after a digit also is.
    return _NON_ASCII.sub(_ascii, text)


# What a rule needs to see before it can match: commands, and a lone backslash for any that is not followed by a letter.
_SIGN = re.compile(r"\\q?quad|\\[a-zA-Z]*|\$|~|\.\.\.|\{[,:]?\}|/|percent|pct|:=")
_SIZES = " ".join(f"\\{size}{side}" for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r", "m"))
_FONTS = "mathbf boldsymbol bm mathit mathsf mathtt mathcal mathnormal pmb underline ensuremath smash"
_TEXTS = "textbf textit textrm textsf texttt textnormal mbox hbox mathrm rm operatorname emph"
_STYLES = (
    "displaystyle textstyle scriptstyle limits nolimits strut mathstrut relax nonumber notag centering noindent tiny scriptsize "
    "footnotesize small normalsize large Large LARGE huge Huge bf it rm sf tt bfseries itshape boldmath"
)
_COLORS = "textcolor color colorbox fcolorbox"
# Spaces that are drawn; where nothing is drawn (`1 2` in a formula), nothing separates.
_DRAWN = "text mbox hbox textrm quad qquad enspace enskip thinspace medspace thickspace space hfill hfil dotfill linebreak newline hspace hskip mskip mspace kern mkern phantom hphantom"
_GAP = (
    r"(?:\\[,;:> ]|~|\\q?quad(?![a-zA-Z])|\\(?:enspace|enskip|thinspace|medspace|thickspace|space|hfill|hfil|dotfill|linebreak|newline)(?![a-zA-Z])"
    r"|\\[hm]space\*?\s*\{[^{}]*\}|\\(?:text|mbox|hbox|textrm)\s*\{\s+\}|\\h?phantom\s*\{[^{}]*\}|\\(?:hskip|mskip|kern|mkern)\s*[\d.]+\s*[a-z]{2})"
)
_LAYOUTS = "aligned alignedat align gathered gather split equation multline"


def _any_of(names: str) -> str:
    return f"(?:{names.replace(' ', '|')})"


def _commands(names: str) -> str:
    return " ".join(f"\\{name}" for name in names.split())


def _filler(template: str) -> str | Callable[[re.Match[str]], str]:
    """A replacement, worked out once: `re` looks each one with a backslash up again wherever its pattern is tried."""
    if "\\" not in template:
        return template
    parts = re.split(r"\\([0-9\\])", template)
    groups = [int(part) if part.isdigit() else part for part in parts[1::2]]
    if "\\" in "".join(parts[::2]):
        raise ValueError(f"a replacement may hold groups and backslashes: {template}")
    if not any(isinstance(group, int) for group in groups):
        text = "".join(parts)
        return lambda match: text

    def fill(match: re.Match[str]) -> str:
        told = [parts[0]]
        for group, rest in zip(groups, parts[2::2], strict=True):
            told += [(match[group] or "") if isinstance(group, int) else group, rest]
        return "".join(told)

    return fill


# (signs, one of which a text must have; pattern; replacement): most texts have none, and pay for one search only.
_RULES: list[tuple[frozenset[str], re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (frozenset(signs.split()), re.compile(pattern), _filler(replacement))
    for signs, pattern, replacement in [
        (
            r"\ \cr",
            r"\\\\(?![a-zA-Z])(?:\s*\[[\d.]*\s*[a-z]{2}\])?|\\\\(?=[a-zA-Z]{1,2}(?![a-zA-Z]))|\\cr\b",
            ROW,
        ),
        ("\\", r"\\\\(?=[a-zA-Z])", r"\\"),
        (
            _commands(_COLORS),
            r"\\(?:fcolorbox\s*\{[^{}]*\}|(?:textcolor|colorbox|color)(?![a-zA-Z])(?:\s*\[[^\[\]]*\])?)\s*\{[^{}]*\}",
            "",
        ),
        (_commands("bbox tag label"), r"\\bbox\s*\[[^\[\]]*\]|\\(?:tag\*?|label)\s*\{[^{}]*\}", ""),
        (_commands("begin end"), rf"\\(?:begin|end)\{{{_any_of(_LAYOUTS)}\*?\}}(?:\s*\{{\d+\}})?", " "),
        (":= " + _commands("coloneqq triangleq"), r":=|\\(?:coloneqq|triangleq)(?![a-zA-Z])", "="),
        (_commands("measuredangle angle"), r"(?<![a-zA-Z\\])m\s*\\(?:measured)?angle|\\measuredangle", r"\\angle"),
        # A sign of currency in front of a number is its unit.
        (
            "$ \\",
            r"(?<!\d)\\\$\s*(-?\d[\d,]*(?:\.\d+)?|-?\.\d+)(?=\s*(?:$|[$.;})\x01]|,\s|\\text\s*\{\s*(?:and|or|\}|dollars?)))",
            r"\1\\text{ dollars}",
        ),
        (r"\num", r"\\num\s*\{(-?[\d.,]+)\}", r"\1"),
        (r"\text", r"\A\s*\\text\s*\{\s*USD\s*\}\s*([\d.,]+)\s*\Z", r"\1\\text{ dollars}"),
        (r"\mathbb", r"\\mathbb\s*\{?\s*R\s*\}?\s*(?:\^|_)\s*(?:\{\s*(?:>\s*0|\+)\s*\}|\+)", r"(0,\\infty)"),
        ("$ \\", r"(?<!\d)\\?\$|\\?\$(?!\d)", ""),
        (
            r"\ {,}",
            r"(?<=\d),\s*\\!\s*(?=\d{3})|(?<=\d)\s*\{\s*,\s*\}\s*(?=\d{3})|(?<=\d)(?:\\[,; ]|~)(?=\d{3}(?!\d))",
            "",
        ),
        # A space that is drawn between two digits separates two numbers: `1\quad 2` is no 12.
        (_commands(_DRAWN) + r" \ ~", rf"(?<=\d)\s*{_GAP}(?:\s*{_GAP})*\s*(?=\d)", ", "),
        ("\\", r"\\!", ""),
        ("\\", r"\\[()\[\]]", " "),
        (_commands("left right") + " " + _SIZES, r"\\(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (_commands(_STYLES), rf"\\{_any_of(_STYLES)}(?![a-zA-Z])", ""),
        (
            _commands(_DRAWN) + r" \ ~ \vspace \vphantom",
            rf"{_GAP}|\\vspace\*?\{{[^{{}}]*\}}|\\vphantom\{{[^{{}}]*\}}",
            " ",
        ),
        (_commands("dfrac tfrac cfrac"), r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (_commands("dbinom tbinom"), r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        # A vector is no number: its arrow stays, and is not understood.
        (
            _commands(f"{_FONTS} vec overrightarrow"),
            rf"\\{_any_of(_FONTS)}\s*\{{|\\(?:vec|overrightarrow)\s*\{{(?![^{{}}]*\}}\s*=\s*-?[\d.]+\s*\Z)",
            "{",
        ),
        (_commands(_TEXTS), rf"\\{_any_of(_TEXTS)}\*?\s*\{{", r"\\text{"),
        (r"\text", r"\\text\s*\{\s*(?:percent(?:age)?|pct)\.?\s*\}", "%"),
        # A letter in text style is a letter, unless it stands behind a number and may be a unit.
        (
            r"\text",
            r"(?<![\d}).] )(?<![\d}).])\\text\s*\{\s*([A-Za-z])\s*\}|\\text\s*\{\s*([A-IMO-UX-Zabcdefijknopqruvwxyz])\s*\}",
            r"{\1\2}",
        ),
        (r"\text", r"\\text\s*\{\s*\(([A-Z])\)\s*\}(?!\s*\S)", r"{\1}"),
        (r"\text", r"\\text\s*\{\s*([-+]?[\d.,]*\d[\d.,]*)\s*\}", r"{\1}"),
        (r"\text", r"\\text\s*\{([\d\s,.]+(?:(?:and|or)[\d\s,.]+)+)\}", r"\1"),
        (
            r"\textdegree \degree \deg \circ",
            r"\\(?:textdegree|degree|deg)(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])",
            r"\\degree ",
        ),
        ("\\", r"\\%", "%"),
        (
            r"... \dots \cdots \ldots \dotsc \dotsb \dotsm",
            r"\\(?:dots|cdots|ldots|dotsc|dotsb|dotsm)(?![a-zA-Z])|\.\.\.",
            r"\\ldots ",
        ),
        ("/", r"(?<![\w.}])(\d+) +(\d+) */ *(\d+)(?![\w.^])", r"\1\\frac{\2}{\3}"),
        (r"\begin", r"\\begin\{(?:[pbBvV]?(?:small)?matrix|array)\}(?:\s*\{[lcr| ]*\})?", r"\\begin{matrix}"),
        (r"\end", r"\\end\{(?:[pbB]?(?:small)?matrix|array)\}", r"\\end{matrix}"),
        ("percent pct", r"(?<![A-Za-z\\])(?:percent(?:age)?|pct)(?![A-Za-z])", "%"),
        ("{}", r"(?<=\d)\{\}(?=\d)", ""),
        ("{:}", r"\{:\}", ":"),
        (r"\degree", r"\\degree\s*\{\s*([CF])\s*\}", r"\\degree \1"),
        # A comma in braces is a decimal one, but for thousands, which were read above.
        ("{,}", r"(?<=\d)\{,\}(?=\d)", ","),
    ]
]
_SIGNS = frozenset().union(*(signs for signs, _, _ in _RULES))
_DETERMINANT = re.compile(r"\\begin\{[vV](?:small)?matrix\}")
_BEFORE = re.compile(r"\s*(?:\\(?:approx|simeq|therefore)(?![a-zA-Z])|=)\s*")
_AFTER = " \t\r\n\v\f\x85\xa0.,;:\x01"
_UNIT = re.compile(
    r"(?P<value>.*(?:[\d)}%!]|\d\.))(?P<unit>\s*\\degree\s*[CF]|\s{1,9}[A-Za-z][A-Za-z/. ]{0,40})(?P<power>\s*\^\s*\{?\d\}?)?"
)
_NOT_UNITS = re.compile(
    r"\b(?:or|and|if|is|not|no|to|for|where|when|with|but|then|as|mod|sin|cos|tan|log|ln|exp|sqrt|pi|in|d?[A-Za-z])\b"
)


def _plain_unit(text: str) -> str:
    r"""Puts words after a number in `\\text{}`: `10 weeks`, `10 cm^2`."""
    match = _UNIT.fullmatch(text) if " " in text or "\\degree" in text else None
    if match is None:
        return text
    unit = match["unit"].strip()
    if unit.startswith("\\degree"):
        return f"{match['value']}\\text{{{'celsius' if unit.endswith('C') else 'fahrenheit'}}}"
    if _NOT_UNITS.search(unit.rstrip(". ")):
        return text
    return f"{match['value']}\\text{{{unit}}}{match['power'] or ''}"


_REPEATING = re.compile(r"(\d{0,60})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{(\d{1,20})\}|(\d))(?!\d)")
# `0.333...` and `0.1666 repeating`: the last digit goes on, where three of it, or a word, say so; `0.(3)`.
_GOES_ON = re.compile(
    r"(?<![\d.])(?P<whole>\d{0,60})\.(?:(?P<start>\d{0,20}?)(?P<digit>\d)(?:(?P=digit){2,20}\s{0,3}(?:\.\.\.|\\[lcd]?dots(?![a-z])))"
    r"|(?P<begun>\d{0,20}?)(?P<last>\d)(?P=last){0,20}\s{1,3}(?:\((?:repeating|recurring)\)|repeating|recurring)|\((?P<period>\d{1,20})\))"
)
_GOES_ON_HINT = re.compile(r"\.\.\.|dots|repeating|recurring|\.\(")
# A domain that says nothing: an unknown that counts is an integer unless something else is said.
_INTEGER = re.compile(
    r"[\s,;(]{1,9}(?:(?:where|with)\s{1,3})?(?P<name>[a-zA-Z])\s{0,3}(?:\\in\s{0,3}\\mathbb\s?\{?Z\}?|is (?:an?|any)(?: arbitrary)? integer)[\s.)]{0,9}$"
    r"|[\s,;(]{1,9}for (?:all|any|every|each|some) integers? (?P<other>[a-zA-Z])[\s.)]{0,9}$"
)
_TEXT_COMMAND = re.compile(r"\\text\s{0,3}\{([^{}]*)\}")
_MAX_BRACES = 8
_BUILDER = re.compile(
    r"\\\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{R\}\s*)?(?:\\mid|\\vert|\||:)(?P<condition>.*)\\\}", re.DOTALL
)


def _fraction(match: re.Match[str]) -> str:
    """A repeating decimal as a fraction."""
    whole, start, repeated = match[1] or "0", match[2], match[3] or match[4]
    bottom = (10 ** len(repeated) - 1) * 10 ** len(start)
    top = int(whole + start + repeated) - int(whole + start)
    return f"\\frac{{{top}}}{{{bottom}}}"


def _goes_on(match: re.Match[str]) -> str:
    """A decimal whose digits go on as a fraction; unchanged where the repeating digits are unclear."""
    start, repeated = match["start"] or match["begun"] or "", match["digit"] or match["last"] or match["period"]
    written = match.group().count(match["last"]) if match["last"] else 0
    if match["last"] and start and written < 2:
        return match.group()  # 0.45 repeating: the 5, or both
    return f"{match['whole'] or '0'}.{start}\\overline{{{repeated}}}"


def _without_integers(text: str) -> str:
    """The text without the clause that one of its unknowns is an integer."""
    plain = " ".join(_TEXT_COMMAND.sub(r" \1 ", text).split())
    clause = _INTEGER.search(plain)
    if clause is None:
        return text
    name = clause["name"] or clause["other"]
    head = plain[: clause.start()]
    if _INEQUALITY.search(head) is not None:
        # `x > 0, x \\in Z` is no half-line.
        return text
    return head if re.search(rf"(?<![a-zA-Z\\]){name}(?![a-zA-Z])|(?<=\d){name}", head) else text


_INEQUALITY = re.compile(r"[<>]|\\(?:[lg]e(?:q(?:slant)?)?|neq?|[lg]t)(?![a-zA-Z])")
# Commands whose backslash was escaped once more, as in JSON; two letters and more, for `\\\\x` is a new row.
_ESCAPED_TWICE = re.compile(r"\\\\(?=[a-zA-Z]{2})")
_OPERATOR_ENDS = "+-*/=<>,;:({[&^_\\|"
_OPERATOR_STARTS = "+*/=<>,;:)}]&^_|"
_TWO_DIGITS = re.compile(r"\d \d")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?: \d{3})+(?!\d)")
_SPACED_DIGITS = re.compile(r"(?<![\d.,^_])(?<!frac )(?<!inom )(?<!\^ )(?<!_ )\d(?: \d)+(?![\d.,/])")
_GLUED_WORD = re.compile(r"(?<=[\d)}])(or|and)(?=[A-Z\\\d(-])")
_GLUED_UNIT = re.compile(
    r"(?<=\d)\s*(?P<unit>(?:mm|cm|km|kg|mg|ml|ft|lb|lbs|oz|mph|kph|m(?=\s*\^))(?![a-zA-Z]))(?P<power>\s*\^\s*\{?[23]\}?)?$"
)
# An approximation or an explanation behind an answer.
_AFTERWORD = re.compile(
    r"(?:[\s,;(\[]|\\text\s*\{){0,9}(?:(?:or|which is|i\.e\.|that is,?)\s+)?"
    r"(?<!\\)(?:(?:about|approximately|approx|roughly|nearly|around|rounded|because|since|due to|"
    r"as (?:shown|required|desired|needed|claimed|above|expected|we))\b).*",
    re.DOTALL | re.IGNORECASE,
)
_AFTERWORD_HINT = re.compile(r"about|approx|roughly|nearly|around|rounded|because|since|due to|\bas\b", re.IGNORECASE)
_DOUBT = re.compile(r"\b(?:not|no|wrong|maybe|perhaps|possibly|either|but|instead|rather|unless|if)\b", re.IGNORECASE)
_ALIGNMENT = re.compile(r"&\s*(?=[=<>])|(?<==)\s*&")
_CASES = re.compile(r"\\begin\{cases\}([^&]*?)\\end\{cases\}", re.DOTALL)
_COLUMN = re.compile(r"\\begin\{matrix\}([^&]*)\\end\{matrix\}", re.DOTALL)
_SIGNS_ALONE = frozenset(
    ["+", "-", "*", "/", "=", "<", ">", "^", "_", ",", "(", ")", "\\\\times", "\\\\cdot", "\\\\pm"]
)


def clean(text: str) -> str:
    r"""An answer in one spelling.

    >>> clean("$\\dfrac{1}{2}\\,\\text{ cm}$."), clean("25,\\!972,\\!650"), clean("½")
    ('\\frac{1}{2} \\text{ cm}', '25972650', '\\frac{1}{2}')
    >>> clean("\\frac{737}{39}\\;\\text{(about }18.9\\text{ cards)}"), clean("1 000"), clean("2 because 1+1=2")
    ('\\frac{737}{39}', '1000', '2')
    """
    if not text.isascii():
        text = _to_ascii(text)
    if text.isalnum() and (text.isdigit() or text.isalpha()):
        return text
    if "\n" in text:
        text = _rows(text)
    if "\\\\" in text and "\\begin" not in text:
        text = _ESCAPED_TWICE.sub(r"\\", text)
    # |A| is a determinant only where bars are drawn around it, which our grammar leaves to others.
    if "matrix}" in text and _DETERMINANT.search(text):
        text = _DETERMINANT.sub(r"\\det\\begin{matrix}", text).replace("\\end{vmatrix}", "\\end{matrix}")
    if ", }" in text or "{ ," in text:
        text = _BRACED_COMMA.sub("{,}", text)
    if "." in text and _GOES_ON_HINT.search(text) is not None:
        text = _GOES_ON.sub(_goes_on, text)
    text = _respelt(text)
    if "integer" in text or "\\in" in text:
        text = _without_integers(text)
    if "\\begin" in text:
        text = _without_frame(text)
    elif "&" in text:
        text = _ALIGNMENT.sub("", text)
    if "\\" in text and "." in text:
        text = _REPEATING.sub(_fraction, text)
    if (sign := _BEFORE.match(text)) is not None:
        text = text[sign.end() :]
    if not text[-1:].isalnum():
        text = text.rstrip(_AFTER + "\\" if text.endswith(("\\", "\\ ")) else _AFTER)
    text = text.strip()
    if text.startswith("\\{") and (builder := _BUILDER.fullmatch(text)) is not None:
        text = builder["condition"].strip()
    if text.startswith("{") and text.endswith("}"):
        text = _unbraced(text).rstrip(_AFTER)
    elif text.startswith("[") and text.endswith("]") and not any(sign in text[1:-1] for sign in "[](),"):
        text = text[1:-1].strip()
    text = " ".join(text.split())
    if "P(" in text or "P (" in text:
        text = _CONDITION.sub(r"\1\\mid \2", text)
    if "'" in text:
        text = _SWISS_THOUSANDS.sub(lambda match: match.group().replace("'", ""), text)
    if text[:1].isdigit() and (ordinal := _ORDINAL.fullmatch(text)) is not None:
        return ordinal[1]
    return _spaced(text)


def _rows(text: str) -> str:
    """Lines that stand for themselves as rows, which separate; a line that goes on in the next one is one with it."""
    lines = [line.strip() for line in text.strip().split("\n")]
    if "\\begin" in text or any(line.count("{") != line.count("}") for line in lines):
        return text
    told = [line for line in lines if line]
    ends = any(line[-1] in _OPERATOR_ENDS for line in told[:-1])
    if len(told) < 2 or ends or any(line[0] in _OPERATOR_STARTS for line in told[1:]):
        return text
    return ROW.join(told)


def _without_frame(text: str) -> str:
    """A system without `cases` around it, and an expression that was written token by token in a matrix' only column."""
    text = _CASES.sub(r"\1", text)
    column = _COLUMN.fullmatch(text.strip())
    if column is None:
        return text
    entries = [entry.strip() for entry in column[1].split(ROW)]
    broken = any(entry.count("{") != entry.count("}") or entry in _SIGNS_ALONE for entry in entries)
    return " ".join(entry for entry in entries if entry) if broken else text


_CONDITION = re.compile(r"(P\s?\([^()|]{1,60})\|([^()|]{1,60}\))")
_SWISS_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:'\d{3})+(?![\d'])")
_BRACED_COMMA = re.compile(r"\{\s*,\s*\}")
_ORDINAL = re.compile(r"(\d+)\s*\^?\s*\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)(?:\s*\})*")


def _spaced(text: str) -> str:
    """The text with its spaces, units and afterwords read as people mean them."""
    worded = text.lower() != text.upper()
    if " " in text:
        if _TWO_DIGITS.search(text) is not None:
            text = _SPACED_THOUSANDS.sub(lambda match: match.group().replace(" ", ""), text)
            text = _SPACED_DIGITS.sub(lambda match: match.group().replace(" ", ""), text)
        if (
            worded
            and _AFTERWORD_HINT.search(text) is not None
            and (after := _AFTERWORD.search(text)) is not None
            and after.start()
            and not _DOUBT.search(after.group())
        ):
            text = text[: after.start()].rstrip(_AFTER)
    if not worded:
        return text
    if "or" in text or "and" in text:
        text = _GLUED_WORD.sub(r" \1 ", text)
    unit = _GLUED_UNIT.search(text) if text[-1:].isalpha() or "^" in text else None
    if unit is not None:
        return f"{text[: unit.start()]}\\text{{{unit['unit']}}}{unit['power'] or ''}"
    return _plain_unit(text)


def _unbraced(text: str) -> str:
    """The text without braces around all of it, which say nothing; around a list they may stand for a set."""
    for _ in range(_MAX_BRACES):
        inner = text[1:-1].strip()
        if "," in inner or not inner or not text.startswith("{") or closing_brace(text, 1) != len(text) - 1:
            break
        text = inner
    return text


@functools.lru_cache(maxsize=2048)
def _rules_for(
    signs: frozenset[str],
) -> tuple[tuple[int, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]:
    """The rules that may apply to a text with these signs, with their places among all."""
    return tuple(
        (index, pattern, replacement)
        for index, (needed, pattern, replacement) in enumerate(_RULES)
        if not needed.isdisjoint(signs)
    )


def _respelt(text: str) -> str:
    """The text after all rules that may apply to it, in their order."""
    signs = _SIGNS.intersection(_SIGN.findall(text))
    done = -1
    while signs:
        for index, pattern, replacement in _rules_for(signs):
            if index > done and (changed := pattern.sub(replacement, text)) != text:
                # Other signs may stand there now, and other rules apply.
                text, done = changed, index
                signs = _SIGNS.intersection(_SIGN.findall(text))
                break
        else:
            break
    return text


# Between two letters, or two digits, a space says that they are two.
_SPACE = re.compile(r" (?:(?<![a-zA-Z0-9] )|(?![a-zA-Z0-9])|(?<=\d )(?=[a-zA-Z])|(?<=[a-zA-Z] )(?=\d))")


def squeeze(text: str) -> str:
    """A cleaned text without the spaces that separate nothing."""
    return _SPACE.sub("", text) if " " in text else text
