"""Every chat template that TRL ships, with its own special tokens: they split, and they grow as the template writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.env.dialogue import Dialogue, completion_ids
from mathturn_gym.errors import ChatTemplateError, InvalidValueError
from mathturn_gym.testing import make_tokenizer
from mathturn_gym.types import Problem

trl = pytest.importorskip("trl", reason="TRL's chat templates come with TRL: pip install '.[trl]'")

FOLDER = Path(trl.__file__).parent / "chat_templates"
MARK = re.compile(
    r"<\|[^|<>\s]*\|>|<｜[^｜]*｜>|<\|?(?:start_of_turn|end_of_turn|turn|channel)\|?>|</?think>|\[gMASK\]|<sop>|</s>"
    r"|<end_of_utterance>"
)
NAMES = sorted(file.stem for file in FOLDER.glob("*.jinja"))

# What the families end a turn with, and whether their generation prompt opens a thought.
FAMILIES = {
    "cohere": ("<|END_OF_TURN_TOKEN|>", False),
    "cohere2": ("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", False),
    "deepseek_r1_distill": ("<｜end▁of▁sentence｜>", True),
    "deepseekv3": ("<｜end▁of▁sentence｜>", True),
    "gemma3": ("<end_of_turn>", False),
    "gemma4": ("<turn|>", False),
    "glm4moe": ("<|user|>", False),
    "gptoss": ("<|return|>", False),
    "idefics3": ("<end_of_utterance>", False),
    "lfm2": ("<|im_end|>", False),
    "llama3_2": ("<|eot_id|>", False),
    "muse_glimmer": ("<|eot|>", False),
    "nemotron_3_nano": ("<|im_end|>", True),
    "phi3": ("<|end|>", False),
    "qwen2_5": ("<|im_end|>", False),
    "qwen3": ("<|im_end|>", False),
    "qwen3_5_nothink": ("<|im_end|>", False),
    "qwen3_5_think": ("<|im_end|>", True),
    "qwen3_8": ("<|im_end|>", True),
    "smolvlm": ("<end_of_utterance>", False),
}


def tokenizer_of(name: str) -> Any:
    """A small tokenizer in which the marks of a template are special tokens, as they are in its model's."""
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    plain = Dialogue(make_tokenizer(template))
    shown = plain.decode(plain.prompt_ids("Q")) + plain.decode(plain.feedback_ids("N", 0, plain.encode("A")))
    return make_tokenizer(template, marks=sorted(set(MARK.findall(shown + template))))


def messages(dialogue: Dialogue, *texts: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    found: list[dict[str, Any]] = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    if dialogue._template.in_parts:
        found = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in found]
    return found


def whole(dialogue: Dialogue, *texts: str) -> str:
    return str(
        dialogue.tokenizer.apply_chat_template(
            messages(dialogue, *texts), tokenize=False, add_generation_prompt=len(texts) % 2 == 1
        )
    )


def test_there_are_templates() -> None:
    assert len(NAMES) >= 46
    assert set(FAMILIES) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_template_splits_at_every_turn(name: str) -> None:
    """Prompt and feedback are what the template writes; the whole grows by extension where the template's does."""
    dialogue = Dialogue(tokenizer_of(name))
    said, text = completion_ids(dialogue, "It is 4."), "No, try again."
    prompt = dialogue.decode(dialogue.prompt_ids("What is 3+4?"))
    assert prompt == whole(dialogue, "What is 3+4?")
    context = dialogue.prompt_ids("What is 3+4?")
    for turn in range(3):
        context = np.concatenate([context, said, dialogue.feedback_ids(text, turn, said)])
    grown = dialogue.decode(context)
    assert grown.count(text) == 3
    assert grown.count("It is 4.") == 3
    written = whole(dialogue, "What is 3+4?", *["It is 4.", text] * 3)
    # After an answer, the ids are the template's own; before it, templates of thinking models write something else.
    tail = written[written.rindex("It is 4.") + len("It is 4.") :]
    own = grown[grown.rindex("It is 4.") + len("It is 4.") :]
    assert own.removeprefix("<|return|>") == tail.removeprefix("<|end|>" if "<|return|>" in own else "")
    starts = Dialogue(tokenizer_of(name), history="template").history_ids(Problem("p", "What is 3+4?", "7"), [])
    assert starts.tolist() == dialogue.prompt_ids("What is 3+4?").tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_off_turn_is_closed_and_a_closed_one_not_twice(name: str) -> None:
    dialogue = Dialogue(tokenizer_of(name))
    if not dialogue.end_of_turn:
        pytest.skip("this template closes a turn with nothing")
    cut, closed = dialogue.encode("It is 4."), completion_ids(dialogue, "It is 4.")
    if dialogue.opens_thought:  # the answer comes after it
        assert dialogue.thinking is not None
        thought = dialogue.tokenizer(dialogue.thinking.closing, add_special_tokens=False)["input_ids"]
        cut, closed = np.concatenate([thought, cut]), np.concatenate([thought, closed])
    after_cut, after_closed = dialogue.feedback_ids("No.", 0, cut), dialogue.feedback_ids("No.", 0, closed)
    assert len(after_cut) > len(after_closed)
    assert after_cut.tolist()[len(after_cut) - len(after_closed) :] == after_closed.tolist()
    assert not dialogue.is_closed(cut)
    assert dialogue.is_closed(closed)
    assert dialogue.text(closed) == dialogue.text(cut)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_end_their_turns_and_open_thoughts_as_known(name: str) -> None:
    dialogue = Dialogue(tokenizer_of(name))
    ends, opens = FAMILIES[name]
    assert dialogue.decode(np.array(dialogue.end_of_turn, np.int64)) == ends
    assert dialogue.opens_thought is opens


@pytest.mark.parametrize("name", ["llava_next", "idefics3", "smolvlm"])
def test_templates_of_models_that_read_images_get_their_contents_in_parts(name: str) -> None:
    dialogue = Dialogue(tokenizer_of(name))
    assert dialogue._template.in_parts
    assert "What is 3+4?" in dialogue.decode(dialogue.prompt_ids("What is 3+4?"))


def test_an_answer_that_ends_half_closed_gets_the_rest() -> None:
    dialogue = Dialogue(tokenizer_of("cohere2"))
    half = np.append(dialogue.encode("4"), dialogue.end_of_turn[0])
    assert dialogue.decode(dialogue.feedback_ids("No.", 0, half)).startswith("<|END_OF_TURN_TOKEN|><|START_OF_TURN")


def test_what_a_model_closes_with_need_not_be_what_history_shows() -> None:
    """gpt-oss ends with <|return|>, which a dialogue that goes on has as <|end|>; its analysis ends with <|end|> too."""
    dialogue = Dialogue(tokenizer_of("gptoss"))
    encode = dialogue.tokenizer
    text = "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>"
    ids = np.array(encode(text, add_special_tokens=False)["input_ids"])
    assert dialogue.response(ids[:0], ids) == "<think>2+2<|end|><|start|>assistant</think>4"
    assert dialogue.decode(dialogue.feedback_ids("No.", 0, ids)).startswith("<|start|>user<|message|>No.")


def test_glm_closes_its_turn_with_the_users_mark() -> None:
    dialogue = Dialogue(tokenizer_of("glm4moe"))
    closed = completion_ids(dialogue, "4")
    assert dialogue.decode(closed) == "4<|user|>"
    assert dialogue.decode(dialogue.feedback_ids("No.", 0, closed)) == "\nNo.<|assistant|>"
    assert dialogue.text(closed) == "4"


# ---- variables of a template


def test_variables_reach_the_template() -> None:
    tokenizer = tokenizer_of("qwen3")
    silent = Dialogue(tokenizer, chat_template_kwargs={"enable_thinking": False})
    assert silent.decode(silent.prompt_ids("x")).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    after = silent.feedback_ids("No.", 0, completion_ids(silent, "4"))
    assert silent.decode(after).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not silent.opens_thought
    assert Dialogue(tokenizer_of("qwen3_6")).opens_thought
    assert not Dialogue(tokenizer_of("qwen3_6"), chat_template_kwargs={"enable_thinking": False}).opens_thought


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"enable_thinkin": False},
            r"never reads 'enable_thinkin': did you mean 'enable_thinking'\?.*would do nothing",
        ),
        ({"add_generation_prompt": False}, "add_generation_prompt is given by the environment"),
        (["enable_thinking"], "chat_template_kwargs must be values by name"),
    ],
)
def test_variables_that_would_do_nothing_are_refused(kwargs: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Dialogue(tokenizer_of("qwen3"), chat_template_kwargs=kwargs)


def test_a_template_that_opens_thoughts_now_and_then_is_refused() -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
        "{% if messages | length > 1 %}{{ '<think>\n' }}{% endif %}{% endif %}"
    )
    with pytest.raises(ChatTemplateError, match="opens a thought in some of its generation prompts and not in others"):
        Dialogue(make_tokenizer(template))


# ---- the table of docs/chat_models.md


def described(name: str) -> tuple[str, str, str, str]:
    """What the table says of a template: its end of turn, who opens a thought, its marks, what history makes of it."""
    tokenizer = tokenizer_of(name)
    dialogue = Dialogue(tokenizer)
    thinking = dialogue.thinking
    assert thinking is not None
    text = ("" if dialogue.opens_thought else thinking.open) + "2+2" + thinking.closing + "4"
    said = np.append(tokenizer(text, add_special_tokens=False)["input_ids"], dialogue.end_of_turn).astype(np.int64)
    seen = np.concatenate([dialogue.prompt_ids("What is 3+4?"), said])
    again = Dialogue(tokenizer, history="template").history_ids(Problem("p", "What is 3+4?", "7"), [(said, "No.")])
    return (
        dialogue.decode(np.array(dialogue.end_of_turn, np.int64)),
        "the prompt" if dialogue.opens_thought else "the model",
        f"{thinking.open.strip()} … {thinking.close.strip()}"
        if thinking.close in dialogue._template.source
        else "none",
        "continues" if again[: len(seen)].tolist() == seen.tolist() else "re-rendered",
    )


def listed() -> dict[str, tuple[str, ...]]:
    page = (Path(__file__).parents[3] / "docs" / "chat_models.md").read_text(encoding="utf-8")
    table = page[page.index("| templates |") :].partition("\n\n")[0]
    rows: dict[str, tuple[str, ...]] = {}
    for line in table.splitlines()[2:]:
        names, *cells = (cell.strip().replace("\\|", "|").strip("`") for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        rows |= dict.fromkeys((name.strip("` ") for name in names.split(",")), tuple(cells))
    return rows


def test_the_table_lists_every_template() -> None:
    assert sorted(listed()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_true(name: str) -> None:
    assert listed()[name] == described(name)
