"""Answers as people and models write them: what is stripped from an answer, and when that matters."""

from __future__ import annotations

import pytest

from mathturn_gym.verifier import Verifier

VERIFIER = Verifier(form="equivalent", timeout=2.0)

RIGHT = [
    ("5", "5 because the sum is 5"),
    ("5", "5 since 2+3=5"),
    ("3.28", "x \\approx 3.28"),
    ("\\frac{1}{2}", "x = \\frac12 \\approx 0.5"),
    ("1,2,3", "1\n2\n3"),
    ("2", "1+1=2"),
    ("\\{1,2\\}", "a \\in \\{1,2\\}"),
    ("\\{1,2\\}", "x \\in \\{2,1\\}"),
    ("5", "\\color{red}{5}"),
    ("5", "{\\color{blue}5}"),
    ("5", "\\large 5"),
    ("x=5", "x := 5"),
    ("1/3", "⅓"),
    ("\\sqrt{12}", "√12"),
    ("2\\sqrt{3}", "2√3"),
    ("2\\sqrt{3}", "√(12)"),
    ("\\frac{\\sqrt{2}}{2}", "√2/2"),
    ("\\frac{10}{3}", "\\frac { 1 0 } { 3 }"),
    ("529", "\\mathbf{5 2 9}"),
    ("1234", "1,234"),
    ("1.5", "1,5"),
    ("0.125", "0,125"),
    ("100100", "100,100"),
    ("1,234", "1234"),
    ("1, 234", "1,234"),
    ("x+y=5", "x+y=5"),
    ("x+y=5", "y+x=5"),
    ("x+y=5", "2x+2y=10"),
    ("5", "x+y=5"),
    ("AB=5", "BA=5"),
    ("AB=5", "5"),
    ("x=5", "5"),
    ("f(x)=x^2", "y=x^2"),
    ("f(x)=x^2", "x^2"),
    ("f(2)=5", "5"),
    ("x^2+y^2=1", "y^2=1-x^2"),
    ("x<5", "x<5"),
    ("-2<x<2", "|x|<2"),
    ("|x|>2", "x<-2 \\text{ or } x>2"),
    ("5", "five"),
    ("1625", "One thousand six hundred twenty-five"),
    ("\\frac{1}{2}", "one half"),
    ("3", "three apples"),
    ("45", "[45 degrees]"),
    ("5", "[5]"),
    ("1000.99", "1,000.99m²"),
    ("12", "12 cm"),
    ("12", "12cm"),
    ("12", "12 cm^2"),
    ("0.005", "\\frac{1}{2}\\text{ percent}"),
    ("50\\%", "0.5"),
    ("34", "\\text{The largest } n \\text{ is } 34"),
    (
        "\\begin{pmatrix}6 & 8 \\\\ 10 & 12\\end{pmatrix}",
        "\\begin{pmatrix}1 & 2 \\\\ 3 & 4\\end{pmatrix} + \\begin{pmatrix}5 & 6 \\\\ 7 & 8\\end{pmatrix}",
    ),
    ("\\begin{pmatrix}1 & 3 \\\\ 2 & 4\\end{pmatrix}", "\\begin{pmatrix}1 & 2 \\\\ 3 & 4\\end{pmatrix}^T"),
    ("3", "\\begin{vmatrix} 2 & 1 \\\\ 1 & 2 \\end{vmatrix} = 3"),
    ("0.25", "P(X=1) = 0.25"),
    ("5", "\\mathbb{E}[X] = 5"),
    ("5", "\\overline{AB} = 5"),
    ("5", "|3+4i| = 5"),
    ("2x", "\\frac{\\partial f}{\\partial x} = 2x"),
    ("(1,2)", "(x,y)=(1,2)"),
    ("(1,2)", "x=1 \\\\ y=2"),
    ("(1,2)", "\\begin{cases} x=1 \\\\ y=2 \\end{cases}"),
    ("(1,2)", "\\begin{aligned} x&=1 \\\\ y&=2 \\end{aligned}"),
    ("\\{2,3\\}", "\\{2,3\\}=\\{3,2\\}"),
    ("\\frac{2}{3}", "\\frac{\\frac{1}{2}}{\\frac{3}{4}} = \\frac{2}{3}"),
    ("1", "1 \\text{ or } 1"),
    ("\\{1\\}", "\\{1,1\\}"),
    ("1,2", "1,2,2"),
    ("no solution", "\\text{There is no solution}"),
    ("10^3", "1000"),
    ("30^\\circ", "\\angle ABC = 30^\\circ"),
    ("16", "2^4=16"),
    ("1000", "1 000"),
    ("1000", "1\\,000"),
    ("1000", "1{,}000"),
    ("2", "\\boxed{2}"),
    ("3\\frac{1}{2}", "3 1/2"),
    ("\\frac{7}{2}", "3 1/2"),
    ("9:30", "9:30 am"),
    ("5", "(5)"),
    ("5", "\\(5\\)"),
    ("5", "5."),
    ("5", "= 5"),
    ("5", "\\approx 5"),
    ("-5", "−5"),
    ("6", "3!"),
    ("x^{2}", "x²"),
    ("x_1", "x₁"),
    ("H_2O", "H₂O"),
    ("5", "5 \\text{ (or about 5.1)}"),
    ("5", "5 \\quad (\\text{approximately } 5.02)"),
    ("12", "12 square units"),
    ("$12", "12 dollars"),
    ("\\$12.50", "12.5"),
    ("12", "twelve"),
    ("1", "100\\%"),
    ("a+b", "b + a"),
    ("\\pi", "\\pi \\approx 3.14"),
]

WRONG = [
    ("0.5", "\\frac{1}{3} \\approx 0.5"),
    ("2", "2=2"),
    ("42", "6 7"),
    ("42", "67"),
    ("8", "2 4"),
    ("1.234", "1,234"),
    ("15", "1,5"),
    ("125", "0,125"),
    ("42", "42,42"),
    ("100", "100,100"),
    ("1,234", "1.234"),
    ("1,234", "(1,234)"),
    ("x+y=5", "5"),
    ("x+y=5", "xy=5"),
    ("x+y=5", "x-y=5"),
    ("AB=5", "CD=5"),
    ("x=5", "y=5"),
    ("f(2)=5", "f(3)=5"),
    ("x=5", "x=x"),
    ("x=5", "5=5"),
    ("x=5", "0=0"),
    ("x<5", "y<5"),
    ("x<5", "x<=5"),
    ("x<5", "5"),
    ("12 m", "12 cm"),
    ("7", "7\\text{ is wrong, it is 8}"),
    ("8", "7\\text{ is wrong, it is 8}"),
    ("B", "\\text{Both A and B are possible}"),
    ("4", "\\begin{vmatrix} 2 & 1 \\\\ 1 & 2 \\end{vmatrix}"),
    ("1", "1, 1"),
    ("x \\equiv 3 \\pmod 7", "3"),
    ("5", "5 or 6"),
    ("5", "5, not 6"),
    ("5", "5 if x>0"),
    ("a-b", "b-a"),
    ("\\pi", "3.14"),
    ("3.14", "\\pi \\approx 3.14"),
]


RIGHT += [
    ("2k\\pi", "2k\\pi, k \\in \\mathbb{Z}"),
    ("2k\\pi", "2k\\pi \\text{ for any integer } k"),
    ("$2k\\pi$, where $k\\in\\mathbb{Z}$", "2k\\pi"),
    ("1/6", "0.1666 repeating"),
    ("(1/6, 1/3)", "(0.1666 repeating, 0.3 repeating)"),
    ("1/3", "0.(3)"),
    ("\\mathbb{Z}", "x \\in \\mathbb{Z}"),
]
WRONG += [
    ("2k\\pi", "2k\\pi, k \\in \\mathbb{N}"),
    ("2k\\pi", "3k\\pi, k \\in \\mathbb{Z}"),
    ("5/11", "0.45 repeating"),
    ("\\pi", "3.14159..."),
    ("0", "0.(3)"),
    ("2+2=4", "2+2=5"),
    ("\\log_4(8)=\\frac{3}{2}", "\\log_4(8)=2"),
    ("x+x=2x", "x+x=3x"),
    ("0.4134", "\\left(\\begin{array}{c}48 \\\\ 10\\end{array}\\right) / 2 = 296 / 595 = 0.4134"),
]


RIGHT += [
    ("7.5", "7 and a half"),
    ("\\frac{15}{4}", "3 and three quarters"),
    ("\\log_4(8)=\\frac{3}{2}", "\\log_4(8)=\\frac{6}{4}"),
]
WRONG += [
    ("7.5", "7 and a third"),
    ("7", "7 and a half"),
    # What divides by zero is true of nothing.
    ("\\log_4(8)=\\frac{3}{2}", "\\log_4(8)=\\frac{3}{0}"),
    ("\\log_4(8)=\\frac{3}{2}", "\\log_0(8)=\\frac{3}{2}"),
    ("\\log_4(8)=\\frac{3}{2}", "\\log_4(0)=\\frac{3}{2}"),
    ("\\frac12=0.5", "\\frac12=\\frac{1}{0}"),
    ("\\sqrt{4}=2", "\\sqrt{4}=0^{-1}"),
    (
        "\\begin{pmatrix}\\frac{1}{2} & \\frac{3}{4} \\\\ \\frac{5}{6} & \\frac{7}{8}\\end{pmatrix}",
        "\\begin{pmatrix}\\frac{1}{2} & \\frac{3}{0} \\\\ \\frac{5}{6} & \\frac{7}{8}\\end{pmatrix}",
    ),
    ("1, 2", "1, \\frac{2}{0}"),
]


RIGHT += [
    ("(-1)^n\\cos^n x", "(-\\cos x)^n"),
    ("\\sqrt{xy}", "\\sqrt{x}\\sqrt{y}"),
    ("9:30 am", "09:30"),
    ("20^\\circ\\text{C}", "20^{\\circ}C"),
    ("A\\cap B", "B\\cap A"),
    ("1", "\\sum_{k=1}^{\\infty}\\frac{1}{2^k}"),
]
WRONG += [
    # A term that no point shows; digits that agree by choice; a sum whose digits sympy takes for none.
    ("x", "x+e^{-1000x^2}"),
    ("\\sqrt{2}", "e^{0.34657359027997265470861606072908828403775}"),
    ("\\sqrt{2}", "\\frac{19175002942688032928599}{13558774610046711780701}"),
    ("x^2-4", "x^2-4+\\sum_{k=1}^{3}10^{-40k}"),
    ("(-1)^n", "(-1)^n+\\sin(\\pi x)"),
    ("5", "|x|=5"),
    ("a=170", "an=170"),
    ("2017", "2020-01-02"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_the_same_answer_written_otherwise(gold: str, answer: str) -> None:
    verdict = VERIFIER.verify(answer, gold, kind="answer")
    assert verdict.correct, verdict


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_another_answer(gold: str, answer: str) -> None:
    verdict = VERIFIER.verify(answer, gold, kind="answer")
    assert not verdict.correct, verdict


# What is stripped, a pair where that does not matter, and one where it does: docs/verifier.md has the same table.
STRIPPED = {
    "a name in front": (("5", "x = 5"), ("x = 5", "y = 5")),
    "a name in front of a relation": (("x+y=5", "y+x=5"), ("x+y=5", "5")),
    "the sides of a chain but the last": (("7", "5 + 2 = 7"), ("7", "6 = 7")),
    "the member of a set": (("\\{1,2\\}", "x \\in \\{1,2\\}"), ("\\{1,2\\}", "1 \\in \\{1,2,3\\}")),
    "the head of a set builder": (("x>2", "\\{x \\mid x>2\\}"), ("x>2", "\\{x \\mid x<2\\}")),
    "an approximation": (("\\frac{1}{3}", "\\frac{1}{3} \\approx 0.333"), ("0.333", "\\frac{1}{3} \\approx 0.333")),
    "an approximation in words": (
        ("\\frac{1}{3}", "\\frac{1}{3} \\text{ (about 0.33)}"),
        ("3", "3 \\text{ or maybe 4}"),
    ),
    "an explanation": (("5", "5 because it is odd"), ("5", "5 unless it is odd")),
    "a sentence around": (("34", "\\text{The largest is } 34"), ("34", "\\text{It is not } 34")),
    "a unit": (("5", "5 \\text{ cm}"), ("5 \\text{ m}", "5 \\text{ cm}")),
    "a unit's power": (("5 \\text{ cm}^2", "5 \\text{ square cm}"), ("5 \\text{ cm}^2", "5 \\text{ cm}^3")),
    "a percent sign": (("0.5", "50\\%"), ("50\\%", "5\\%")),
    "a degree sign": (("30", "30^\\circ"), ("30^\\circ", "31^\\circ")),
    "a sign of currency": (("5", "\\$5"), ("5€", "5£")),
    "thousands": (("1234", "1,234"), ("1.234", "1,234")),
    "a decimal comma": (("1.5", "1,5"), ("15", "1,5")),
    "brackets around all": (("5", "(5)"), ("(1, 2)", "[1, 2]")),
    "the text of a choice": (("B", "(B) 12"), ("B", "(C) 12")),
    "that an unknown is an integer": (
        ("2k\\pi", "2k\\pi, \\text{ where } k \\text{ is an integer}"),
        ("2k\\pi", "2k\\pi, \\text{ where } k \\text{ is even}"),
    ),
    "dots behind digits that repeat": (("1/3", "0.333..."), ("1/3", "0.33...")),
    "half of the day": (("9:30", "9:30 am"), ("9:30 pm", "9:30 am")),
    "order of a list": (("1, 2", "2, 1"), ("(1, 2)", "(2, 1)")),
    "an item told twice": (("1, 2", "1, 2, 2"), ("2", "2, 2")),
    "case of words": (("Evelyn", "EVELYN"), ("Evelyn", "Carlos")),
    "Roman numerals of the gold": (("XIV", "14"), ("42", "XLII")),
    "signs of a point's entries": (
        ("(1,2),(1,-2),(-1,2),(-1,-2)", "(\\pm 1,\\pm 2)"),
        ("(1,2),(-1,-2),(1,3),(-1,-3)", "(\\pm 1,\\pm 2)"),
    ),
    "color, font and size": (("5", "\\color{red}{\\large 5}"), ("5", "\\color{red}{\\large 6}")),
}


@pytest.mark.parametrize(
    ("gold", "boxed", "right"), [("42", "42,42", False), ("100", "100,100", False), ("100100", "100,100", True)]
)
def test_a_number_told_twice_in_a_box_is_no_number(gold: str, boxed: str, right: bool) -> None:
    """Three digits behind a comma are thousands, never a value and itself: one response is right for one of the two."""
    for verifier in (VERIFIER, Verifier(), Verifier(extract="lenient"), Verifier(extract="boxed")):
        assert verifier.verify(f"It is \\boxed{{{boxed}}}.", gold).correct is right


@pytest.mark.parametrize("what", STRIPPED)
def test_what_is_stripped_matters_where_it_differs(what: str) -> None:
    (gold, same), (other_gold, other) = STRIPPED[what]
    assert VERIFIER.verify(same, gold, kind="answer").correct
    assert not VERIFIER.verify(other, other_gold, kind="answer").correct


def test_every_reading_that_strips_is_in_the_documentation() -> None:
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs" / "verifier.md").read_text(encoding="utf-8")
    missing = [what for what in STRIPPED if f"| {what} |" not in page]
    assert not missing


TALL = "1.5 meters wide by 1.25 meters tall"


@pytest.mark.parametrize(
    "response",
    [
        f"The final answer is {TALL}.",
        f"#### {TALL}",
        f"<answer>{TALL}</answer>",
        f"**Final Answer:** {TALL}",
        f"The final answer is ${TALL}$.",
    ],
)
def test_a_sentence_that_is_the_accepted_answer_is_right(response: str) -> None:
    verdict = VERIFIER.verify(response, TALL)
    assert verdict.correct
    assert verdict.answer == TALL
    assert verdict.span is not None
    assert response[slice(*verdict.span)] == TALL


@pytest.mark.parametrize(
    "response",
    [
        f"The final answer is {TALL} by 3 meters deep.",
        f"The final answer is 1.5 meters, not {TALL}.",
        f"#### 2 meters or {TALL}",
        f"#### {TALL} or 7",
        "The final answer is 1.5 meters wide by 1.35 meters tall.",
    ],
)
def test_a_sentence_with_more_in_it_is_not(response: str) -> None:
    assert not VERIFIER.verify(response, TALL).correct
