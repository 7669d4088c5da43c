"""The only place where text and ids meet.

    tokenizer, chat template ─► ChatTemplate (messages to text and ids) ─► Dialogue (prompts, answers, feedback)
                                Thinking (where thoughts begin and end)        │
                                                                               └─ history: what later turns see of earlier ones

`Dialogue` is made for every environment; `TurnDialogue` says what one of your own must have.
"""

from mathturn_gym.env.dialogue._dialogue import Dialogue, TurnDialogue, completion_ids
from mathturn_gym.env.dialogue._template import CHATML_TEMPLATE
from mathturn_gym.env.dialogue._tokenizers import Tokenizer, load_tokenizer

__all__ = ["CHATML_TEMPLATE", "Dialogue", "Tokenizer", "TurnDialogue", "completion_ids", "load_tokenizer"]
