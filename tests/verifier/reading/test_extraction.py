"""Which part of a response is its answer."""

from __future__ import annotations

import time

import pytest

from mathturn_gym.verifier import Verifier, extract


@pytest.mark.parametrize(
    ("response", "answer", "rule"),
    [
        ("So $\\boxed{3}$.", "3", "box"),
        ("\\fbox{42}", "42", "box"),
        ("\\boxed{\\frac{1}{2}} and that is it", "\\frac{1}{2}", "box"),
        ("\\boxed{1}, no, rather \\boxed{2}", "2", "box"),
        ("\\boxed{1} and then \\boxed{2", "1", "box"),
        ("\\boxed{\\boxed{5}}", "5", "box"),
        ("\\boxed{x \\} y}", "x \\} y", "box"),
        ("\\boxed 7.", "7.", "box"),
        ("\\boxed{1} and \\boxed{2}", "1, 2", "box"),
        ("$$\\boxed{(2, 2)} \\quad \\text{and} \\quad \\boxed{(6, 2)}$$", "(2, 2), (6, 2)", "box"),
        ("\\($y_1 = \\boxed{a} \\) and \\( y_2 = \\boxed{b} \\)", "a, b", "box"),
        ("\\boxed{5}\n\n\\boxed{5}", "5", "box"),
        ("\\boxed{2} ... wait, no. \\boxed{3}", "3", "box"),
        ("<think>\\boxed{46}</think> \\boxed{47}", "47", "box"),
        ("x </think> \\boxed{1}", "1", "box"),
        ("9 + 9 = 18\n#### 18", "18", "hash"),
        ("#### 46\nno\n#### 47", "47", "hash"),
        ("The answer is 8.", "8", "phrase"),
        ("Final Answer: The final answer is $14{,}916$. I hope it is correct.", "14{,}916", "phrase"),
        ("**Answer:** 12", "12", "phrase"),
        ("the answer is \\(x+1\\) as we saw", "x+1", "phrase"),
    ],
)
def test_finds_the_answer_given_last(response: str, answer: str, rule: str) -> None:
    found = extract(response)
    assert found is not None
    assert (found.text, found.rule) == (answer, rule)


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
        "The answer is not 34.",
        "The answer choices are (A) 3 and (B) 4.",
        "\\boxed{{42}",
        "So there are 12 of 1,300.",
        "<answer>12",
    ],
)
def test_finds_nothing_where_nothing_was_given(response: str) -> None:
    assert extract(response) is None


MARKED = [
    ("Final Answer: The largest $n$ is 34.", "34", "phrase"),
    ("**Final Answer**\n\n$$n = 34$$", "n = 34", "phrase"),
    ("## Answer\n34", "34", "phrase"),
    ("Answer $ 9 $", "9", "phrase"),
    ("最终答案是 34。", "34", "phrase"),
    ("答案：34", "34", "phrase"),
    ("因此，答案为 $34$。", "34", "phrase"),
    ("La respuesta es 34.", "34", "phrase"),
    ("A resposta final é 34.", "34", "phrase"),
    ("La réponse est $34$.", "34", "phrase"),
    ("Die Antwort lautet 34.", "34", "phrase"),
    ("Ответ: 34", "34", "phrase"),
    ("答えは34です。", "34", "phrase"),
    ("정답: 34", "34", "phrase"),
    ("<answer>34</answer>", "34", "tag"),
    ("<answer> The answer is 34. </answer>", "34", "tag"),
    ("<answer>1</answer> no, <answer>2</answer>", "2", "tag"),
    ("<|begin_of_box|>34<|end_of_box|>", "34", "tag"),
    ("[ANSWER]7[/ANSWER]", "7", "tag"),
    ("\\beginboxed{8\\sqrt{6}}", "8\\sqrt{6}", "tag"),
    ("#### The answer is 34", "34", "hash"),
    ("34", "34", "whole"),
    ("$34$", "34", "whole"),
    ("\\[x+1\\]", "x+1", "whole"),
    ("So the answer to the question is 34 apples.", "34", "phrase"),
    ("The answer, in centimeters, is 42.", "42", "phrase"),
    ("**Answer: 42 cm**", "42 cm", "phrase"),
    ("the answer is\n\n\\[\n\\frac{1}{2}\n\\]", "\\frac{1}{2}", "phrase"),
    ("The answers are:\n- $x=3$\n- $x=5$", "$x=3$, $x=5$", "phrase"),
    ("The answer is $x=3$ or $x=5$.", "$x=3$ or $x=5$", "phrase"),
    ("The answer is Evelyn.", "Evelyn", "phrase"),
    ("The answer is 33 or 34.", "33 or 34", "phrase"),
]


@pytest.mark.parametrize(("response", "answer", "rule"), MARKED)
def test_what_is_marked_is_found(response: str, answer: str, rule: str) -> None:
    for policy in ("marked", "lenient"):
        found = extract(response, policy)
        assert found is not None
        assert (found.text, found.rule) == (answer, rule)
    # For training only a box counts.
    assert extract(response, "boxed") is None


@pytest.mark.parametrize(
    ("response", "answer", "rule"),
    [
        ("Therefore $n=34$.", "n=34", "formula"),
        ("So we get 34 apples.", "34", "number"),
        ("First $x = 3$.\nThen\n\\[\na_1 = -1, \\quad a_2 = 1\n\\]", "a_1 = -1, \\quad a_2 = 1", "formula"),
        ("Let $h > 3$.\n\nAD = h = 3 + 2√2.", "AD = h = 3 + 2√2", "line"),
        ("It has $5 and 12 apples cost $3, so 12", "12", "number"),
        ("The answer is 34. Wait, that is wrong. It is 35.", "35", "number"),
        (
            "The answer is 7.\n\nNow look at the other case, in which all of the numbers are odd and differ.",
            "7",
            "phrase",
        ),
        ("So there are 12 of 1,300.", "12", "number"),
        ("The pair $(x, y)$ is $(7, 6)$. <|im_start|>user", "(7, 6)", "formula"),
        ("3 + 4 = 7\nStep 5: print(total)", "3 + 4 = 7", "line"),
    ],
)
def test_lenient_takes_what_the_last_lines_hold(response: str, answer: str, rule: str) -> None:
    found = extract(response, "lenient")
    assert found is not None
    assert (found.text, found.rule) == (answer, rule)


@pytest.mark.parametrize("response", ["I cannot solve it. See page 7.", "Step 34: print(x)", "Why?", ""])
def test_numbers_that_count_lines_and_pages_are_no_answers(response: str) -> None:
    assert extract(response, "lenient") is None


def test_a_box_outranks_what_is_told_in_every_policy() -> None:
    for policy in ("boxed", "marked", "lenient"):
        found = extract("\\boxed{8}. #### 9\nFinal answer is 7.", policy)
        assert found is not None
        assert found.text == "8"


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
    "answer*",
    "answer(",
    "<answer>",
    "boxed{",
    "答案是",
    "$1",
    "\\[",
    "1. ",
    "Step 1:",
    "x=1\n",
    "is ",
    "\\text{",
    " ",
    "\n",
    "****",
    "(1) ",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    # Sixteen times the text: a quadratic search would take 256 times as long. Processor time, on busy machines too.
    def best(size: int) -> float:
        text = piece * (size // len(piece))
        times = []
        for _ in range(3):
            start = time.process_time()
            extract(text, "lenient")
            times.append(time.process_time() - start)
        return min(times)

    assert best(160_000) <= 64 * best(10_000) + 2e-3


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("It is 20, I think", "20"),
        ("The answer is 20, I think.", "20"),
        ("So we get 7 and I am done", "7"),
        ("That gives 5, a prime", "5"),
        ("It must be 7 and then some", "7"),
        ("So it is 7 and a half", "7 and a half"),
        ("10+10 = 20\n\nThis is a", "10+10 = 20"),
        ("x = 1, 2, a", "x = 1, 2, a"),
        ("The answer is a", "a"),
        ("This is A", "A"),
    ],
)
def test_a_word_of_a_sentence_is_no_part_of_an_answer(response: str, answer: str) -> None:
    found = extract(response, "lenient")
    assert found is not None
    assert found.text == answer


@pytest.mark.parametrize("text", ["\\assistant", "\\assistant x y z", "\\assistant 3", "x \\endofturn"])
def test_an_unknown_command_is_no_mathematics(text: str) -> None:
    assert extract(text, "marked") is None


@pytest.mark.parametrize(
    "text",
    [
        "\\hbar x",
        "\\RR",
        "\\overline{AB}",
        "\\iiint x dx",
        "\\textbf{3}",
        "\\eps",
        "\\begin{cases} 1 \\\\ 2 \\end{cases}",
    ],
)
def test_known_commands_and_short_macros_are(text: str) -> None:
    assert extract(text, "marked") is not None


def test_a_point_inside_of_braces_ends_no_sentence() -> None:
    found = extract("The final answer is $\\boldsymbol{960. since there are 3}$. And so on.")
    assert found is not None
    assert found.text == "$\\boldsymbol{960. since there are 3}$"


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("综上所述,答案为:$x=3$ 或 $x=-2$。", "3, -2"),
        ("Answer: 3½", "3.5"),
        ("Answer: 2¹⁰", "1024"),
        ("The answer is option (C).", "C"),
        ("ans: 42", "42"),
        ("The answer is:\n\n```\n42\n```", "42"),
        ("| n | f(n) |\n|---|---|\n| 2 | 5 |\n\nSo the answer would be 5.", "5"),
        ("\\boxed{\\text{The answer is } \\boxed{12}}", "12"),
        ("La réponse est 1 234,5.", "1234.5"),
        ("The answer is 1'000'000", "1000000"),
        ("答：共有 25 人。", "25"),
        ("답은 12입니다.", "12"),
        ("Answer: x = 3, y = 4", "(3,4)"),
    ],
)
def test_answers_as_people_write_them(response: str, gold: str) -> None:
    for policy in ("marked", "lenient"):
        with Verifier(form="equivalent", extract=policy) as verifier:
            assert verifier.verify(response, gold).correct


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("因此,小明一共有15个苹果。", "15"),
        ("So x = 3 and y = 4.", "(3,4)"),
        ("Therefore, the solutions are:\n- x = 1\n- x = 2", "1, 2"),
        ("```python\nprint(6*7)\n```\nOutput: 42", "42"),
        ("Therefore the total comes out to be $1,234,567.", "1234567"),
        ("Die Lösung ist also x = 7.", "7"),
    ],
)
def test_answers_that_nobody_marked(response: str, gold: str) -> None:
    with Verifier(form="equivalent", extract="lenient") as verifier:
        assert verifier.verify(response, gold).correct
    with Verifier(form="equivalent") as verifier:
        assert not verifier.verify(response, gold).correct


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("Answer: 3½", "3"),
        ("Answer: 2¹⁰", "2"),
        ("答案为:$x=3$ 或 $x=-2$", "3"),
        ("- x = 1\n- x = 2", "2"),
        ("So 7 and a half", "7"),
        ("- 5", "5"),
    ],
)
def test_a_part_of_an_answer_is_not_the_answer(response: str, gold: str) -> None:
    for policy in ("marked", "lenient"):
        with Verifier(form="equivalent", extract=policy) as verifier:
            assert not verifier.verify(response, gold).correct
