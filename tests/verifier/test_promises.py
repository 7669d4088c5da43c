"""What the verifier must never accept, in classes: a sign of the answer that was not read, an equality that was not shown."""

from __future__ import annotations

import functools

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.audit import load_cases

# class -> (gold, answer in a box, whether it is right when form="equivalent")
CLASSES: dict[str, list[tuple[str, str, bool]]] = {
    "words": [
        ("8", r"\text{half of }8", False),
        ("8", r"\text{square root of }8", False),
        ("8", r"\text{twice }8", False),
        ("8", r"\text{at least }8", False),
        ("8", r"8\text{ million}", False),
        ("8", r"8\text{ squared}", False),
        ("8", r"8\text{ dozen}", False),
        ("8", r"\text{anything other than }8", False),
        ("8", r"\text{negative }8", False),
        ("8", r"\text{never }8", False),
        ("8", r"\text{the reciprocal of }8", False),
        ("8", r"\text{half of }x = 8", False),
        ("8", r"8\text{ below zero}", False),
        ("8", r"8\text{ and a half}", False),
        ("8", r"8\text{ is wrong}", False),
        ("8", "half of 8", False),
        ("8", "8 million", False),
        ("8", "two dozen", False),
        ("2", "two dozen", False),
        ("90^\\circ", r"\text{supplement of }90^\circ", False),
        ("8", r"8\text{ small red apples per basket}", True),
        ("8", r"\text{exactly }8", True),
        ("8", r"\text{The answer is }8", True),
        ("8", r"\text{The total number of apples is }8", True),
        ("34", r"\text{The largest value is } 34", True),
        ("8000000", r"8\text{ million}", True),
        ("64", r"8\text{ squared}", True),
        ("96", r"8\text{ dozen}", True),
        ("4", r"\text{half of }8", True),
        ("-8", r"\text{negative }8", True),
        ("24", "two dozen", True),
        ("8.5", r"8\text{ and a half}", True),
        ("8", r"\text{Area} = 8", True),
    ],
    "sampling": [
        ("|x+5|", "x+5", False),
        ("|2x+11|", "2x+11", False),
        (r"\lfloor n/50\rfloor", "0", False),
        (r"\lceil n/1000\rceil", "1", False),
        ("|x+10|-10", "|x+11|-11", False),
        (r"\sqrt[3]{x}", r"\sqrt[3]{|x|}", False),
        (r"\ln|x-100|", r"\ln(100-x)", False),
        (r"\sqrt{(x-30)^2}", "30-x", False),
        ("n!", "n!+(n-2)(n-3)(n-4)(n-5)(n-6)(n-7)(n-9)(n-11)", False),
        (r"|x-y+50|", "x-y+50", False),
        (r"\sqrt{(x+40)^2}", "x+40", False),
        (r"\sqrt{(x-30)^2}", "|x-30|", True),
        (r"|2x+11|", r"|-11-2x|", True),
        (r"\lfloor n/2\rfloor", r"\frac{2n-1+(-1)^n}{4}", True),
        (r"\lceil n/50\rceil", r"\lfloor (n+49)/50\rfloor", True),
        (r"\ln|x-1|", r"\ln|1-x|", True),
        (r"||x|-2|", r"||x|+(-2)|", True),
    ],
    "thousands": [
        ("1,000", "1,0", False),
        ("5,040", "40,5", False),
        ("5,040", "40, 5", False),
        ("2,001", "x=1 or x=2", False),
        ("2,001", "1,2", False),
        ("1,000", "1,0,00", False),
        ("1,234", "234, 1", False),
        ("1,234", r"\{1,234\}", False),
        ("1,234", "1, 234", False),
        ("1,000", "1000", True),
        ("1,000", "1,000", True),
        ("1000", "1,000", True),
        ("1000000", "1,000,000", True),
        ("1, 234", "234, 1", True),
    ],
    "logic": [
        ("x>1 and x<2 or x>3 and x<4", "x>1 and x<2 or x>5 and x<6", False),
        ("x>1 and x<2 or x>3 and x<4", "x>1 and x<3 or x>3 and x<4", False),
        ("x>1 and x<2 or x>3 and x<4", r"\mathbb{R}", False),
        ("x>1 and x<2 or x>3 and x<4", r"(1,2)\cup(3,4)", True),
        ("x=1 or x=2", "x=1 and x=2", False),
        ("x=1 or x=2", "x=1, x=2", True),
        ("x=1 and y=2", "x=1, y=2", True),
        ("x<1 or x>3", "x<1 and x>3", False),
        ("x=1 and y=2", "x=1 or y=2", False),
    ],
    "units": [
        (r"\$5", "£5", False),
        (r"\$5", r"5\text{ yen}", False),
        (r"\$5", r"5\text{ cents}", False),
        (r"\$5", "€5", False),
        (r"5\text{ cm}", r"5\text{ kg}", False),
        (r"5\text{ cm}", r"5\text{ m}", False),
        (r"5\text{ mph}", r"5\text{ km/h}", False),
        (r"5\text{ cm}^2", r"5\text{ cm}", False),
        (r"20\%", r"20\text{ percent}", True),
        (r"5\text{ cm}", r"50\text{ mm}", True),
        (r"2\text{ hours}", r"120\text{ minutes}", True),
        (r"\$3.50", r"350\text{ cents}", True),
        (r"\$5", r"5\text{ dollars}", True),
        (r"\$5", "5", True),
        ("5", r"\$5", True),
        (r"2\text{ m}^2", r"20000\text{ cm}^2", True),
        (r"5\text{ cm}", r"500\text{ mm}", False),
    ],
    "names": [
        ("AB=9", "AC=9", False),
        (r"P(A)=\frac12", r"P(B)=\frac12", False),
        ("r=2", "rs=2", False),
        ("q=9", "qa=9", False),
        ("x=2", "y=2", False),
        ("f(2)=5", "f(3)=5", False),
        ("x_1=2", "x_2=2", False),
        ("AB=9", "BA=9", True),
        ("AB=9", "9", True),
        ("9", "AB=9", True),
    ],
    "joined digits": [
        ("12", r"1\quad 2", False),
        ("56", r"5\hspace{1cm}6", False),
        ("15", r"1\phantom{0}5", False),
        ("12", r"1\;2", False),
        ("12", r"1~2", False),
        ("12", r"1\ 2", False),
        ("12", "1 2", True),
        ("1000", "1 000", True),
        ("1000", r"1\,000", True),
        ("12", r"1\!2", True),
    ],
    "decimal comma": [
        ("2.3", "2, 3", False),
        ("2.3", "2 , 3", False),
        ("2.3", "3,2", False),
        ("2.3", "2,3", True),
    ],
    "no answers": [
        ("4=4", "3=3", False),
        ("x=x", "y=y", False),
        ("e^{10x}+10^{-7}=0", "e^{10x}=0", False),
        ("x^2+1=0", "x^2+2=0", False),
        ("2", r"2 + f_{2020}\ldots", False),
        ("2", "2+", False),
        ("2", "2 \\cdot", False),
        ("5", "5=5", False),
        ("8", "8'", False),
        ("(A)", "(A), (B)", False),
        ("1000000", "1'000'000", True),
        ("8", r"\text{She needs }8\text{ cups}", True),
        ("8", r"\sim 8", False),
        (r"5\text{ feet}", r"5\text{ feet }3\text{ inches}", False),
        (r"\gcd(n,101)", "1", False),
    ],
}
ROWS = [(name, *row) for name, rows in CLASSES.items() for row in rows]


@functools.cache
def verifier_of(form: str) -> Verifier:
    return Verifier(form=form, extract="boxed", timeout=2.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "gold", "answer", "right"), ROWS)
def test_in_a_box(name: str, gold: str, answer: str, right: bool) -> None:
    verdict = verifier_of("equivalent").verify(f"So it is $\\boxed{{{answer}}}$.", gold)
    assert (verdict.status is Status.RIGHT) == right, verdict
    if not right:
        verdict = verifier_of("evaluated").verify(f"So it is $\\boxed{{{answer}}}$.", gold)
        assert verdict.status is not Status.RIGHT


SENTENCES: list[tuple[str, str, bool]] = [
    ("8", "The answer is negative 8.", False),
    ("8", "The answer is never 8.", False),
    ("8", "The answer is half of 8.", False),
    ("8", "The answer is at least 8.", False),
    ("8", "The answer is 8 million.", False),
    ("8", "The answer is 8 squared.", False),
    ("8", "The answer is twice 8.", False),
    ("8", "The answer is anything but 8.", False),
    ("8", "The answer is 8 less than expected.", False),
    ("8", "The answer is the opposite of 8.", False),
    ("8", "The answer is 8 or 9.", False),
    ("8", "The answer is not far from 8.", False),
    ("8", "#### half of 8", False),
    ("8", "<answer>twice 8</answer>", False),
    ("-8", "The answer is negative 8.", True),
    ("8000000", "The answer is 8 million.", True),
    ("8", "The answer is 8 apples.", True),
    ("8", "The answer is 8 because 4 + 4 = 8.", True),
    ("8", "The answer is 8, as shown above.", True),
    ("8", "The answer is exactly 8.", True),
    ("8", "The final answer is: the total number of apples is 8.", True),
    ("8", "#### 8 apples", True),
    ("34", "Final Answer: The largest $n$ is 34.", True),
]


@pytest.mark.parametrize(("gold", "response", "right"), SENTENCES)
def test_in_a_sentence(gold: str, response: str, right: bool) -> None:
    with Verifier(form="equivalent") as verifier:
        verdict = verifier.verify(response, gold)
    assert (verdict.status is Status.RIGHT) == right, verdict


def test_a_unit_may_be_required() -> None:
    with Verifier(form="equivalent", units="required") as strict, Verifier(form="equivalent") as lax:
        for gold, answer, told in (
            ("3.5\\text{ gal}", "3.5", False),
            ("5\\text{ cm}", "50\\text{ mm}", True),
            ("5", "5", True),
        ):
            assert strict.verify(answer, gold, kind="answer").correct == told
            assert lax.verify(answer, gold, kind="answer").correct
    with pytest.raises(InvalidValueError, match="units"):
        Verifier(units="sometimes")  # type: ignore[arg-type]


def test_the_classes_are_a_suite_of_the_audit() -> None:
    cases = load_cases(suite="classes")
    assert len(cases) >= 600
    assert len({case.group for case in cases}) >= 10
    with pytest.raises(InvalidValueError, match="suite"):
        load_cases(suite="everything")
