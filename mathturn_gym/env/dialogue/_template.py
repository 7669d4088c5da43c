"""A tokenizer's chat template: messages in, text out, and the ids of that text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from mathturn_gym.env.dialogue._tokenizers import LOCKS, Tokenizer, name_of_tokenizer
from mathturn_gym.errors import ChatTemplateError, InvalidValueError
from mathturn_gym.types import Ids

Message: TypeAlias = dict[str, str]
"""A message: "role", "content", and for a thought the fields that templates look for it in."""

CHATML_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A ChatML chat template, for tokenizers that have the two markers but no template."""

# Arguments of `apply_chat_template` that are ours to give: what is rendered, and in which form it comes back.
_RENDERED: Final = ("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message")
_RESERVED: Final = (*_RENDERED, "tokenize", "return_tensors", "return_dict", "padding", "truncation", "max_length")


def message(role: str, content: str) -> Message:
    """A message of a role."""
    return {"role": role, "content": content}


class ChatTemplate:
    """A tokenizer's chat template: renders messages, and encodes what it renders.

    Args:
        tokenizer: A Hugging Face tokenizer.
        kwargs: Further variables of the template, by name (`{"enable_thinking": False}`).

    Attributes:
        in_parts: Contents are lists of parts, as templates of models that also read images want them.
        special_ids: Ids of special tokens, and of other added tokens that the template writes; set by `find_markers`.

    Raises:
        ChatTemplateError: the tokenizer has no chat template.
        InvalidValueError: a variable that the template never reads.
    """

    def __init__(self, tokenizer: Tokenizer, kwargs: Mapping[str, Any]) -> None:
        self.tokenizer, self.kwargs = tokenizer, kwargs
        if not getattr(tokenizer, "chat_template", None):
            raise ChatTemplateError(
                f"tokenizer {self.name} has no chat template: set `tokenizer.chat_template` to the one its"
                " model was trained with (mathturn_gym.env.dialogue.CHATML_TEMPLATE is one for <|im_start|>/<|im_end|>"
                " models), or use a chat model's tokenizer"
            )
        self.in_parts = False
        self.special_ids: frozenset[int] = frozenset(tokenizer.all_special_ids)
        self._markers: re.Pattern[str] | None = None
        _check_kwargs(self.name, kwargs, self.source)

    @property
    def name(self) -> str:
        """The tokenizer's name in error messages."""
        return name_of_tokenizer(self.tokenizer)

    @property
    def source(self) -> str:
        """The template's text; of a tokenizer with several templates, all of them."""
        template = self.tokenizer.chat_template
        return "\n".join(map(str, template.values())) if isinstance(template, Mapping) else str(template)

    def render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        """The text of a dialogue; with `prompt` it ends with the prompt for the next answer."""
        given: list[Any] = list(messages)
        if self.in_parts:
            given = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                given, tokenize=False, add_generation_prompt=prompt, **self.kwargs
            )
        except Exception as error:  # a template is a program: it can raise anything
            roles = " ".join(one["role"] for one in messages)
            raise ChatTemplateError(
                f"the chat template of {self.name} cannot render the roles [{roles}]: {str(error) or type(error).__name__};"
                " where it knows no system role, give the system prompt as part of the problem's text"
            ) from error
        return str(text)

    def tokenize(self, text: str) -> Ids:
        """Ids of a text, markers in it as themselves, int64 (L,)."""
        with LOCKS.encoding, _unicode_errors(text):
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.asarray(ids, dtype=np.int64)

    def tokenize_plain(self, text: str) -> Ids:
        """Ids of a text, what looks like a special token as plain text, int64 (L,)."""
        if not self.has_marker(text):
            return self.tokenize(text)
        with LOCKS.encoding, _unicode_errors(text):
            ids = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return np.asarray(ids, dtype=np.int64)

    def tokenize_around(self, rendered: str, before: str, text: str, after: str) -> Ids:
        """Ids of a rendering; where the `text` in it holds a marker, it is encoded apart, as plain text."""
        if not self.has_marker(text):
            return self.tokenize(rendered)
        return np.concatenate([self.tokenize(before), self.tokenize_plain(text), self.tokenize(after)])

    def has_marker(self, text: str) -> bool:
        """True where the text holds what must never be encoded as itself inside a user's text."""
        return self._markers is not None and self._markers.search(text) is not None

    def find_markers(self, skeleton: str, own: Sequence[str]) -> None:
        """Notes the special tokens, and the template's own marks: added tokens of a rendered dialogue outside the messages' texts."""
        tokens = {
            i: token.content
            for i, token in self.tokenizer.added_tokens_decoder.items()
            if token.special or (token.content.strip() and token.content in skeleton)
        }
        self.special_ids = frozenset(tokens) | frozenset(self.tokenizer.all_special_ids)
        strings = {content for content in tokens.values() if content} - set(own)
        longest_first = sorted(strings, key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _check_kwargs(name: str, kwargs: Mapping[str, Any], source: str) -> None:
    """Raises for a variable that would do nothing, or that is not the user's to give."""
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise InvalidValueError(f"chat_template_kwargs must be values by name, got {kwargs!r}")
    words = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"\{[{%](.*?)[%}]\}", source, re.DOTALL))))
    for key in kwargs:
        if key in _RESERVED:
            raise InvalidValueError(f"chat_template_kwargs: {key} is given by the environment; leave it out")
        if key not in words:
            near = difflib.get_close_matches(key, words, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise InvalidValueError(
                f"chat_template_kwargs: the chat template of {name} never reads {key!r}{hint}, so it would do nothing"
            )


@contextmanager
def _unicode_errors(text: str) -> Iterator[None]:
    """Names what tokenizers call a wrong type: a text with half of a surrogate pair in it."""
    try:
        yield
    except (TypeError, UnicodeEncodeError) as error:
        at = next((at for at, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
        if at is None:
            raise
        raise InvalidValueError(
            f"a text holds the lone surrogate U+{ord(text[at]):04X} at character {at}, which is no Unicode and has no"
            f" tokens: {text[max(0, at - 20) : at + 20]!r}"
        ) from error


# ---- thoughts: the marks between which a model writes them


OPEN: Final = "<think>"
CLOSE: Final = "</think>"
"""The marks that readers see, whatever the model's own are."""

THOUGHT_FIELDS: Final = ("reasoning_content", "thinking", "reasoning")
"""Fields of a message in which templates look for a thought."""

_THOUGHT: Final = "Qzthoughtqz"


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a model's thoughts."""

    open: str  # what opens a thought
    close: str  # what closes it
    # All that is written between a thought's last word and the answer's first: `close` and what is around it.
    closing: str
    # Fields of a message in which the template looks for a thought; () where it only knows texts.
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
    """Finds the marks between which a template writes thoughts; None where it uses other marks than the known ones.

    A dialogue is rendered whose answer has a thought; what stands around it is looked up among the marks that are known.
    Where the template shows no thoughts, its source says which marks it knows.
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
