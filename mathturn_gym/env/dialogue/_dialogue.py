"""`Dialogue`: prompts, answers and feedback of one chat tokenizer, in ids.

A dialogue grows by ids alone:

    context[k+1] = context[k] ++ completion[k] ++ feedback_ids(k)

The feedback ids are a *template difference*: the dialogue is rendered with the new user turn, and what the template
writes after the last assistant message is taken. That contains the end-of-turn marker, so a completion that was cut
off, is empty or was stopped by another id is closed by the feedback; a completion that closed itself is not closed
twice. Nothing that was sampled is ever decoded and encoded again.

With `history` other than "keep", the context is re-rendered between turns instead, without earlier thoughts.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np

from mathturn_gym.base.user_functions import check_takes, name_of
from mathturn_gym.env.dialogue._bounded import bounded
from mathturn_gym.env.dialogue._template import (
    CLOSE,
    OPEN,
    ChatTemplate,
    Message,
    Thinking,
    find_thinking,
    is_open,
    message,
    split,
)
from mathturn_gym.env.dialogue._tokenizers import LOCKS, Tokenizer, load_tokenizer
from mathturn_gym.errors import ChatTemplateError, InvalidValueError, raise_unknown_name
from mathturn_gym.types import Ids, Problem

History: TypeAlias = Literal["keep", "strip-thinking", "template"]
"""What later turns see of earlier ones: everything, everything but thoughts, or what the chat template makes of it."""


@runtime_checkable
class TurnDialogue(Protocol):
    """The interface of a dialogue, which turns text into ids and back for the environment.

    A dialogue that has an attribute `history` other than "keep" must also have `history_ids` (see `Dialogue`): then
    an observation may be re-rendered between turns.

    Attributes:
        vocab_size: Ids are in [0, vocab_size).
        tokenizer: What it encodes with.
        system_prompt: Shown with the rendered dialogue, or None.
        end_of_turn: Ids that close a completion, () where none do; policies that write texts end them with these.
    """

    vocab_size: int
    tokenizer: Tokenizer
    system_prompt: str | None
    end_of_turn: tuple[int, ...]

    def problem_ids(self, problem: Problem) -> Ids:
        """The first observation for a problem, int64 (L0,)."""
        ...

    def response(self, context: Ids, completion_ids: Ids) -> str:
        """The text that is verified for a completion, int64 (A,), after the context, int64 (L,)."""
        ...

    def feedback_ids(self, text: str, turn: int, completion_ids: Ids) -> Ids:
        """The ids that follow the completion of turn `turn` where the user says `text`, int64 (F,).

        A dialogue that also takes `response` is given the completion's text, so that it need not decode it again.
        """
        ...

    def decode(self, ids: Ids) -> str:
        """The text of any ids, for people."""
        ...


DialogueLike: TypeAlias = "TurnDialogue | Callable[[Tokenizer], TurnDialogue]"
"""A dialogue, or a function that makes one for a tokenizer (such as the class `Dialogue`)."""


def make_dialogue(dialogue: DialogueLike | None, tokenizer: str | Path | Tokenizer, **options: Any) -> TurnDialogue:
    """The dialogue behind what a user gives.

    Args:
        dialogue: A dialogue, a function that makes one of a tokenizer, or None for `Dialogue`.
        tokenizer: "builtin", a folder or hub name, or a tokenizer.
        **options: `system_prompt`, `chat_template_kwargs` and `history`; those that are not None are given to the function
            as keywords.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if dialogue is None:
        return Dialogue(tokenizer, **given)
    if isinstance(dialogue, TurnDialogue) and not isinstance(dialogue, type):
        other = [name for name, value in given.items() if value != getattr(dialogue, name, None)]
        if tokenizer not in ("builtin", dialogue.tokenizer) or other:
            raise InvalidValueError(
                "tokenizer, system_prompt, chat_template_kwargs and history cannot be given beside a dialogue that exists"
                f" already: make the dialogue with them, or give a function of a tokenizer as dialogue, got {dialogue!r}"
            )
        return dialogue
    if not callable(dialogue):
        raise InvalidValueError(
            f"dialogue must be {_DIALOGUE}, or a function that makes one of a tokenizer, got {dialogue!r}"
        )
    check_takes("dialogue", dialogue, "tokenizer", keywords=tuple(given))
    made = dialogue(load_tokenizer(tokenizer), **given)
    if not isinstance(made, TurnDialogue):
        raise InvalidValueError(f"dialogue {name_of(dialogue)} must return {_DIALOGUE}, got {made!r}")
    return made


def completion_ids(dialogue: TurnDialogue, text: str, max_tokens: int | None = None) -> Ids:
    r"""A completion for those who have only its text: its ids in the tokenizer's own spelling, and the end of turn.

    Text that looks like a special token is encoded as plain text: it can neither end nor open a turn.

    Args:
        dialogue: Has the tokenizer and the end of turn.
        text: What was said.
        max_tokens: Cuts it off there, as a budget would; None leaves it whole.

    Returns:
        int64 (A,).

    >>> from mathturn_gym.env.dialogue import Dialogue
    >>> dialogue = Dialogue("builtin")
    >>> dialogue.decode(completion_ids(dialogue, "It is \\boxed{4}"))
    'It is \\boxed{4}<|im_end|>'
    """
    with LOCKS.encoding:
        plain = dialogue.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return np.array([*plain, *dialogue.end_of_turn][:max_tokens], np.int64)


_DIALOGUE: Final = (
    "an object with problem_ids(problem), response(context, completion_ids), feedback_ids(text, turn, completion_ids),"
    " decode(ids),"
    " vocab_size, tokenizer, system_prompt and end_of_turn"
)


# ---- `Dialogue`


_ASSISTANT: Final = "Qzanswerqz"
_USER: Final = "Qzquestionqz"
_SYSTEM: Final = "Qzsystemqz"
_LAST: Final = "Qzlastqz"
_CACHE_BYTES: Final = 4 * 2**20
_PROMPT: Final = -1
_PROMPT_WITHOUT_THOUGHT: Final = -2
_PROBED_TURNS: Final = (0, 1, 2, 3, 8)
_NO_IDS: Final = np.zeros(0, np.int64)
# Processor time that a template may take for the few messages that its kind is found out from; most take
# milliseconds.
_PROBE_SECONDS: Final = 20.0


class Dialogue:
    r"""Turns texts into prompt and feedback ids, and completions into text, for one chat tokenizer.

    Thoughts: `response` puts thoughts between `<think>` and `</think>`, whatever the model's own marks are. The marks are
    found where the template writes thoughts, or where its generation prompt opens one. If the budget cuts a thought off, the
    feedback closes it as the template would.

    History: with `"keep"`, later turns see every id of earlier ones. The other two re-render the context between turns
    (`history_ids`), as most templates of thinking models do. `"strip-thinking"` removes earlier thoughts and keeps all other
    ids as they were sampled. `"template"` renders the whole dialogue with the chat template.

    Args:
        tokenizer: `"builtin"`, a folder or hub name, or a Hugging Face tokenizer with a chat template.
        system_prompt: Text of a system message before the problem, or None (then the template's own default, if it
            has one, is written once, in the prompt).
        chat_template_kwargs: Variables of the chat template by name, such as `{"enable_thinking": False}`.
        history: What later turns see of earlier ones, see above.
        thinking: The marks around a thought, `("<think>", "</think>")`; None finds those of the template.

    Attributes:
        vocab_size: Ids are in [0, vocab_size).
        end_of_turn: Ids with which the model closes its turn, () where the template closes it with plain text or not at all.
        thinking: The marks around thoughts; None where the template uses marks that are not known here.
        opens_thought: The generation prompt opens a thought.

    Raises:
        ChatTemplateError: there is no chat template, or it cannot be split at a turn, or thoughts are to be stripped and
            their marks are not known; the message says what to do.
        InvalidValueError: an unknown history, or a template variable that would do nothing.

    >>> dialogue = Dialogue("builtin")
    >>> dialogue.tokenizer.decode(dialogue.prompt_ids("1+1?"))
    '<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n'
    >>> dialogue.tokenizer.decode(dialogue.feedback_ids("No.", 0, dialogue.encode("3")))
    '<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n'
    """

    def __init__(
        self,
        tokenizer: str | Path | Tokenizer = "builtin",
        system_prompt: str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        history: History = "keep",
        thinking: tuple[str, str] | None = None,
    ) -> None:
        if history not in get_args(History):
            raise_unknown_name("history", history, get_args(History))
        self.tokenizer = load_tokenizer(tokenizer)
        self.system_prompt, self.history = system_prompt, history
        self.chat_template_kwargs = chat_template_kwargs
        self._template = ChatTemplate(self.tokenizer, chat_template_kwargs or {})
        self._head: list[Message] = [] if system_prompt is None else [message("system", system_prompt)]
        self._cache = IdCache(_CACHE_BYTES)
        try:
            bounded(self._probe_template, _PROBE_SECONDS)
        except TimeoutError as error:
            raise ChatTemplateError(
                f"the chat template of {self._template.name} did not write a few short messages within"
                f" {_PROBE_SECONDS:g} s of processor time"
            ) from error
        self.vocab_size: int = max(len(self.tokenizer), *(i + 1 for i in self.tokenizer.get_vocab().values()))
        self._template.find_markers(self._template.render(self._history(1, _USER)), (_USER, _ASSISTANT, _SYSTEM))
        self._closing, self.end_of_turn = self._find_closing()
        # What ends the readable part of a completion: ids after one of these are no part of the answer.
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        ends |= self._template.special_ids.intersection(self.end_of_turn)
        self._ends = sorted(i for i in ends if i is not None)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        self._decode = self._decode_slow if backend is None else backend.decode
        self.thinking = self._find_thinking(thinking)
        self._own_marks = self.thinking is not None and (self.thinking.open, self.thinking.close) != (OPEN, CLOSE)
        self._opening = self._find_opening()
        self.opens_thought = self.thinking is not None and is_open(self.thinking.canonical(self._opening))
        if history == "strip-thinking" and self.thinking is None:
            raise ChatTemplateError(
                f"the chat template of {self._template.name} shows thoughts between marks that are not known here, so"
                ' history="strip-thinking" cannot take them out: give dialogue=functools.partial(Dialogue,'
                ' thinking=(OPEN, CLOSE)), or history="template"'
            )

    # ---- text to ids

    def prompt_ids(self, text: str) -> Ids:
        """The first observation for a problem's text: BOS, system message and generation prompt as the template has it.

        Text that looks like a special token is encoded as plain text: a problem cannot open a turn.

        Returns:
            int64 (L0,).
        """
        return self._prompt(text, thought=True).copy()

    def problem_ids(self, problem: Problem) -> Ids:
        """The first observation for a problem, int64 (L0,)."""
        return self.prompt_ids(problem.prompt)

    def encode(self, text: str) -> Ids:
        r"""Ids of what an assistant says, int64 (A,); `completion_ids` also closes its turn.

        No BOS comes before it, and what looks like a special token is plain text.

        >>> dialogue = Dialogue("builtin")
        >>> dialogue.decode(dialogue.encode(r"\boxed{4}"))
        '\\boxed{4}'
        """
        return self._template.tokenize_plain(text)

    def feedback_ids(self, text: str, turn: int, completion_ids: Ids, response: str | None = None) -> Ids:
        """The ids that follow `completion_ids`: its end of turn where it has none, the user's turn, the next prompt.

        A completion that was cut off inside a thought gets the thought's end first.

        Args:
            text: What the user says; markers in it are encoded as plain text.
            turn: Index of the turn that is answered, from 0.
            completion_ids: int64 (A,).
            response: The completion's text, as `response` gives it; None decodes it where it is needed.

        Returns:
            int64 (F,).
        """
        closed = self._closed_by(completion_ids)
        after = self._feedback_with_close(text, turn, thought=True)[closed:].copy()
        if closed or self.thinking is None:
            return after
        said = self.response(_NO_IDS, completion_ids) if response is None else response
        if OPEN not in said or not is_open(said):
            return after
        return np.concatenate([self._template.tokenize(self.thinking.closing), after])

    def is_closed(self, completion_ids: Ids) -> bool:
        """True where the completion ends with an id that closes its turn."""
        return self._closed_by(completion_ids) == len(self._closing) > 0

    def history_ids(self, problem: Problem, exchanges: Sequence[tuple[Ids, str]]) -> Ids:
        """The observation after some turns, earlier thoughts dealt with as `history` says.

        Args:
            problem: The problem.
            exchanges: For each turn its completion, int64 (A,), and what the user said to it.

        Returns:
            int64 (L,). With `"keep"` it is what `problem_ids` and `feedback_ids` give, end to end.
        """
        if self.history == "template":
            return self._rendered_history(problem, exchanges)
        if self.history == "strip-thinking":
            return self._stripped_history(problem, exchanges)
        parts = [self.problem_ids(problem)]
        for turn, (ids, text) in enumerate(exchanges):
            parts += [ids, self.feedback_ids(text, turn, ids)]
        return np.concatenate(parts)

    def _prompt(self, text: str, *, thought: bool) -> Ids:
        """The ids of a prompt; without `thought`, what a generation prompt says of a thought is left out. Read-only."""
        thought = thought or not self._opening
        key = (_PROMPT if thought else _PROMPT_WITHOUT_THOUGHT, text)
        ids = self._cache.get(key)
        if ids is None:
            cut = 0 if thought else len(self._opening)
            rendered = self._template.render([*self._head, message("user", text)])
            rendered = rendered[: len(rendered) - cut]
            if self._template.has_marker(text):
                before, after = self._template.render([*self._head, message("user", _USER)]).split(_USER)
                ids = self._template.tokenize_around(rendered, before, text, after[: len(after) - cut])
            else:
                ids = self._template.tokenize(rendered)
            self._cache.put(key, ids)
        return ids

    def _after(self, completion_ids: Ids, text: str, turn: int, *, thought: bool = True) -> Ids:
        """Returns the ids after a completion whose thoughts are closed; `thought` as in `_prompt`."""
        return self._feedback_with_close(text, turn, thought=thought)[self._closed_by(completion_ids) :].copy()

    def _closed_by(self, completion_ids: Ids) -> int:
        """Counts the ids at the completion's end that belong to the end of a turn."""
        closing, size = self._closing, completion_ids.shape[0]
        if not closing or not size:
            return 0
        if completion_ids[-1] in (closing[-1], self.end_of_turn[-1]):
            return len(closing)
        fits = (k for k in range(min(len(closing) - 1, size), 0, -1) if tuple(completion_ids[-k:]) == closing[:k])
        return next(fits, 0)

    def _feedback_with_close(self, text: str, turn: int, *, thought: bool) -> Ids:
        """The ids after an unclosed completion; kept, because the same few texts come again and again. Read-only."""
        turn = min(turn, self._steady_from)
        thought = thought or not self._opening
        key = (2 * turn + thought, text)
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        cut = 0 if thought else len(self._opening)
        known = self._template.render(self._history(turn, _USER))
        known = known[: len(known) - cut]
        answer_end = known.rindex(_ASSISTANT) + len(_ASSISTANT)
        before, after = known[:answer_end], known[answer_end:].rpartition(_USER)
        rendered = self._template.render(self._history(turn, text))
        rendered = rendered[: len(rendered) - cut]
        if not rendered.startswith(before):
            raise ChatTemplateError(
                f"the chat template of {self._template.name} rewrites earlier turns when the user says {text[:80]!r}:"
                " feedback cannot be appended; use a template that only appends"
            )
        ids = self._template.tokenize_around(rendered, before + after[0], text, after[2])
        head = self._template.tokenize(before)
        if ids.shape[0] > head.shape[0] and np.array_equal(ids[: head.shape[0]], head):
            ids = ids[head.shape[0] :]
        else:  # an id straddles the boundary: what is appended must be ids of its own
            ids = self._template.tokenize_around(rendered[answer_end:], after[0], text, after[2])
        self._cache.put(key, ids)
        return ids

    def _history(self, turn: int, text: str) -> list[Message]:
        """A dialogue in which turn `turn` is answered with `text` (what was said before does not matter to it)."""
        rounds = [message("assistant", _ASSISTANT), message("user", _USER)] * (turn + 1)
        return [*self._feedback_head, message("user", _USER), *rounds[:-1], message("user", text)]

    # ---- re-rendered history

    def _stripped_history(self, problem: Problem, exchanges: Sequence[tuple[Ids, str]]) -> Ids:
        """The dialogue without earlier thoughts, all other ids as they were."""
        before = self.problem_ids(problem)
        bare = self._prompt(problem.prompt, thought=False) if self._opening else before
        parts = []
        for turn, (ids, text) in enumerate(exchanges):
            answer = self._without_thought(ids)
            # Where there was no thought at all, the generation prompt and the answer stay: the context only grows.
            parts += [before, ids] if answer is None else [bare, answer]
            said = ids if answer is None else answer
            before, bare = self._after(said, text, turn), self._after(said, text, turn, thought=False)
        return np.concatenate([*parts, before])

    def _without_thought(self, ids: Ids) -> Ids | None:
        """A completion without its thoughts, and without the spaces after them; None where there was none.

        Everything up to the end of its last thought goes, as chat templates do it, and so does a thought that was cut off.
        """
        assert self.thinking is not None
        text = self.decode(ids)
        end = text.rfind(self.thinking.close)
        if end >= 0:
            ids = self._last_ids(ids, text[end + len(self.thinking.close) :].lstrip())
            text = self.decode(ids)
        elif self.opens_thought:
            return _NO_IDS
        elif self.thinking.open not in text:
            return ids if self._opening else None
        before, mark, _ = text.partition(self.thinking.open)
        return self._first_ids(ids, before) if mark else ids

    def _first_ids(self, ids: Ids, text: str) -> Ids:
        """The longest beginning of the ids whose text is a beginning of `text`."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if text.startswith(self.decode(ids[:middle])) else (low, middle - 1)
        return ids[:low]

    def _last_ids(self, ids: Ids, text: str) -> Ids:
        """The last ids, whose text is `text`, as they were sampled.

        Where an id straddles the beginning of `text`, its part of the text is encoded again. Such ids are masked: they are
        context in a re-rendered history.
        """
        low, high = 0, len(ids)
        while low < high:  # the earliest place from which on the ids have no more than the text
            middle = (low + high) // 2
            low, high = (low, middle) if text.endswith(self.decode(ids[middle:])) else (middle + 1, high)
        tail = self.decode(ids[low:])
        return np.concatenate([self._template.tokenize_plain(text[: len(text) - len(tail)]), ids[low:]])

    def _rendered_history(self, problem: Problem, exchanges: Sequence[tuple[Ids, str]]) -> Ids:
        """The whole dialogue as the chat template renders it."""
        messages = [*self._head, message("user", problem.prompt)]
        for ids, text in exchanges:
            messages += [self._answer_message(ids), message("user", text)]
        try:
            return self._tokenize_messages(messages)
        except ChatTemplateError:
            # Some templates refuse certain words in an answer, and a model may write anything: hide its texts from them.
            plain = [message(one["role"], one["content"]) for one in messages]
            return self._tokenize_messages(plain, hide_answers=True)

    def _answer_message(self, ids: Ids) -> Message:
        """A completion as a message: its thought in the field where the template looks for one, or within its text."""
        said = self.response(_NO_IDS, ids)
        if self.thinking is None or (OPEN not in said and CLOSE not in said):
            return message("assistant", said)
        thought, answer = split(said)
        if not self.thinking.fields:
            return message("assistant", f"{self.thinking.open}{thought}{self.thinking.close}{answer}")
        found = message("assistant", answer.strip())
        return {**found, self.thinking.fields[0]: thought.strip()} if thought.strip() else found

    def _tokenize_messages(self, messages: list[Message], *, hide_answers: bool = False) -> Ids:
        """Ids of a rendered dialogue; contents with markers in them are encoded apart, as plain text."""
        hidden: list[str] = []
        shown = []
        for one in messages:
            content = one["content"]
            if (hide_answers and one["role"] == "assistant") or self._must_hide(one):
                one = message(one["role"], f"{_LAST}{len(hidden)}qz")
                hidden.append(content)
            shown.append(one)
        pieces = re.split(f"{_LAST}(\\d+)qz", self._template.render(shown))
        return np.concatenate(
            [
                self._template.tokenize_plain(hidden[int(piece)]) if i % 2 else self._template.tokenize(piece)
                for i, piece in enumerate(pieces)
            ]
        )

    def _must_hide(self, one: Message) -> bool:
        """True where a message's text holds a marker; the marks around an answer's thought are none."""
        texts = [text for name, text in one.items() if name != "role"]
        if one["role"] == "assistant" and self.thinking is not None:
            texts = [text.replace(self.thinking.open, "").replace(self.thinking.close, "") for text in texts]
        return any(_LAST in text or self._template.has_marker(text) for text in texts)

    # ---- ids to text

    def text(self, completion_ids: Ids) -> str:
        """The text of a completion up to its first end-of-turn, EOS or pad id.

        What a model writes after closing its own turn (a user turn of its own making, a verdict) is no answer.
        Special tokens before that stay visible, so that they cannot glue pieces together.
        """
        if completion_ids.shape[0]:
            stop = np.zeros(completion_ids.shape, np.bool_)
            for end in self._ends:  # two or three comparisons: a quarter of the time of np.isin
                stop |= completion_ids == end
            first = int(stop.argmax())
            if stop[first]:
                completion_ids = completion_ids[:first]
        return str(self._decode(completion_ids.tolist(), skip_special_tokens=False))

    def response(self, context: Ids, completion_ids: Ids) -> str:
        """The text that is verified for a completion, thoughts in it between `<think>` and `</think>`.

        Where the generation prompt opens a thought, the text begins with `<think>`: an answer inside it is none.

        Args:
            context: int64 (L,); it makes no difference here.
            completion_ids: int64 (A,).
        """
        text = self.text(completion_ids)
        if self.thinking is None:
            return text
        if self._own_marks:
            text = self.thinking.canonical(text)
        return OPEN + text if self.opens_thought else text

    def decode(self, ids: Ids) -> str:
        """The text of any ids, special tokens included."""
        return str(self._decode(ids.tolist(), skip_special_tokens=False))

    def _decode_slow(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    # ---- what the template does

    def _choose_content_form(self) -> None:
        """Contents are texts, or lists of parts where the template takes nothing else."""
        try:
            self._check_split()
        except ChatTemplateError as error:
            self._template.in_parts = True
            try:
                self._check_split()
            except ChatTemplateError:
                raise error from None

    def _check_split(self) -> None:
        """Finds where an assistant turn ends, and whether the system message is repeated after it."""
        self._feedback_head, render, name = self._head, self._template.render, self._template.name
        if self._head:
            probe = [message("system", _SYSTEM), *self._history(0, _USER)[1:]]
            rendered = render(probe)
            if _SYSTEM not in rendered:
                raise ChatTemplateError(
                    f"the chat template of {name} leaves system messages out: give the system prompt"
                    " as part of the problem's text, or set `tokenizer.chat_template` to one that writes it"
                )
            if rendered.rfind(_SYSTEM) > rendered.find(_ASSISTANT) >= 0:
                # Some templates put the system message into the *last* user turn: once, in the prompt, is enough.
                self._feedback_head = []
        for turn in (0, 1):
            rendered = render(self._history(turn, _LAST))
            shown = re.findall(f"{_USER}|{_ASSISTANT}|{_LAST}", rendered)
            if shown != [_USER, _ASSISTANT] * (turn + 1) + [_LAST]:
                raise ChatTemplateError(
                    f"the chat template of {name} cannot be split at a turn: of a dialogue of"
                    f" {turn + 2} user and {turn + 1} assistant messages it shows {len(shown)}, or not in their order;"
                    " set `tokenizer.chat_template` to one that writes every message once, in order"
                )
        if render([*self._head, message("user", _USER)]).count(_USER) != 1:
            raise ChatTemplateError(f"the chat template of {name} writes a user message twice")

    def _find_steady_turn(self) -> int:
        """The first turn from which on the template writes the same after every answer; later ones are rendered as it.

        A dialogue of a thousand turns is then as cheap to answer as one of two. A template that counts its messages has no
        such turn, and is rendered in full. Templates see roles, texts, and positions (first, last, even, odd): a few turns
        with the same texts show what they do.
        """
        written = []
        for turn in _PROBED_TURNS:
            rendered = self._template.render(self._history(turn, _USER))
            written.append(rendered[rendered.rindex(_ASSISTANT) :])
        if len(set(written[1:])) > 1:
            return sys.maxsize
        return 0 if written[0] == written[1] else 1

    def _probe_template(self) -> None:
        """Renders what the rest of the dialogue is found out from: where this ends, the template ends."""
        self._choose_content_form()
        self._steady_from = self._find_steady_turn()

    def _find_closing(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that close an assistant turn in a dialogue that goes on, and those with which a model closes it.

        Mostly they are the same: what the template writes after an answer whether or not anything follows, up to its last
        special id. Where that is nothing, there are two more kinds. A model may close with an id that the template
        replaces once the dialogue goes on (gpt-oss). Or it writes the first id of the user's turn (GLM).
        """
        alone = self._template.render(self._history(0, _USER)[:-1], prompt=False)
        ends = self._template.tokenize(alone[alone.rindex(_ASSISTANT) + len(_ASSISTANT) :]).tolist()
        goes_on = self._feedback_with_close(_USER, 0, thought=True).tolist()
        special = self._template.special_ids
        same = next((k for k, pair in enumerate(zip(ends, goes_on, strict=False)) if pair[0] != pair[1]), None)
        common = ends[: min(len(ends), len(goes_on)) if same is None else same]
        last = max((k for k, i in enumerate(common) if i in special), default=-1)
        if last >= 0:
            closing = tuple(common[: last + 1])
            return closing, closing
        if not goes_on or goes_on[0] not in special or (ends and ends[0] not in special):
            return (), ()
        return (goes_on[0],), (ends[0] if ends else goes_on[0],)

    def _find_thinking(self, given: tuple[str, str] | None) -> Thinking | None:
        if given is None:
            return find_thinking(self._template, self._head, _USER, _ASSISTANT)
        if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(m, str) and m.strip() for m in given)):
            raise InvalidValueError(f'thinking must be two marks, ("<think>", "</think>"), or None, got {given!r}')
        return Thinking(given[0], given[1], given[1])

    def _find_opening(self) -> str:
        """The generation prompt from a thought's opening mark to its end, "" if it opens no thought."""
        if self.thinking is None:
            return ""
        found = set()
        for messages in ([*self._head, message("user", _USER)], self._history(0, _USER), self._history(1, _USER)):
            rendered = self._template.render(messages)
            prompt = rendered[rendered.rindex(_USER) + len(_USER) :]
            at = prompt.find(self.thinking.open)
            found.add(prompt[at:] if at >= 0 else "")
        if len(found) > 1:
            raise ChatTemplateError(
                f"the chat template of {self._template.name} opens a thought in some of its generation prompts and not in"
                f" others ({sorted(found)}): set `tokenizer.chat_template` to one that always does the same"
            )
        return found.pop()


class IdCache:
    """A cache of ids by number and text: bounded by bytes, least recently used out first, safe in threads.

    Args:
        limit: Bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.bytes = limit, 0
        self._kept: OrderedDict[tuple[int, str], Ids] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins empty: a cache is no part of what a dialogue is."""
        return IdCache, (self._limit,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: tuple[int, str]) -> Ids | None:
        """The ids, read-only, or None."""
        with LOCKS.caches:
            ids = self._kept.get(key)
            if ids is not None:
                self._kept.move_to_end(key)
            return ids

    def put(self, key: tuple[int, str], ids: Ids) -> None:
        """Keeps ids, unless they alone would drive out most of what is kept."""
        ids.setflags(write=False)
        size = _size(key, ids)
        if size > self._limit // 8:
            return
        with LOCKS.caches:
            if key in self._kept:
                return
            self._kept[key] = ids
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= _size(*self._kept.popitem(last=False))


def _size(key: tuple[int, str], ids: Ids) -> int:
    """Bytes of an entry, with about what Python needs around it."""
    return int(ids.nbytes) + sys.getsizeof(key[1]) + 400
