"""The exceptions of the package: what a *user* did wrong, never what a model wrote.

    MathTurnError
    ├── InvalidValueError        (ValueError)    an argument outside what is allowed
    │   ├── InvalidActionError                   an action outside the action space
    │   ├── PromptTooLongError                   a prompt that no context budget here can hold
    │   └── SharedPromptsError                   training and evaluation would share prompts
    ├── EpisodeStateError        (RuntimeError)  step before reset, or after the end
    ├── ChatTemplateError        (ValueError)    a tokenizer whose chat template cannot be used
    ├── ProblemFileError         (ValueError)    a problem file that cannot be read, or a bad row in it
    ├── InvalidEpisodeError      (ValueError)    an episode that breaks the laws of `Episode`
    ├── CheckpointError          (ValueError)    a checkpoint or run folder that does not load
    ├── LockedError              (RuntimeError)  a file or folder that another process is using
    ├── StorageError             (OSError)       a file that cannot be written: a full disk, a read-only folder
    ├── RunError                 (RuntimeError)  a part of a running collection cannot go on
    │   ├── PolicyError                          its policy: NaN logits, no memory, a dead server
    │   ├── VerifierError                        the package's own verifier: its workers do not start
    │   ├── EngineError                          its workers: not there, of another version, or dying again and again
    │   ├── ServerError                          the server of its environments: not there, refusing, of another version
    │   └── UserFunctionError                    a function of the user's raised: feedback, reward term, verifier
    └── MissingDependencyError   (ImportError)   an optional library that is not installed

Every class derives from `MathTurnError` *and* from the standard exception that fits, and is picklable (its
arguments are its message). A message names the field, the value that was given, and what is allowed. What a
language model writes never raises: it becomes a `Verdict` or a `StopReason`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

__all__ = [
    "ChatTemplateError",
    "CheckpointError",
    "EngineError",
    "EpisodeStateError",
    "InvalidActionError",
    "InvalidEpisodeError",
    "InvalidValueError",
    "LockedError",
    "MathTurnError",
    "MissingDependencyError",
    "PolicyError",
    "ProblemFileError",
    "PromptTooLongError",
    "RunError",
    "ServerError",
    "SharedPromptsError",
    "StorageError",
    "UserFunctionError",
    "VerifierError",
]

_SHOWN: Final = 1000
"""Characters of a value that a message shows."""


class MathTurnError(Exception):
    """Base of every exception that this package raises on purpose."""


class InvalidValueError(MathTurnError, ValueError):
    """An argument is outside what is allowed."""


class InvalidActionError(InvalidValueError):
    """An action is not in the action space; the message says why."""


class PromptTooLongError(InvalidValueError):
    """A prompt has more ids than the context budget can hold."""


class SharedPromptsError(InvalidValueError):
    """Training and evaluation share problems, and the user did not ask for that by name."""


class EpisodeStateError(MathTurnError, RuntimeError):
    """A method was called at the wrong time: `step` before `reset`, or after the episode's end."""


class ChatTemplateError(MathTurnError, ValueError):
    """A tokenizer has no chat template, or one that cannot be split at a turn."""


class ProblemFileError(MathTurnError, ValueError):
    """A problem file cannot be read, or one of its rows is broken (file, line and field are named)."""


class InvalidEpisodeError(MathTurnError, ValueError):
    """An episode breaks a law: lengths that differ, log-probs that are no log-probs, versions running backwards."""


class CheckpointError(MathTurnError, ValueError):
    """A checkpoint or a run folder cannot be loaded."""


class LockedError(MathTurnError, RuntimeError):
    """A file or folder is in use by another process, or by another part of this one."""


class StorageError(MathTurnError, OSError):
    """A file cannot be written: the disk is full, the folder is read-only. What was there before is kept."""


class RunError(MathTurnError, RuntimeError):
    """A part of a running collection cannot go on.

    Attributes:
        finished: The episodes that `collect` had finished by then (each was also given to its `on_episode`).
    """

    finished: Sequence[Any] = ()


class PolicyError(RunError):
    """A policy cannot go on: its logits are not finite, memory does not suffice, its server is gone."""


class VerifierError(RunError):
    """The package's own verifier cannot work, whatever the answer is."""


class EngineError(RunError):
    """The workers of an engine cannot work: a cluster that is not there, other versions, workers that keep dying."""


class ServerError(RunError):
    """The server of an environment cannot be reached, refuses, ended the session, or speaks another protocol version."""


class UserFunctionError(RunError):
    """A function that the user gave raised: a feedback, a reward term, or a verifier that has never answered.

    Its `__cause__` is the exception; the message names the function, the problem and the turn.
    """


class MissingDependencyError(MathTurnError, ImportError):
    """An optional library is not installed; the message says what to install."""


def install_extra(extra: str) -> str:
    """Says how to install an optional part of the package; the end of a `MissingDependencyError`'s message.

    >>> install_extra("trl")
    "install mathturn_gym with its extra [trl] (in a checkout: pip install '.[trl]')"
    """
    # Right before and after the first release: until then, no index knows the package's name.
    return f"install mathturn_gym with its extra [{extra}] (in a checkout: pip install '.[{extra}]')"


def raise_unknown_name(field: str, value: object, allowed: Iterable[str]) -> NoReturn:
    """Raises `InvalidValueError` for a name that is not among `allowed`, suggesting the nearest one.

    >>> raise_unknown_name("feedback", "plian", ["hint", "plain"])
    Traceback (most recent call last):
    ...
    mathturn_gym.errors.InvalidValueError: unknown feedback 'plian': did you mean 'plain'? (allowed: hint, plain)
    """
    names = sorted(allowed)
    # No nearest name is looked for where a file put a book in a name's place: that would take quadratic time.
    near = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) and len(value) <= _SHOWN else []
    if not near and isinstance(value, str) and len(value) > 1:
        near = [name for name in names if name.startswith(value)]  # "strip" for "strip-thinking"
    hint = f": did you mean {near[0]!r}?" if near else ""
    raise InvalidValueError(f"unknown {field} {shown(value)}{hint} (allowed: {', '.join(names)})")


def shown(value: object) -> str:
    """A value for a message: its `repr`, cut off where it is long, and never an exception.

    >>> shown(3), shown(10**5000)
    ('3', 'an integer of 16610 bits')
    """
    try:
        text = repr(value)
    except Exception:  # integers of more digits than Python prints, nesting without end, other people's classes
        return f"an integer of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def check_int(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """Returns `value` as an int in [low, high], or raises `InvalidValueError` naming the field."""
    allowed = f">= {low}" if high is None else f"in [{low}, {high}]"
    try:
        number = None if isinstance(value, bool) else value.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        raise InvalidValueError(f"{field} must be an integer {allowed}, got {shown(value)}")
    return int(number)


def check_float(field: str, value: object, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Returns `value` as a finite float in [low, high], or raises `InvalidValueError` naming the field."""
    bounded = low > -math.inf or high < math.inf
    allowed = f" in [{low:g}, {high:g}]" if bounded else ""
    number: float | None = None
    if not isinstance(value, (bool, str)):
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):  # the last one for integers above 1e308
            number = None
    if number is None or not math.isfinite(number) or not low <= number <= high:
        raise InvalidValueError(f"{field} must be a finite number{allowed}, got {shown(value)}")
    return number
