"""The only place where text and ids meet.

    tokenizer, chat template ─► ChatTemplate (messages to text and ids) ─► Dialogue (prompts, answers, feedback)
                                Thinking (where thoughts begin and end)        │
                                                                               └─ history: what later turns see of earlier ones

`Dialogue` is made for every environment; `TurnDialogue` says what one of your own must have.
"""

from mathturn_gym.env.dialogue._dialogue import (
    Dialogue,
    DialogueLike,
    History,
    TurnDialogue,
    completion_ids,
    make_dialogue,
)
from mathturn_gym.env.dialogue._template import CHATML_TEMPLATE, Thinking
from mathturn_gym.env.dialogue._tokenizers import Tokenizer, load_tokenizer

__all__ = [
    "CHATML_TEMPLATE",
    "Dialogue",
    "DialogueLike",
    "History",
    "Thinking",
    "Tokenizer",
    "TurnDialogue",
    "completion_ids",
    "load_tokenizer",
    "make_dialogue",
]
