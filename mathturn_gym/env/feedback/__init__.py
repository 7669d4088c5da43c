"""Feedback: pure functions from a judged turn to the text that the policy is told.

A feedback is any callable `TurnContext -> str`; the names in `FEEDBACK` are the built-in modes, `NAME:zh` says the same in
Chinese, `TemplateFeedback` says it in your words, and `feedback_mode` registers a mode of your own. The module `modes`
lists what each tells.
"""

from mathturn_gym.env.feedback._registry import (
    FEEDBACK,
    RIGHT_TEXT,
    WRONG_TEXT,
    Feedback,
    FeedbackMode,
    TemplateFeedback,
    feedback_mode,
    get_feedback,
)
from mathturn_gym.env.feedback.modes import AboveBelow, hint, hint_flipped, plain

__all__ = [
    "FEEDBACK",
    "RIGHT_TEXT",
    "WRONG_TEXT",
    "AboveBelow",
    "Feedback",
    "FeedbackMode",
    "TemplateFeedback",
    "feedback_mode",
    "get_feedback",
    "hint",
    "hint_flipped",
    "plain",
]
