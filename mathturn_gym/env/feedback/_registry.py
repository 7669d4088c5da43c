"""Feedback texts by language, the registry of feedback modes (each one decorated function), and feedback from templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from string import Formatter
from typing import Any, Final, TypeAlias

from mathturn_gym.base.user_functions import check_takes, positional_parameters
from mathturn_gym.errors import InvalidValueError, check_int, raise_unknown_name
from mathturn_gym.types import Status, TurnContext

RIGHT_TEXT: Final = "Congratulations! You are correct!"
"""What `plain` says after a right answer: the sentence of AReaL's `MathMultiTurnAgent`."""

WRONG_TEXT: Final = "Unfortunately your answer is wrong. Let's try again."
"""What it says after any other."""


TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    "en": {
        "right": RIGHT_TEXT,
        "wrong": WRONG_TEXT,
        "neutral": "Please check your answer.",
        "no_answer": r"No answer was found in your response. Put your answer into \boxed{}.",
        "unreadable": "Your answer could not be read as mathematics. Let's try again.",
        "unevaluated": "Your answer is not worked out. Let's try again.",
        "undecided": "It could not be decided whether your answer is right. Try a simpler form.",
        "hint": " Hint: {hint}",
        "above": "it is above {number}.",
        "below": "it is below {number}.",
        "sign": "Its sign is wrong.",
        "small": "It is too small in size.",
        "large": "It is too large in size.",
        "far": "It is off by a factor of more than ten.",
        "digits": "{right} of its {count} digits are right.",
        "count": "It should have {count} elements.",
        "elements": "These of its elements are right: {which}.",
        "no_element": "None of its elements is right.",
        "tool": "You wrote {left} = {right}. A calculator says {left} = {value}.",
        "tool_alone": "A calculator says {left} = {value}.",
        "tool_none": "There is no calculation in your response that a calculator could repeat.",
    },
    "zh": {
        "right": "恭喜，你答对了！",
        "wrong": "很遗憾，你的答案不对。我们再试一次。",
        "neutral": "请检查你的答案。",
        "no_answer": r"在你的回答中没有找到答案。请把答案写在 \boxed{} 里。",
        "unreadable": "你的答案无法作为数学式子读取。我们再试一次。",
        "unevaluated": "你的答案还没有算完。我们再试一次。",
        "undecided": "无法判断你的答案是否正确。请换一种更简单的形式。",
        "hint": "提示：{hint}",
        "above": "它大于 {number}。",
        "below": "它小于 {number}。",
        "sign": "符号不对。",
        "small": "绝对值太小。",
        "large": "绝对值太大。",
        "far": "相差十倍以上。",
        "digits": "{count} 位数字中有 {right} 位正确。",
        "count": "答案应该有 {count} 个元素。",
        "elements": "以下元素正确：{which}。",
        "no_element": "没有一个元素正确。",
        "tool": "你写的是 {left} = {right}。计算器的结果是 {left} = {value}。",
        "tool_alone": "计算器的结果是 {left} = {value}。",
        "tool_none": "你的回答中没有计算器可以重复的计算。",
    },
}
"""By language, then by what it says."""


# ---- registration


Feedback: TypeAlias = Callable[[TurnContext], str]
"""What is said after a turn. Attributes say what it needs of the environment, as they do of a `FeedbackMode`."""

Texts: TypeAlias = Mapping[str, str]

# Modes of other packages, and the module that registers each; it is imported when the mode is first asked for.
_ELSEWHERE: Final = {"areal-v0.3": "mathturn_gym.neighbors.areal.dialogue"}


@dataclass(frozen=True, slots=True)
class FeedbackMode:
    """A registered mode, in one language."""

    name: str  # under which it is registered; "NAME:LANGUAGE" in other languages than English
    write: Callable[..., str]  # the decorated function
    texts: Texts | None = None  # the texts of the language, for functions that take them
    # What the environment makes its dialogue of (`factory(tokenizer)`, see `MathMultiTurnEnv`), where it is given none;
    # None for `Dialogue`.
    dialogue: Callable[..., Any] | None = None
    fewest_turns: int = 1  # the smallest `num_turns` that the mode has a meaning for

    def __call__(self, context: TurnContext) -> str:
        """The text for a judged turn."""
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
        # Running a notebook's cell again defines the same function again.
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


# ---- templates


_FIELDS: Final = ("answer", "hint", "reason", "turn", "turns_left")


@dataclass(frozen=True, slots=True)
class TemplateFeedback:
    """A feedback from templates, one per status.

    A template may name `{answer}` (what was taken as the answer, "" for none), `{reason}` (the verifier's), `{turn}` (from
    1), `{turns_left}` and `{hint}` (the problem's next one, "" for none); `{{` and `}}` are braces. There is no field for
    the gold answer; only a function of your own can reveal it (`context.problem.gold`).

    Args:
        right: After a right answer.
        wrong: After a wrong one.
        no_answer: Where no answer was found; None is `wrong`.
        undecided: Where the verifier could not decide; None is `wrong`.

    Raises:
        InvalidValueError: a template is no text, is malformed, or names an unknown field.

    >>> TemplateFeedback("Yes!", "{answer} is not it; {turns_left} left.").wrong
    '{answer} is not it; {turns_left} left.'
    """

    right: str
    wrong: str
    no_answer: str | None = None
    undecided: str | None = None

    def __post_init__(self) -> None:
        """Checks the templates now rather than in the middle of a run."""
        for name in ("right", "wrong", "no_answer", "undecided"):
            template = getattr(self, name)
            if template is not None or name in ("right", "wrong"):
                _check(name, template)

    def __call__(self, context: TurnContext) -> str:
        """The filled template of the verdict's status."""
        verdict = context.judged
        chosen = {Status.RIGHT: self.right, Status.NO_ANSWER: self.no_answer, Status.UNDECIDED: self.undecided}.get(
            verdict.status
        )
        hints = context.problem.hints
        values = {
            "answer": verdict.answer or "",
            "hint": hints[min(context.turn, len(hints) - 1)] if hints else "",
            "reason": verdict.reason,
            "turn": str(context.turn + 1),
            "turns_left": str(context.num_turns - context.turn - 1),
        }
        return "".join(
            literal + ("" if field is None else values[field])
            for literal, field, _, _ in Formatter().parse(self.wrong if chosen is None else chosen)
        )


def _check(name: str, template: object) -> None:
    if not isinstance(template, str):
        raise InvalidValueError(f"{name} must be a template, got {template!r}")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidValueError(
            f"{name} is no template: {error}; {{{{ and }}}} write braces, got {template!r}"
        ) from error
    for _, field, spec, conversion in parts:
        if field is not None and field not in _FIELDS:
            raise_unknown_name(f"field of the template {name}", field, _FIELDS)
        if spec or conversion:
            raise InvalidValueError(f"{name}: fields have no format or conversion here, got {template!r}")
