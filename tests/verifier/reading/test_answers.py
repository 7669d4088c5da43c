"""One canonical form of an answer, for whoever counts answers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.env.feedback._registry import TEXTS
from mathturn_gym.env.feedback.modes import grade
from mathturn_gym.env.rewards import get_terms
from mathturn_gym.episodes.metrics.figures import majority_at_k
from mathturn_gym.types import Problem, TurnContext, TurnRecord
from mathturn_gym.verifier import Status, Verdict, Verifier, answer_key, is_readable, literal_value
from mathturn_gym.verifier.audit import load_cases


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.50", " 1/2 "),
        ("+2/4", "\\dfrac{1}{2}"),
        ("1,234", "1234"),
        ("1{,}234.0", "1234"),
        ("x + 1", "x+1"),
        ("$x+1$", "x+1"),
        ("\\text{Yes}", "yes."),
        ("(B)", "B"),
        ("twenty-one", "21"),
    ],
)
def test_spellings_of_one_answer_share_a_key(first: str, second: str) -> None:
    assert answer_key(first) == answer_key(second)


def test_other_answers_have_other_keys() -> None:
    keys = [answer_key(text) for text in ("1/2", "2", "x+1", "x+2", "1, 2", "2, 1", "1,2", "12", "1/0", "yes", "B", "")]
    assert len(set(keys)) == len(keys) - 1  # "1, 2" and "1,2" are one list
    # Read as text: its value would not fit into memory.
    assert answer_key("1e999999999") == "1e999999999"


def test_what_has_one_key_is_equal_to_the_verifier() -> None:
    texts = sorted({case.gold for case in load_cases() if len(case.gold) < 200})
    by_key = {key: list(group) for key, group in itertools.groupby(sorted(texts, key=answer_key), key=answer_key)}
    pairs = [(group[0], other) for group in by_key.values() for other in group[1:]]
    assert len(pairs) > 20
    with Verifier(form="equivalent") as verifier:
        verdicts = verifier.verify_batch([b for _, b in pairs], [a for a, _ in pairs], kind="answer")
    assert [pair for pair, verdict in zip(pairs, verdicts, strict=True) if not verdict.correct] == []


@given(st.text(max_size=3000))
def test_any_text_has_a_key(text: str) -> None:
    assert answer_key(text) == answer_key(text)
    assert isinstance(is_readable(text), bool)
    literal_value(text)


def test_everybody_counts_answers_alike() -> None:
    # Three definitions of "the same answer" once disagreed on a thousands comma.
    wrong = Verdict(Status.WRONG, "different", answer="1,234")
    again = Verdict(Status.WRONG, "different", answer="1234")
    failed = TurnRecord("", wrong, "", 0.0, 0, 0)
    context = TurnContext(Problem("p/1", "?", "7"), 1, 5, "", earlier=(failed,), verdict=again)
    assert get_terms({"repeated_answer": 1.0})["repeated_answer"](context) == -1.0
    # Two votes for 1234 outvote a single right answer.
    assert majority_at_k(["1,234", "1234", "7"], [False, False, True], 3) == 0.0
    assert grade("(1234, 5)", ["(1234.0, 6)"], TEXTS["en"]) == ["These of its elements are right: 1."]
