"""The table of feedback modes: a mode is one decorated function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeAlias

from mathturn_gym._calls import check_takes, positional_parameters
from mathturn_gym.errors import InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.feedback.texts import TEXTS
from mathturn_gym.types import TurnContext

__all__ = ["FEEDBACK", "Feedback", "FeedbackMode", "feedback_mode", "get_feedback"]

Feedback: TypeAlias = Callable[[TurnContext], str]
"""What is said after a turn. Attributes say what it needs of the environment, as they do of a `FeedbackMode`."""

Texts: TypeAlias = Mapping[str, str]

_ELSEWHERE: Final = {"areal-v0.3": "mathturn_gym.areal.dialogue"}
"""Modes of other packages, and the module that registers each; it is imported when the mode is first asked for."""


@dataclass(frozen=True, slots=True)
class FeedbackMode:
    """A registered mode, in one language.

    Args:
        name: Under which it is registered; "NAME:LANGUAGE" in other languages than English.
        write: The decorated function.
        texts: The texts of the language, for functions that take them.
        dialogue: What the environment makes its dialogue of (`factory(tokenizer)`, see `MathMultiTurnEnv`), where it is
            given none; None for `Dialogue`.
        fewest_turns: The smallest `num_turns` that the mode has a meaning for.
    """

    name: str
    write: Callable[..., str]
    texts: Texts | None = None
    dialogue: Callable[..., Any] | None = None
    fewest_turns: int = 1

    def __call__(self, context: TurnContext) -> str:
        """What is said after the turn."""
        return self.write(context) if self.texts is None else self.write(context, self.texts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, it is found again by its name."""
        return get_feedback, (self.name,)


class _Registry(Mapping[str, Feedback]):
    """The modes by name; those of other packages are loaded when they are asked for."""

    def __init__(self) -> None:
        self._modes: dict[str, FeedbackMode] = {}

    def add(self, mode: FeedbackMode) -> None:
        known = self._modes.get(mode.name)
        place = mode.write.__module__, mode.write.__qualname__
        # A notebook's cell that is run again defines the same function anew.
        taken = known is not None and (known.write.__module__, known.write.__qualname__) != place
        if taken or _ELSEWHERE.get(mode.name, place[0]) != place[0]:
            raise InvalidValueError(f"feedback mode {mode.name!r} is registered already; choose another name")
        self._modes[mode.name] = mode

    def __getitem__(self, name: str) -> Feedback:
        if name not in self._modes and name in _ELSEWHERE:
            import_module(_ELSEWHERE[name])
        return self._modes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modes or name in _ELSEWHERE

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._modes, *_ELSEWHERE}))

    def __len__(self) -> int:
        return len({*self._modes, *_ELSEWHERE})


_REGISTRY = _Registry()

FEEDBACK: Final[Mapping[str, Feedback]] = _REGISTRY
"""Every mode by name."""


def feedback_mode(
    name: str, *, dialogue: Callable[..., Any] | None = None, fewest_turns: int = 1
) -> Callable[[Callable[..., str]], FeedbackMode]:
    """Registers the decorated function as a feedback mode, for `gym.make(…, feedback=name)`.

    The function is called with a `TurnContext`, whose `judged` is the verdict, and returns the text. One with a second
    parameter also gets the texts of a language (an entry of `feedback.texts.TEXTS`), and is registered in all of them:
    as `name`, and as `name:zh` and the like.

    Args:
        name: The mode's name.
        dialogue: See `FeedbackMode`.
        fewest_turns: See `FeedbackMode`.

    Returns:
        A decorator that leaves the `FeedbackMode` (in English) under the function's name.

    Raises:
        InvalidValueError: the name is taken, or the function does not take a `TurnContext`.

    >>> @feedback_mode("loud")
    ... def loud(context):
    ...     return "YES!" if context.judged.correct else "NO!"
    >>> get_feedback("loud") is loud
    True
    """
    check_int("fewest_turns", fewest_turns, low=0)

    def register(write: Callable[..., str]) -> FeedbackMode:
        parameters = positional_parameters(write) or []
        role = f"feedback mode {name!r}"
        if len(parameters) < 2:
            check_takes(role, write, "context")
            spoken = [FeedbackMode(name, write, None, dialogue, fewest_turns)]
        else:
            check_takes(role, write, "context", "texts")
            spoken = [
                FeedbackMode(name if language == "en" else f"{name}:{language}", write, texts, dialogue, fewest_turns)
                for language, texts in TEXTS.items()
            ]
        for mode in spoken:
            _REGISTRY.add(mode)
        return spoken[0]

    return register


def get_feedback(feedback: str | Feedback) -> Feedback:
    """The feedback behind a name; a callable is returned as it is.

    Raises:
        InvalidValueError: the name is unknown (the nearest one is suggested), or the value cannot be called with a
            `TurnContext`.

    >>> get_feedback("plain:zh").name
    'plain:zh'
    """
    if isinstance(feedback, str):
        if feedback not in FEEDBACK:
            raise_unknown_name("feedback", feedback, FEEDBACK)
        return FEEDBACK[feedback]
    if not callable(feedback):
        raise InvalidValueError(f"feedback must be a name or a function of a TurnContext, got {feedback!r}")
    check_takes("feedback", feedback, "context")
    return feedback
