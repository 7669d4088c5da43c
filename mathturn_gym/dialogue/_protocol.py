"""What an environment needs of a dialogue, and how it gets one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from mathturn_gym._calls import check_takes, name_of
from mathturn_gym.dialogue._tokenizers import LOCKS, Tokenizer, load_tokenizer
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Ids, Problem

__all__ = ["DialogueLike", "History", "TurnDialogue", "completion_ids", "make_dialogue"]

History: TypeAlias = Literal["keep", "strip-thinking", "template"]
"""What later turns see of earlier ones: everything, everything but thoughts, or what the chat template makes of it."""


@runtime_checkable
class TurnDialogue(Protocol):
    """What the environment needs of a dialogue: the only place where text and ids meet.

    A dialogue that has an attribute `history` other than "keep" must also have `history_ids` (see `Dialogue`): then
    an observation may be written anew between turns.

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


def make_dialogue(dialogue: DialogueLike | None, tokenizer: str | Path | Tokenizer, **options: Any) -> TurnDialogue:
    """The dialogue behind what a user gives.

    Args:
        dialogue: A dialogue, a function that makes one of a tokenizer, or None for `Dialogue`.
        tokenizer: "builtin", a folder or hub name, or a tokenizer.
        **options: `system_prompt`, `chat_template_kwargs` and `history`; those that are not None are given to the function
            as keywords.

    Raises:
        InvalidValueError: it is no dialogue and makes none, or a dialogue that exists is given a tokenizer or an option
            that is not its own.
    """
    from mathturn_gym.dialogue._dialogue import Dialogue

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

    >>> from mathturn_gym.dialogue import Dialogue
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
