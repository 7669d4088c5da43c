"""One spelling: rules that are skipped because nothing in a text asks for them would have changed nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from mathturn_gym.verifier.audit import load_cases
from mathturn_gym.verifier.reading import _cleaning as module
from mathturn_gym.verifier.reading._cleaning import clean

PIECES = [
    "\\!", "$", "\\", "\\\\", "~", "...", "{,}", ",\\!", "percent", "pct", " 3 / 4", "1 1/2", "\\left", "\\right.", "\\Biggl",
    "\\quad", "\\hspace{3}", "\\phantom{0}", "\\text{", "\\textbf {", "}", "{", "(A)", "12 and 13", "\\circ", "^", "\\degree", "\\%",
    "\\#", "\\cr", "\\begin{vmatrix}", "\\begin{array}{lc}", "\\end{array}", "\\dfrac", "\\tbinom", "\\limits", "\\dots", "\\,",
    "\\approx", "=", ".", " ", "\x85", ";", "\x01", "cm", "x", "123",
]  # fmt: skip


def every_rule(text: str) -> str:
    for _, pattern, replacement in module._RULES:
        text = pattern.sub(replacement, text)
    return text


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_no_rule_is_skipped_that_would_match(text: str) -> None:
    assert module._respelt(text) == every_rule(text)


def test_no_rule_is_skipped_in_the_suite() -> None:
    texts = {text[-200:] for case in load_cases() for text in (case.gold, case.response)}
    assert len(texts) > 1500
    for text in texts:
        assert module._respelt(text) == every_rule(text)


def test_every_rule_is_asked_for_by_something() -> None:
    # A sign that the search does not know would never switch its rules on.
    assert all(module._SIGN.fullmatch(sign) for sign in module._SIGNS)
    assert all(signs for signs, _, _ in module._RULES)


def test_cleaning_twice_is_cleaning_once() -> None:
    for text in ("$\\dfrac{1}{2}\\,\\text{ cm}$.", "\\left( 1,\\quad 2 \\right)", "62.5 percent", "= 1 1/2"):
        assert clean(clean(text)) == clean(text)
