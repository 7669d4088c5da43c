"""Where thoughts begin and end in what a model says.

Every model family has marks of its own. Whoever reads an answer (verifiers, functions of users) sees one pair only:

    <think> … </think> answer        a thought that was closed
    <think> …                        one that was cut off: there is no answer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mathturn_gym.dialogue._template import ChatTemplate, Message, message
from mathturn_gym.errors import ChatTemplateError

__all__ = ["CLOSE", "OPEN", "THOUGHT_FIELDS", "Thinking", "find_thinking", "is_open", "split"]

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
"""The marks that readers see, whatever the model's own are."""

THOUGHT_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message in which templates look for a thought."""

_THOUGHT: Final = "Qzthoughtqz"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Where a model's thoughts begin and end.

    Args:
        open: What opens a thought.
        close: What closes it.
        closing: All that is written between a thought's last word and the answer's first: `close` and what is around it.
        fields: Fields of a message in which the template looks for a thought; () where it only knows texts.
    """

    open: str
    close: str
    closing: str
    fields: tuple[str, ...] = ()

    def canonical(self, text: str) -> str:
        """The text with the marks that readers know.

        >>> Thinking("[THINK]", "[/THINK]", "[/THINK]").canonical("[THINK]2+2[/THINK]4")
        '<think>2+2</think>4'
        """
        if (self.open, self.close) == (OPEN, CLOSE):
            return text
        return text.replace(self.open, OPEN).replace(self.close, CLOSE)


def is_open(text: str) -> bool:
    """True where a text in readers' marks ends inside a thought.

    >>> is_open("<think>2+2"), is_open("<think>2+2</think>4"), is_open("4")
    (True, False, False)
    """
    return text.rfind(OPEN) > text.rfind(CLOSE)


def split(text: str) -> tuple[str, str]:
    """Thought and answer of a text in readers' marks; the answer is "" where the thought was not closed.

    >>> split("<think>2+2</think>4"), split("<think>2+2"), split("4")
    (('2+2', '4'), ('2+2', ''), ('', '4'))
    """
    if is_open(text):
        return text.partition(OPEN)[2], ""
    before, mark, answer = text.rpartition(CLOSE)
    if not mark:
        return "", text
    head, opened, thought = before.partition(OPEN)
    return (thought if opened else head), answer


_KNOWN: Final = (
    Thinking(OPEN, CLOSE, f"\n{CLOSE}\n\n"),  # DeepSeek-R1, Qwen3, GLM, Nemotron, LFM
    Thinking(  # gpt-oss
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    Thinking("<|channel>thought", "<channel|>", "\n<channel|>"),  # Gemma 4
    Thinking(" to=self<|message|>", " to=user<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
    Thinking("[THINK]", "[/THINK]", "[/THINK]"),  # Magistral
    Thinking("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),  # Command A
    Thinking("<seed:think>", "</seed:think>", "</seed:think>"),  # Seed-OSS
    Thinking("◁think▷", "◁/think▷", "◁/think▷"),  # Kimi
)


def find_thinking(template: ChatTemplate, head: list[Message], user: str, answer: str) -> Thinking | None:
    """How a template writes thoughts.

    A dialogue is rendered whose answer has a thought; what stands around it is looked up among the marks that are known.
    Where the template shows no thoughts, its source says which marks it knows.

    Args:
        template: The template.
        head: Messages before the first user's.
        user: A text that is found again.
        answer: Another one.

    Returns:
        The marks; None where thoughts are shown between marks that nobody knows.
    """
    fields, before, closing = [], "", ""
    for name in THOUGHT_FIELDS:
        said = {**message("assistant", answer), name: _THOUGHT}
        try:
            shown = template.render([*head, message("user", user), said], prompt=False)
        except ChatTemplateError:
            continue
        if 0 <= shown.find(_THOUGHT) < shown.find(answer):
            fields.append(name)
            before, _, rest = shown[shown.rindex(user) + len(user) :].partition(_THOUGHT)
            closing = rest[: rest.index(answer)]
    if fields:
        for known in _KNOWN:
            if known.open in before and known.close in closing:
                return Thinking(known.open, known.close, closing, tuple(fields))
        return None
    for known in _KNOWN:
        if known.close in template.source:
            return known
    return _KNOWN[0]  # nothing speaks of thoughts: the most common marks, should the model have learned them since
