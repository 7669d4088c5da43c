"""The built-in modes: from a verdict to a text.

    plain          right or wrong, in two sentences
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

from mathturn_gym.feedback._calculator import last_calculation
from mathturn_gym.feedback._grading import grade
from mathturn_gym.feedback._registry import Texts, feedback_mode
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Status, TurnContext
from mathturn_gym.verifier import is_readable

__all__ = ["hint", "hint_flipped", "plain"]


@feedback_mode("plain")
def plain(context: TurnContext, texts: Texts) -> str:
    """Right or wrong; undecided and no answer are told as wrong."""
    return _right_or_wrong(texts, context.judged.correct)


@feedback_mode("none")
def none(context: TurnContext, texts: Texts) -> str:
    """The same sentence whatever the verdict."""
    return texts["neutral"]


@feedback_mode("reason")
def reason(context: TurnContext, texts: Texts) -> str:
    """Why the answer does not count; nothing about what would."""
    return _reason(context, texts)


@feedback_mode("graded")
def graded(context: TurnContext, texts: Texts) -> str:
    """`reason`, and for a wrong number, tuple or list what of it is wrong; never the right value."""
    said, verdict = _reason(context, texts), context.judged
    if verdict.status is not Status.WRONG or verdict.answer is None:
        return said
    return " ".join([said, *grade(verdict.answer, context.problem.gold, texts)])


@feedback_mode("hint")
def hint(context: TurnContext, texts: Texts) -> str:
    """`plain`, and after a wrong answer the problem's next hint (its last one again when they run out)."""
    return _with_hint(context, texts, context.problem.hints)


@feedback_mode("hint-flipped")
def hint_flipped(context: TurnContext, texts: Texts) -> str:
    """`hint` with the problem's false hints: the control that shows whether a policy listens."""
    return _with_hint(context, texts, context.problem.false_hints)


@feedback_mode("hint-random")
def hint_random(context: TurnContext, texts: Texts) -> str:
    """`hint` or `hint_flipped`, by a coin."""
    return _with_hint(context, texts, context.problem.hints if _coin(context) else context.problem.false_hints)


@feedback_mode("tool")
def tool(context: TurnContext, texts: Texts) -> str:
    """`plain`, and after a wrong answer the exact value of the last calculation in the response, within bounds."""
    said = _right_or_wrong(texts, context.judged.correct)
    if context.judged.correct:
        return said
    found = last_calculation(context.response)
    if found is None:
        return f"{said} {texts['tool_none']}"
    template = texts["tool"] if found.right is not None else texts["tool_alone"]
    return f"{said} {_fill(template, left=found.left, right=found.right or '', value=found.value)}"


@feedback_mode("random")
def random(context: TurnContext, texts: Texts) -> str:
    """`plain` with a verdict by a coin: says nothing about the answer."""
    return _right_or_wrong(texts, _coin(context))


@feedback_mode("flipped")
def flipped(context: TurnContext, texts: Texts) -> str:
    """`plain` with the opposite verdict."""
    return _right_or_wrong(texts, not context.judged.correct)


@feedback_mode("delayed")
def delayed(context: TurnContext, texts: Texts) -> str:
    """`plain` about the turn before; neutral after the first."""
    if not context.earlier:
        return texts["neutral"]
    return _right_or_wrong(texts, context.earlier[-1].verdict.correct)


def _right_or_wrong(texts: Texts, right: bool) -> str:
    return texts["right" if right else "wrong"]


def _reason(context: TurnContext, texts: Texts) -> str:
    verdict = context.judged
    if verdict.status is Status.NO_ANSWER:
        return texts["no_answer"]
    if verdict.status is Status.UNDECIDED:
        return texts["undecided"]
    if verdict.status is Status.WRONG and verdict.reason == "unevaluated":
        return texts["unevaluated"]
    if verdict.status is Status.WRONG and verdict.answer is not None and not is_readable(verdict.answer):
        return texts["unreadable"]
    return _right_or_wrong(texts, verdict.correct)


def _coin(context: TurnContext) -> bool:
    """Fair, and the same for the same problem, turn and response, so that episodes can be repeated."""
    return derive_seed("feedback", context.problem.id, context.turn, context.response) % 2 == 0


def _with_hint(context: TurnContext, texts: Texts, hints: tuple[str, ...]) -> str:
    said = _right_or_wrong(texts, context.judged.correct)
    if context.judged.correct or not hints:
        return said
    return said + _fill(texts["hint"], hint=hints[min(context.turn, len(hints) - 1)])


def _fill(template: str, **values: str) -> str:
    """Puts values into a template of ours; braces inside a value stay as they are."""
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template
