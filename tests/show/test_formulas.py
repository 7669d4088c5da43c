"""Formulas of strangers: what is set says what was written, and nothing but listed MathML comes out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.show.formulas import _ATTRIBUTES, _ELEMENTS, LONGEST, SEARCHED, FormulaSetter, formulas_in


def parts(tree: Any) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    tag, attributes, *children = tree
    yield tag, attributes, [child for child in children if isinstance(child, str)]
    for child in children:
        if not isinstance(child, str):
            yield from parts(child)


def texts(tree: Any) -> str:
    return "".join("".join(own) for _, _, own in parts(tree))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (r"x^2-5x+6=0", "x2−5x+6=0"),
        (r"\boxed{\frac{\pi}{4}}", "π4"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "(1234)"),
        (r"\begin{aligned}a&=b\\c&=d\end{aligned}", "a=bc=d"),
        (r"\begin{gather}a\\b\end{gather}", "ab"),
        (r"\begin{cases}x&x>0\\-x&\text{otherwise}\end{cases}", "{xx>0−xotherwise"),
        (r"\text{<script>&lt;}", "<script>&lt;"),
        (r"\sqrt[3]{2}\le\mathbb{R}", "23≤ℝ"),
    ],
)
def test_what_is_set_says_what_was_written(written: str, shown: str) -> None:
    tree = FormulaSetter()(written)
    assert tree is not None
    assert texts(tree) == shown


@pytest.mark.parametrize(
    "written",
    [
        r"\href{javascript:alert(1)}{x}", r"\color{white}{x}", r"\style{position:fixed}{x}", r"\class{a}{b}",
        r"\phantom{x}y", r"\kern-500em x", r"\rule{900em}{900em}", r"\def\a{\a\a}\a", r"\newcommand{\a}{b}\a",
        r"\unicode{x202e}", r"\htmlStyle{a}{b}", r"\includegraphics{http://x}", r"\llap{xx}y", r"\!\!\!\!\!x",
        r"\hspace{-9em}x", r"\unknown{x}", r"\frac", "}{", "{{}}", "a & b", "x\u202ey", "\\text{\u200b}", "\x00", r"\verb|x|",
        "{" * 390 + "x" + "}" * 390, r"\sqrt{" * 100 + "x" + "}" * 100, "x" * (LONGEST + 1), r"\tag{9}x",
    ],
)  # fmt: skip
def test_what_hides_moves_or_does_not_parse_is_shown_as_written(written: str) -> None:
    tree = FormulaSetter()(written)
    # Braces that group nothing leave no depth behind: then what is set is the text itself.
    assert tree is None or (written.startswith("{") and texts(tree) == "x")


def check(tree: Any) -> None:
    for tag, attributes, own in parts(tree):
        assert tag == "math" or tag in _ELEMENTS
        for name, value in attributes.items():
            said = (name, value) in (("display", "block"), ("class", "boxed")) or _ATTRIBUTES[name].fullmatch(value)
            assert said, (name, value)
        assert all(text.isprintable() or text.isspace() or "\u2000" <= text[0] <= "\u200a" for text in own), own


TEX = st.lists(
    st.sampled_from(
        [
            r"\frac",
            r"\sqrt",
            r"\left(",
            r"\right)",
            r"{",
            r"}",
            r"^",
            r"_",
            r"&",
            r"\\",
            r"$",
            r"\text{",
            r"\boxed{",
            r"\begin{matrix}",
            r"\end{matrix}",
            r"\over",
            r"\binom",
            r"\not",
            r"\hat",
            r"x",
            r"1",
            r"+",
            r"<",
            r">",
            r"\mathbf{",
            r"\color{red}",
            r"\href{a}{b}",
            r"\sum",
            r"\limits",
            r"\operatorname{",
            r"\prime",
            r"'",
            r"\mod",
            r"\substack{",
            r"\xrightarrow{",
            r"\middle|",
            r"%",
            r"\hline",
        ]
    )
    | st.text(max_size=3),
    max_size=40,
).map(" ".join)


@given(TEX)
def test_whatever_a_model_writes_becomes_listed_elements_or_nothing(written: str) -> None:
    setter = FormulaSetter()
    for formula in [*formulas_in(written), *formulas_in(f"${written}$")]:
        tree = setter(formula.inner, display=formula.display)
        if tree is not None:
            check(tree)


def test_formulas_are_found_and_prices_are_not() -> None:
    text = r"cost $5 and $6; $x$ \(y\) \[z\] $$w$$ \begin{align}a\end{align} \boxed{\frac{1}{2}} $ no $ \boxed{"
    found = list(formulas_in(text))
    assert [(one.inner, one.display) for one in found] == [
        ("x", False), ("y", False), ("z", True), ("w", True), (r"\begin{align}a\end{align}", True),
        (r"\boxed{\frac{1}{2}}", False),
    ]  # fmt: skip
    assert all(one.inner in text[one.start : one.end] for one in found)


@pytest.mark.parametrize("text", [r"\boxed{", "$", "\\", "$a", r"\begin{align}", "$x$"])
def test_a_text_full_of_beginnings_takes_no_time(text: str) -> None:
    began = time.process_time()
    assert len(list(formulas_in(text * 20_000))) <= 400
    assert time.process_time() - began < 2
    assert not list(formulas_in(" " * SEARCHED + "$x$"))


def test_a_page_converts_each_formula_once_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def convert(inner: str, display: bool) -> list[Any]:
        calls.append(inner)
        return ["math", {}, inner]

    monkeypatch.setattr("mathturn_gym.show.formulas._tree", convert)
    monkeypatch.setattr("mathturn_gym.show.formulas._MOST_CHARACTERS", 5)
    setter = FormulaSetter()
    assert [setter(one) is None for one in ("ab", "ab", "cd", "ef", "ab")] == [False, False, False, True, False]
    assert calls == ["ab", "cd"]
