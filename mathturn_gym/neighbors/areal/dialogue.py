r"""How AReaL's v0.3 agent put text and ids together, for those who need exactly that.

`gym.make(…, feedback="areal-v0.3")` says what the original said, and gets its dialogue with it. Two things differ from
`Dialogue`, and both are kept here as they were, defects included (`docs/areal.md` lists them):

* the feedback is "\n" and a chat of its own, tokenized with the tokenizer's special tokens: a second BOS, the
  template's default system message again, and no end of turn where the completion has none;
* the answer is what follows the prompt's *text* in the text of the whole sequence, up to where that text recurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from mathturn_gym.env.dialogue import Dialogue, Tokenizer
from mathturn_gym.env.feedback import feedback_mode
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Ids, Problem, TurnContext

RIGHT_TEXT: Final = "Congratulations! You are correct!"
"""What the original said after any score above 0."""

WRONG_TEXT: Final = "Unfortunately your answer is wrong. Let's try again."
"""What it said after a score of 0."""

PROMPT_IDS: Final = "prompt_token_ids"
"""Key of a problem's metadata under which its first observation may stand as ids (the original was handed ids)."""


def spliced_feedback_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids that the original appended after a turn in which the user says `text`."""
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer("\n" + rendered)["input_ids"])


def answers_after_prompt(tokenizer: Tokenizer, sequences: Sequence[Any], prompt_ids: Iterable[int]) -> list[str]:
    """The texts that the original took for the answers: after the prompt's text, up to where it recurs.

    Raises:
        IndexError: the prompt's text is not in the sequence's (a character split between prompt and completion).
        ValueError: the prompt has no text.
    """
    texts = decode_batch(tokenizer, sequences)
    prompt = decode_batch(tokenizer, [prompt_ids])[0]
    return [text.split(prompt)[1] for text in texts]


def decode_batch(tokenizer: Tokenizer, sequences: Sequence[Any]) -> list[str]:
    """The texts of several lists of ids, special tokens left out."""
    return list(tokenizer.batch_decode(sequences, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class ArealDialogue(Dialogue):
    """A `Dialogue` with the original's feedback ids and answer texts; prompts are written as `Dialogue` does.

    A problem whose metadata has `"prompt_token_ids"` is shown as those ids. Where the original raised because it
    could not find the answer, the answer is empty here: what a model writes never raises in an environment.
    """

    def problem_ids(self, problem: Problem) -> Ids:
        """The first observation: the ids in the problem's metadata, or its text in the chat template."""
        given = problem.metadata.get(PROMPT_IDS)
        if given is None:
            return super().problem_ids(problem)
        ids = np.asarray(given)
        whole = ids.ndim == 1 and ids.dtype.kind in "iu"
        if not whole or not 0 <= ids.min(initial=0) <= ids.max(initial=0) < self.vocab_size:
            raise InvalidValueError(
                f"Problem.metadata[{PROMPT_IDS!r}] must be a list of ids in [0, {self.vocab_size}), got {given!r} for"
                f" problem {problem.id!r}"
            )
        return ids.astype(np.int64)

    def response(self, context: Ids, completion_ids: Ids) -> str:
        """The text that the original sent to the verifier, "" where it raised."""
        # The whole sequence is decoded, and its prompt cut off as text: this is what loses answers (defects 3 to 6).
        sequence = [*context.tolist(), *completion_ids.tolist()]
        try:
            return answers_after_prompt(self.tokenizer, [sequence], context.tolist())[0]
        except (IndexError, ValueError):
            return ""

    def feedback_ids(self, text: str, turn: int, completion_ids: Ids, response: str | None = None) -> Ids:
        """The ids that the original appended, whatever the completion ends with."""
        return np.array(spliced_feedback_ids(self.tokenizer, text), np.int64)


# `num_turns=0` was allowed: an episode that ends without a turn.
@feedback_mode("areal-v0.3", dialogue=ArealDialogue, fewest_turns=0)
def areal_feedback(context: TurnContext) -> str:
    """The original's choice between its two sentences: any score above 0 is congratulated."""
    return RIGHT_TEXT if context.judged.value else WRONG_TEXT
