"""The only place where text and ids meet.

A dialogue with a chat tokenizer grows by ids alone:

    context[k+1] = context[k] ++ completion[k] ++ feedback_ids(k)

The feedback ids are a *template difference*: the dialogue is rendered with the new user turn, and what the template
writes after the last assistant message is taken. That contains the end-of-turn marker, so a completion that was cut
off, is empty or was stopped by another id is closed by the feedback; a completion that closed itself is not closed
twice. Nothing that was sampled is ever decoded and encoded again.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np

from mathturn_gym._calls import check_takes, name_of
from mathturn_gym._named_models import NAMED_MODELS, folder_of
from mathturn_gym._transformers import pretrained_kwargs
from mathturn_gym.errors import ChatTemplateError, InvalidValueError
from mathturn_gym.types import Ids, Problem

__all__ = [
    "CHATML_TEMPLATE",
    "Dialogue",
    "DialogueLike",
    "TurnDialogue",
    "completion_ids",
    "load_tokenizer",
    "make_dialogue",
]

Tokenizer: TypeAlias = Any
"""A Hugging Face tokenizer (`transformers.PreTrainedTokenizerBase`), which has no useful static type."""

CHATML_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A ChatML chat template, for tokenizers that have the two markers but no template."""

_ASSISTANT: Final = "Qzanswerqz"
_USER: Final = "Qzquestionqz"
_SYSTEM: Final = "Qzsystemqz"
_LAST: Final = "Qzlastqz"
_CACHE_BYTES: Final = 4 * 2**20
_PROMPT: Final = -1
_PROBED_TURNS: Final = (0, 1, 2, 3, 8)


class _Locks:
    """Locks that all dialogues of a process share, so that a forked process can have new ones.

    Attributes:
        encoding: A fast tokenizer is shared by all who load it by name, and encodes plain text by setting a flag of its own
            for the call: without the lock, another thread's call would encode its markers as plain text too.
        caches: Held for a look-up.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked process: threads of the parent may have held the old ones."""
        self.encoding, self.caches = threading.Lock(), threading.Lock()


_LOCKS: Final = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.renew)


def load_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer:
    """The tokenizer behind a name: `"builtin"`, a named model, a folder, or a hub name; an object is returned as it is.

    Raises:
        InvalidValueError: nothing loads under that name.
        CheckpointError: it is the name of a model that was not fetched yet.
    """
    if not isinstance(tokenizer, (str, Path)):
        return tokenizer
    if str(tokenizer) == "builtin":
        return _load_by_name(str(files("mathturn_gym") / "assets" / "tiny"))
    if tokenizer in NAMED_MODELS:
        return _load_by_name(str(folder_of(str(tokenizer))))
    return _load_by_name(str(tokenizer))


@functools.lru_cache(maxsize=16)
def _load_by_name(name: str) -> Tokenizer:
    """Loads once per process: vector environments ask for the same tokenizer n times."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, **pretrained_kwargs(name))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidValueError(
            f"tokenizer {name!r} does not load ({type(error).__name__}: {error}); allowed: 'builtin', a folder with"
            " tokenizer.json and tokenizer_config.json, a hub name, or a tokenizer object"
        ) from error


@runtime_checkable
class TurnDialogue(Protocol):
    """What the environment needs of a dialogue: the only place where text and ids meet.

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
        """The ids that follow the completion of turn `turn` where the user says `text`, int64 (F,)."""
        ...

    def decode(self, ids: Ids) -> str:
        """The text of any ids, for people."""
        ...


DialogueLike: TypeAlias = "TurnDialogue | Callable[[Tokenizer], TurnDialogue]"
"""A dialogue, or a function that makes one for a tokenizer (such as the class `Dialogue`)."""


def make_dialogue(
    dialogue: DialogueLike | None, tokenizer: str | Path | Tokenizer, system_prompt: str | None
) -> TurnDialogue:
    """The dialogue behind what a user gives.

    Args:
        dialogue: A dialogue, a function that makes one of a tokenizer, or None for `Dialogue`.
        tokenizer: "builtin", a folder or hub name, or a tokenizer.
        system_prompt: Given to the function as a keyword, where there is one.

    Raises:
        InvalidValueError: it is no dialogue and makes none, or a dialogue that exists is given a tokenizer or system prompt
            which it does not have.
    """
    if dialogue is None:
        return Dialogue(tokenizer, system_prompt)
    if isinstance(dialogue, TurnDialogue) and not isinstance(dialogue, type):
        if tokenizer not in ("builtin", dialogue.tokenizer) or system_prompt not in (None, dialogue.system_prompt):
            raise InvalidValueError(
                "tokenizer and system_prompt cannot be given beside a dialogue that exists already: make the dialogue with"
                f" them, or give a function of a tokenizer as dialogue, got {dialogue!r}"
            )
        return dialogue
    if not callable(dialogue):
        raise InvalidValueError(
            f"dialogue must be {_DIALOGUE}, or a function that makes one of a tokenizer, got {dialogue!r}"
        )
    options = {} if system_prompt is None else {"system_prompt": system_prompt}
    check_takes("dialogue", dialogue, "tokenizer", keywords=tuple(options))
    made = dialogue(load_tokenizer(tokenizer), **options)
    if not isinstance(made, TurnDialogue):
        raise InvalidValueError(f"dialogue {name_of(dialogue)} must return {_DIALOGUE}, got {made!r}")
    return made


_DIALOGUE: Final = (
    "an object with problem_ids(problem), response(context, completion_ids), feedback_ids(text, turn, completion_ids),"
    " decode(ids),"
    " vocab_size, tokenizer, system_prompt and end_of_turn"
)


def completion_ids(dialogue: TurnDialogue, text: str, max_tokens: int | None = None) -> Ids:
    r"""A completion for those who have only its text: its ids in the tokenizer's own spelling, and the end of turn.

    Text that looks like a special token is encoded as plain text: it can neither end nor open a turn.

    Args:
        dialogue: Has the tokenizer and the end of turn.
        text: What was said.
        max_tokens: Cuts it off there, as a budget would; None leaves it whole.

    Returns:
        int64 (A,).

    >>> dialogue = Dialogue("builtin")
    >>> dialogue.decode(completion_ids(dialogue, "It is \\boxed{4}"))
    'It is \\boxed{4}<|im_end|>'
    """
    with _LOCKS.encoding:
        plain = dialogue.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return np.array([*plain, *dialogue.end_of_turn][:max_tokens], np.int64)


class _IdCache:
    """Ids of texts that were encoded before, the least recently used leaving first; bounded by bytes, safe in threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self.bytes = limit, 0
        self._kept: OrderedDict[tuple[int, str], Ids] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy begins empty: a cache is no part of what a dialogue is."""
        return _IdCache, (self._limit,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: tuple[int, str]) -> Ids | None:
        """The ids, read-only, or None."""
        with _LOCKS.caches:
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
        with _LOCKS.caches:
            if key in self._kept:
                return
            self._kept[key] = ids
            self.bytes += size
            while self.bytes > self._limit:
                self.bytes -= _size(*self._kept.popitem(last=False))


def _size(key: tuple[int, str], ids: Ids) -> int:
    """Bytes of an entry, with about what Python needs around it."""
    return int(ids.nbytes) + sys.getsizeof(key[1]) + 400


class Dialogue:
    r"""Turns texts into prompt and feedback ids, and completions into text, for one chat tokenizer.

    Args:
        tokenizer: `"builtin"`, a folder or hub name, or a Hugging Face tokenizer with a chat template.
        system_prompt: Text of a system message before the problem, or None (then the template's own default, if it
            has one, is written once, in the prompt).

    Attributes:
        vocab_size: Ids are in [0, vocab_size).
        end_of_turn: Ids that close an assistant turn, () where the template closes it with plain text or not at all.

    Raises:
        ChatTemplateError: there is no chat template, or it cannot be split at a turn; the message says what to do.

    >>> dialogue = Dialogue("builtin")
    >>> dialogue.tokenizer.decode(dialogue.prompt_ids("1+1?"))
    '<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n'
    >>> dialogue.tokenizer.decode(dialogue.feedback_ids("No.", 0, np.array([50])))
    '<|im_end|>\n<|im_start|>user\nNo.<|im_end|>\n<|im_start|>assistant\n'
    """

    def __init__(self, tokenizer: str | Path | Tokenizer = "builtin", system_prompt: str | None = None) -> None:
        self.tokenizer = load_tokenizer(tokenizer)
        self.system_prompt = system_prompt
        if not getattr(self.tokenizer, "chat_template", None):
            raise ChatTemplateError(
                f"tokenizer {_name(self.tokenizer)} has no chat template: set `tokenizer.chat_template` to the one its"
                " model was trained with (mathturn_gym.dialogue.CHATML_TEMPLATE is one for <|im_start|>/<|im_end|>"
                " models), or use a chat model's tokenizer"
            )
        self._head: list[dict[str, str]] = [] if system_prompt is None else [_message("system", system_prompt)]
        self._cache = _IdCache(_CACHE_BYTES)
        self._check_split()
        self._steady_from = self._find_steady_turn()
        self.vocab_size: int = max(len(self.tokenizer), *(i + 1 for i in self.tokenizer.get_vocab().values()))
        self._markers = self._find_markers()
        self.end_of_turn: tuple[int, ...] = self._find_end_of_turn()
        # What ends the readable part of a completion: ids after one of these are no part of the answer.
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id, *self.end_of_turn[-1:]}
        self._ends = sorted(i for i in ends if i is not None)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        self._decode = self._decode_slow if backend is None else backend.decode

    # ---- text to ids

    def prompt_ids(self, text: str) -> Ids:
        """The first observation for a problem's text: BOS, system message and generation prompt as the template has it.

        Text that looks like a special token is encoded as plain text: a problem cannot open a turn.

        Returns:
            int64 (L0,).
        """
        ids = self._cache.get((_PROMPT, text))
        if ids is None:
            before, after = self._render([*self._head, _message("user", _USER)]).split(_USER)
            ids = self._encode(self._render([*self._head, _message("user", text)]), before, text, after)
            self._cache.put((_PROMPT, text), ids)
        return ids.copy()

    def problem_ids(self, problem: Problem) -> Ids:
        """The first observation for a problem, int64 (L0,)."""
        return self.prompt_ids(problem.prompt)

    def feedback_ids(self, text: str, turn: int, completion_ids: Ids) -> Ids:
        """The ids that follow `completion_ids`: its end of turn where it has none, the user's turn, the next prompt.

        Args:
            text: What the user says; markers in it are encoded as plain text.
            turn: Index of the turn that is answered, from 0.
            completion_ids: int64 (A,); only its last ids are looked at.

        Returns:
            int64 (F,).
        """
        ids = self._feedback_with_close(text, turn)
        return ids[len(self.end_of_turn) :].copy() if self.is_closed(completion_ids) else ids.copy()

    def is_closed(self, completion_ids: Ids) -> bool:
        """True where the completion ends with the template's own end-of-turn id."""
        return bool(self.end_of_turn) and bool(completion_ids.shape[0]) and completion_ids[-1] == self.end_of_turn[-1]

    def _feedback_with_close(self, text: str, turn: int) -> Ids:
        """The ids after an unclosed completion; kept, because the same few texts come again and again."""
        turn = min(turn, self._steady_from)
        key = (turn, text)
        kept = self._cache.get(key)
        if kept is not None:
            return kept
        known = self._render(self._history(turn, _USER))
        answer_end = known.rindex(_ASSISTANT) + len(_ASSISTANT)
        before, after = known[:answer_end], known[answer_end:].rpartition(_USER)
        rendered = self._render(self._history(turn, text))
        if not rendered.startswith(before):
            raise ChatTemplateError(
                f"the chat template of {_name(self.tokenizer)} rewrites earlier turns when the user says {text[:80]!r}:"
                " feedback cannot be appended; use a template that only appends"
            )
        ids = self._encode(rendered, before + after[0], text, after[2])
        head = self._tokenize(before)
        if ids.shape[0] > head.shape[0] and np.array_equal(ids[: head.shape[0]], head):
            ids = ids[head.shape[0] :]
        else:  # an id straddles the boundary: what is appended must be ids of its own
            ids = self._encode(rendered[answer_end:], after[0], text, after[2])
        self._cache.put(key, ids)
        return ids

    def _history(self, turn: int, text: str) -> list[dict[str, str]]:
        """A dialogue in which turn `turn` is answered with `text` (what was said before does not matter to it)."""
        rounds = [_message("assistant", _ASSISTANT), _message("user", _USER)] * (turn + 1)
        return [*self._feedback_head, _message("user", _USER), *rounds[:-1], _message("user", text)]

    def _encode(self, rendered: str, before: str, text: str, after: str) -> Ids:
        """Ids of a rendering; where `text` holds a marker, it is encoded apart, as plain text."""
        if not (self._markers and self._markers.search(text)):
            return self._tokenize(rendered)
        with _LOCKS.encoding:
            plain = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return np.concatenate([self._tokenize(before), np.asarray(plain, np.int64), self._tokenize(after)])

    def _tokenize(self, text: str) -> Ids:
        with _LOCKS.encoding:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return np.asarray(ids, dtype=np.int64)

    def _render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool = True) -> str:
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            roles = " ".join(message["role"] for message in messages)
            raise ChatTemplateError(
                f"the chat template of {_name(self.tokenizer)} cannot render the roles [{roles}]: {error};"
                " where it knows no system role, give the system prompt as part of the problem's text"
            ) from error
        return str(text)

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
        """The text that is verified for a completion: its own, whatever the context (int64 (L,)) before it was."""
        return self.text(completion_ids)

    def decode(self, ids: Ids) -> str:
        """The text of any ids, special tokens included."""
        return str(self._decode(ids.tolist(), skip_special_tokens=False))

    def _decode_slow(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    # ---- what the template does

    def _check_split(self) -> None:
        """Finds where an assistant turn ends, and whether the system message is repeated after it."""
        self._feedback_head = self._head
        if self._head:
            probe = [_message("system", _SYSTEM), *self._history(0, _USER)[1:]]
            rendered = self._render(probe)
            if _SYSTEM not in rendered:
                raise ChatTemplateError(
                    f"the chat template of {_name(self.tokenizer)} leaves system messages out: give the system prompt"
                    " as part of the problem's text, or set `tokenizer.chat_template` to one that writes it"
                )
            if rendered.rfind(_SYSTEM) > rendered.find(_ASSISTANT) >= 0:
                # Some templates put the system message into the *last* user turn: once, in the prompt, is enough.
                self._feedback_head = []
        for turn in (0, 1):
            rendered = self._render(self._history(turn, _LAST))
            shown = re.findall(f"{_USER}|{_ASSISTANT}|{_LAST}", rendered)
            if shown != [_USER, _ASSISTANT] * (turn + 1) + [_LAST]:
                raise ChatTemplateError(
                    f"the chat template of {_name(self.tokenizer)} cannot be split at a turn: of a dialogue of"
                    f" {turn + 2} user and {turn + 1} assistant messages it shows {len(shown)}, or not in their order;"
                    " set `tokenizer.chat_template` to one that writes every message once, in order"
                )
        if self._render([*self._head, _message("user", _USER)]).count(_USER) != 1:
            raise ChatTemplateError(f"the chat template of {_name(self.tokenizer)} writes a user message twice")

    def _find_steady_turn(self) -> int:
        """The first turn from which on the template writes the same after every answer; later ones are rendered as it.

        A dialogue of a thousand turns is then as cheap to answer as one of two. A template that counts its messages has no
        such turn, and is rendered in full. Templates see roles, texts, and positions (first, last, even, odd): a few turns
        with the same texts show what they do.
        """
        written = []
        for turn in _PROBED_TURNS:
            rendered = self._render(self._history(turn, _USER))
            written.append(rendered[rendered.rindex(_ASSISTANT) :])
        if len(set(written[1:])) > 1:
            return sys.maxsize
        return 0 if written[0] == written[1] else 1

    def _find_end_of_turn(self) -> tuple[int, ...]:
        """The leading ids of what follows an assistant message, up to the special id that ends the turn."""
        rendered = self._render(self._history(0, _USER))
        after = rendered[rendered.rindex(_ASSISTANT) + len(_ASSISTANT) :]
        alone = self._render(self._history(0, _USER)[:-1], add_generation_prompt=False)
        closing = alone[alone.rindex(_ASSISTANT) + len(_ASSISTANT) :]
        special = set(self.tokenizer.all_special_ids)
        ids, close_ids = self._feedback_with_close(_USER, 0).tolist(), self._tokenize(closing).tolist()
        for k, token in enumerate(close_ids):
            if not after.startswith(closing[:1]) or k >= len(ids) or ids[k] != token:
                return ()
            if token in special:
                return tuple(ids[: k + 1])
        return ()

    def _find_markers(self) -> re.Pattern[str] | None:
        """What must never be encoded as itself inside a user's text: special tokens and the template's own marks."""
        skeleton = self._render(self._history(1, _USER))
        strings = {
            token.content
            for token in self.tokenizer.added_tokens_decoder.values()
            if token.special or (token.content.strip() and token.content in skeleton)
        }
        strings -= {_USER, _ASSISTANT, _SYSTEM}
        longest_first = sorted((s for s in strings if s), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _name(tokenizer: Tokenizer) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
