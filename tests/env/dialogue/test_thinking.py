"""Thoughts: told to whoever reads an answer, closed where they were cut off."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.dialogue import Dialogue, completion_ids
from mathturn_gym.errors import ChatTemplateError, InvalidValueError
from mathturn_gym.testing import make_tokenizer
from mathturn_gym.types import Ids, Problem, Status, TurnContext
from mathturn_gym.verifier import Verifier

OPENS = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and '</think>' in m['content'] %}"
    "{% set said = m['content'].split('</think>')[-1].lstrip('\n') %}{% else %}{% set said = m['content'] %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + said + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""The shape of DeepSeek-R1's template: it opens a thought, and takes it out of earlier turns."""

MARKS = {
    "think": ("<think>", "</think>"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "gemma": ("<|channel>thought\n", "<channel|>"),
    "magistral": ("[THINK]", "[/THINK]"),
}


def shows(open_: str, close: str) -> str:
    """A template that shows the thought of the last answer between these marks."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        f"{{% if m['reasoning_content'] and loop.last %}}{{{{ '{open_}' + m['reasoning_content'] + '{close}' }}}}{{% endif %}}"
        "{{ m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ).replace("\n'", "\\n'")


def ids_of(dialogue: Dialogue, text: str) -> Ids:
    """What a model writes, marks as the special tokens they are."""
    return np.array(dialogue.tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)


@pytest.fixture(params=["special", "text"])
def opening(request: pytest.FixtureRequest) -> Dialogue:
    """A dialogue whose generation prompt opens a thought, its marks special tokens or plain text."""
    marks = ["<think>", "</think>"] if request.param == "special" else []
    return Dialogue(make_tokenizer(OPENS, marks=marks))


def test_readers_see_that_a_thought_was_opened(opening: Dialogue) -> None:
    assert opening.opens_thought
    prompt = opening.prompt_ids("1+1?")
    assert opening.decode(prompt).endswith("<think>\n")
    assert opening.response(prompt, ids_of(opening, "1+1</think>2<|im_end|>")) == "<think>1+1</think>2"
    assert opening.response(prompt, ids_of(opening, "1+1 is")) == "<think>1+1 is"


def test_an_unclosed_thought_has_no_answer(opening: Dialogue) -> None:
    """What used to be rewarded: the generation prompt opens the thought, so the answer's text alone shows none."""
    env = MathMultiTurnEnv([Problem("p", "2+2?", "4")], dialogue=opening, num_turns=3)
    env.reset(seed=0)
    for said, status in (
        (r"It might be \boxed{4}. But wait", Status.NO_ANSWER),
        (r"It might be \boxed{5}.</think>It is \boxed{4}", Status.RIGHT),
        (r"It is \boxed{4}</think>", Status.NO_ANSWER),
    ):
        observation, *_, info = env.step(ids_of(opening, said))
        assert info["verdict"].status is status, said
        assert info["response"].startswith("<think>")
    assert opening.decode(observation).count("<think>") == 3


@pytest.mark.parametrize("family", MARKS)
def test_every_familys_marks_are_read_as_one_pair(family: str) -> None:
    open_, close = MARKS[family]
    template = shows(open_.replace("\n", "\\n"), close)
    dialogue = Dialogue(make_tokenizer(template, marks=re.findall(r"<\|?\w+\|?>|\[/?THINK\]", open_ + close)))
    assert not dialogue.opens_thought
    context = dialogue.prompt_ids("2+2?")
    closed, cut = ids_of(dialogue, f"{open_}2+2{close}4"), ids_of(dialogue, rf"{open_}maybe \boxed{{4}}")
    verifier = Verifier()
    assert dialogue.response(context, closed).endswith("</think>4")
    assert dialogue.response(context, closed).startswith("<think>")
    assert verifier.verify(dialogue.response(context, cut), "4").status is Status.NO_ANSWER
    # Cut off inside the thought, the turn is closed as the template closes it: thought, then turn.
    after = dialogue.decode(dialogue.feedback_ids("No.", 0, cut))
    assert after == f"{close}<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n"
    assert dialogue.decode(dialogue.feedback_ids("No.", 0, closed)).startswith("<|im_end|>\n<|im_start|>user")


def test_a_cut_off_thought_is_closed_once_and_only_where_it_is_open(opening: Dialogue) -> None:
    for said, closes in (("thinking", True), ("thinking</think>4", False), ("", True)):
        after = opening.decode(opening.feedback_ids("No.", 0, ids_of(opening, said)))
        assert after.startswith("\n</think>\n\n<|im_end|>") is closes, said
        assert after.endswith("<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n<think>\n")
    ended = ids_of(opening, "thinking<|im_end|>")  # it closed its turn itself: nothing is put into its mouth
    assert opening.decode(opening.feedback_ids("No.", 0, ended)).startswith("\n<|im_start|>user")


def test_verifiers_and_feedback_of_the_users_see_the_same_text(opening: Dialogue) -> None:
    seen: list[str] = []

    def verifier(context: TurnContext) -> bool:
        seen.append(context.response)
        return context.response.endswith("</think>4")

    env = MathMultiTurnEnv([Problem("p", "2+2?", "4")], dialogue=opening, num_turns=1, verifier=verifier)
    env.reset(seed=0)
    *_, info = env.step(ids_of(opening, "hm</think>4"))
    assert seen == ["<think>hm</think>4"]
    assert info["verdict"].correct


def test_marks_of_ones_own() -> None:
    template = shows("((", "))")
    with pytest.raises(ChatTemplateError, match=r"marks that are not known here.*thinking=\(OPEN, CLOSE\)"):
        Dialogue(make_tokenizer(template), history="strip-thinking")
    unknown = Dialogue(make_tokenizer(template))
    assert unknown.thinking is None
    said = ids_of(unknown, "((2+2))4")
    assert unknown.response(said[:0], said) == "((2+2))4", "unread, a thought is text like any other"
    told = Dialogue(make_tokenizer(template), thinking=("((", "))"), history="strip-thinking")
    assert told.response(said[:0], said) == "<think>2+2</think>4"
    env = MathMultiTurnEnv(
        [Problem("p", "2+2?", "4")],
        dialogue=partial(Dialogue, thinking=("((", "))")),
        tokenizer=make_tokenizer(template),
    )
    assert env.dialogue.response(said[:0], said) == "<think>2+2</think>4"


@pytest.mark.parametrize("thinking", [("<think>",), "<think>", ("", "x"), (1, 2)])
def test_marks_must_be_two_texts(thinking: Any) -> None:
    with pytest.raises(InvalidValueError, match="thinking must be two marks"):
        Dialogue("builtin", thinking=thinking)


def test_encode_writes_no_bos_and_no_marker() -> None:
    """`tokenizer(text)` puts a second BOS into the dialogue of models whose tokenizer adds one."""
    tokenizer = make_tokenizer("header")
    tokenizer.add_bos_token = True
    dialogue = Dialogue(tokenizer)
    ids = dialogue.encode("4<|im_end|>")
    assert not set(ids.tolist()) & set(tokenizer.all_special_ids)
    assert dialogue.decode(ids) == "4<|im_end|>"
    assert completion_ids(dialogue, "4").tolist() == [*dialogue.encode("4").tolist(), *dialogue.end_of_turn]
    assert dialogue.encode("").shape == (0,)


def test_encode_writes_no_second_bos_into_a_llama_3_dialogue(shared: Any) -> None:
    dialogue = Dialogue(shared / "golden" / "real" / "tokenizers" / "llama3")
    bos = dialogue.tokenizer.bos_token_id
    assert dialogue.tokenizer("4")["input_ids"][0] == bos, "the idiom that went wrong"
    context = np.concatenate([dialogue.prompt_ids("2+2?"), completion_ids(dialogue, "4")])
    assert int((context == bos).sum()) == 1
