"""Which part of a response is its answer."""

from __future__ import annotations

import time

import pytest

from mathturn_gym.verifier import extract


@pytest.mark.parametrize(
    ("response", "answer", "how"),
    [
        ("So $\\boxed{3}$.", "3", "boxed"),
        ("\\fbox{42}", "42", "boxed"),
        ("\\boxed{\\frac{1}{2}} and that is it", "\\frac{1}{2}", "boxed"),
        ("\\boxed{1}, no, rather \\boxed{2}", "2", "boxed"),
        ("\\boxed{1} and then \\boxed{2", "1", "boxed"),
        ("\\boxed{\\boxed{5}}", "5", "boxed"),
        ("\\boxed{x \\} y}", "x \\} y", "boxed"),
        ("\\boxed 7.", "7.", "boxed"),
        ("\\boxed{1} and \\boxed{2}", "1, 2", "boxed"),
        ("$$\\boxed{(2, 2)} \\quad \\text{and} \\quad \\boxed{(6, 2)}$$", "(2, 2), (6, 2)", "boxed"),
        ("\\($y_1 = \\boxed{a} \\) and \\( y_2 = \\boxed{b} \\)", "a, b", "boxed"),
        ("\\boxed{5}\n\n\\boxed{5}", "5", "boxed"),
        ("\\boxed{2} ... wait, no. \\boxed{3}", "3", "boxed"),
        ("<think>\\boxed{46}</think> \\boxed{47}", "47", "boxed"),
        ("x </think> \\boxed{1}", "1", "boxed"),
        ("9 + 9 = 18\n#### 18", "18", "hash"),
        ("#### 46\nno\n#### 47", "47", "hash"),
        ("The answer is 8.", "8", "phrase"),
        ("Final Answer: The final answer is $14{,}916$. I hope it is correct.", "14{,}916", "phrase"),
        ("**Answer:** 12", "12", "phrase"),
        ("the answer is \\(x+1\\) as we saw", "x+1", "phrase"),
    ],
)
def test_finds_the_answer_given_last(response: str, answer: str, how: str) -> None:
    found = extract(response)
    assert found is not None
    assert (found.text, found.how) == (answer, how)


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I tried 46 and gave up.",
        "\\boxed{} 46",
        "\\boxed{  }",
        "<think>so it is \\boxed{7}",
        "<think>the answer is 7</think> Hm.",
        "The answer is 7. Wait, no, the sum must be even.",
        "The answer is 7.\n\nNow look at the other case, in which all of the numbers are odd and differ.",
    ],
)
def test_finds_nothing_where_nothing_was_given(response: str) -> None:
    assert extract(response) is None


def test_the_last_number_counts_only_where_asked() -> None:
    assert extract("so there are 12 of 1,300") is None
    found = extract("so there are 12 of 1,300", last_number=True)
    assert found is not None
    assert found.text == "1,300"


def test_place_is_the_place_in_the_response() -> None:
    response = "<think>\\boxed{1}</think> We get \\boxed{ 47 }."
    found = extract(response)
    assert found is not None
    assert response[found.start : found.end] == found.text == "47"


def test_place_of_a_very_long_response() -> None:
    response = "a" * 1_000_000 + "\\boxed{12} " + "b" * 1000
    found = extract(response)
    assert found is not None
    assert response[found.start : found.end] == "12"


HOSTILE = [
    "\\boxed{",
    "{",
    "}",
    "\\boxed{1} and ",
    "answer is ",
    "answer: ",
    "####",
    "<think>",
    "</think>",
    "\\",
    "$",
    "answer   ",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    # Sixteen times the text: a quadratic search would take 256 times as long. Processor time, on busy machines too.
    def best(size: int) -> float:
        text = piece * (size // len(piece))
        times = []
        for _ in range(3):
            start = time.process_time()
            extract(text, last_number=True)
            times.append(time.process_time() - start)
        return min(times)

    assert best(160_000) <= 64 * best(10_000) + 2e-3
