"""The modes: from a verdict to a text (pure functions of the context and a language).

    areal-v0.3     the original agent's two sentences, any score above 0 congratulated
    plain          right or wrong, in the same two sentences
    none           neutral: does not say which
    reason         why it is not right: no answer, not readable, not worked out, wrong, undecided
    graded         what of a number, tuple or list is wrong: sign, size, digits, elements
    hint           plain, and the problem's next hint
    tool           plain, and the value of the response's own last calculation

Controls, to see whether a policy listens:

    random         right or wrong by a coin
    flipped        right for wrong and wrong for right
    delayed        what was true of the turn before
    hint-flipped   hints that lie
    hint-random    hints of which half lie
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from mathturn_gym.feedback.calculator import last_calculation
from mathturn_gym.feedback.grading import grade
from mathturn_gym.feedback.texts import TEXTS, FeedbackContext
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Status
from mathturn_gym.verifier import is_readable

__all__ = ["MODES", "Mode", "areal", "plain"]

Mode: TypeAlias = Callable[[FeedbackContext, str], str]


def plain(context: FeedbackContext, language: str = "en") -> str:
    """Right or wrong, in the original agent's two sentences; undecided and no answer are told as wrong."""
    return _say(language, context.verdict.correct)


def areal(context: FeedbackContext, language: str = "en") -> str:
    """The original agent's choice between its two sentences: any score above 0 is congratulated."""
    return _say(language, bool(context.verdict.value))


def none(context: FeedbackContext, language: str) -> str:
    """The same sentence whatever the verdict."""
    return TEXTS[language]["neutral"]


def reason(context: FeedbackContext, language: str) -> str:
    """Why the answer does not count; nothing about what would."""
    verdict, texts = context.verdict, TEXTS[language]
    if verdict.status is Status.NO_ANSWER:
        return texts["no_answer"]
    if verdict.status is Status.UNDECIDED:
        return texts["undecided"]
    if verdict.status is Status.WRONG and verdict.reason == "unevaluated":
        return texts["unevaluated"]
    if verdict.status is Status.WRONG and verdict.answer is not None and not is_readable(verdict.answer):
        return texts["unreadable"]
    return plain(context, language)


def graded(context: FeedbackContext, language: str) -> str:
    """`reason`, and for a wrong number, tuple or list what of it is wrong; never the right value."""
    said = reason(context, language)
    if context.verdict.status is not Status.WRONG or context.verdict.answer is None:
        return said
    return " ".join([said, *grade(context.verdict.answer, context.problem.gold, TEXTS[language])])


def hint(context: FeedbackContext, language: str) -> str:
    """`plain`, and after a wrong answer the problem's next hint (its last one again when they run out)."""
    return _with_hint(context, language, context.problem.hints)


def hint_flipped(context: FeedbackContext, language: str) -> str:
    """`hint` with the problem's false hints: the control that shows whether a policy listens."""
    return _with_hint(context, language, context.problem.false_hints)


def hint_random(context: FeedbackContext, language: str) -> str:
    """`hint` or `hint_flipped`, by a coin."""
    return (hint if _coin(context) else hint_flipped)(context, language)


def tool(context: FeedbackContext, language: str) -> str:
    """`plain`, and after a wrong answer the value of the last calculation in the response (exact, by itself, bounded)."""
    said = plain(context, language)
    if context.verdict.correct:
        return said
    texts, found = TEXTS[language], last_calculation(context.response)
    if found is None:
        return f"{said} {texts['tool_none']}"
    template = texts["tool"] if found.right is not None else texts["tool_alone"]
    return f"{said} {_fill(template, left=found.left, right=found.right or '', value=found.value)}"


def random(context: FeedbackContext, language: str) -> str:
    """`plain` with a verdict by a coin: says nothing about the answer."""
    return _say(language, _coin(context))


def flipped(context: FeedbackContext, language: str) -> str:
    """`plain` with the opposite verdict."""
    return _say(language, not context.verdict.correct)


def delayed(context: FeedbackContext, language: str) -> str:
    """`plain` about the turn before; neutral after the first."""
    return _say(language, context.earlier[-1].correct) if context.earlier else TEXTS[language]["neutral"]


MODES: Final[dict[str, Mode]] = {
    "areal-v0.3": areal,  # in the environment this name also chooses the original's ids (`dialogue_areal`)
    "delayed": delayed,
    "flipped": flipped,
    "graded": graded,
    "hint": hint,
    "hint-flipped": hint_flipped,
    "hint-random": hint_random,
    "none": none,
    "plain": plain,
    "random": random,
    "reason": reason,
    "tool": tool,
}
"""Every mode by name."""


def _say(language: str, right: bool) -> str:
    return TEXTS[language]["right" if right else "wrong"]


def _coin(context: FeedbackContext) -> bool:
    """Fair, and the same for the same problem, turn and response, so that episodes can be repeated."""
    return derive_seed("feedback", context.problem.id, context.turn, context.response) % 2 == 0


def _with_hint(context: FeedbackContext, language: str, hints: tuple[str, ...]) -> str:
    said = plain(context, language)
    if context.verdict.correct or not hints:
        return said
    return said + _fill(TEXTS[language]["hint"], hint=hints[min(context.turn, len(hints) - 1)])


def _fill(template: str, **values: str) -> str:
    """Puts values into a template of ours; braces inside a value stay as they are."""
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template
