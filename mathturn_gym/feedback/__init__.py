"""What the environment says after a turn: from a verdict to a text (pure functions).

A feedback is any callable `FeedbackContext -> str`; the names in `FEEDBACK` are the built-in ones, `NAME:zh` says the same
in Chinese, and `TemplateFeedback` says it in your words. `modes` lists what each tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.feedback.modes import MODES, Mode, areal, plain
from mathturn_gym.feedback.templates import TemplateFeedback
from mathturn_gym.feedback.texts import RIGHT_TEXT, TEXTS, WRONG_TEXT, Feedback, FeedbackContext

__all__ = [
    "FEEDBACK",
    "RIGHT_TEXT",
    "WRONG_TEXT",
    "Feedback",
    "FeedbackContext",
    "TemplateFeedback",
    "areal",
    "get_feedback",
    "hint",
    "hint_flipped",
    "plain",
]


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A mode in a language."""

    mode: Mode
    language: str

    def __call__(self, context: FeedbackContext) -> str:
        return self.mode(context, self.language)


FEEDBACK: Final[dict[str, Feedback]] = {
    **{
        name: plain if mode is plain else areal if mode is areal else _Spoken(mode, "en")
        for name, mode in MODES.items()
    },
    **{
        f"{name}:{language}": _Spoken(mode, language)
        for language in TEXTS
        if language != "en"
        for name, mode in MODES.items()
        if mode is not areal
    },
}
"""The built-in feedbacks by name."""

hint: Final[Feedback] = FEEDBACK["hint"]
hint_flipped: Final[Feedback] = FEEDBACK["hint-flipped"]


def get_feedback(feedback: str | Feedback) -> Feedback:
    """The feedback behind a name; a callable is returned as it is.

    Raises:
        InvalidValueError: the name is unknown (the nearest one is suggested), or the value is no callable.

    >>> get_feedback("plain") is plain
    True
    """
    if isinstance(feedback, str):
        if feedback not in FEEDBACK:
            raise_unknown_name("feedback", feedback, FEEDBACK)
        return FEEDBACK[feedback]
    if not callable(feedback):
        raise InvalidValueError(f"feedback must be a name or a callable FeedbackContext -> str, got {feedback!r}")
    return feedback
