"""The built-in modes: from a verdict to a text.

    plain          right or wrong, in two sentences
    none           neutral: does not say which
    reason         why it is not right: no answer, not readable, not worked out, wrong, undecided
    graded         what of a number, tuple or list is wrong: sign, size, digits, elements
    hint           plain, and the problem's next hint
    above-below    plain, and whether the right number is above or below a wrong one
    tool           plain, and the value of the response's own last calculation

Controls, to see whether a policy listens:

    random         right or wrong by a coin
    flipped        right for wrong and wrong for right
    delayed        what was true of the turn before
    hint-flipped   hints that lie
    hint-random    hints of which half lie
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from mathturn_gym.env.feedback._calculator import last_calculation
from mathturn_gym.env.feedback._registry import TEXTS, Texts, feedback_mode
from mathturn_gym.errors import check_float
from mathturn_gym.seeding import derive_seed, uniforms
from mathturn_gym.types import Status, TurnContext
from mathturn_gym.verifier import answer_key, is_readable, literal_value

_BRACKETS = {"(": ")", "[": "]"}
_WHOLE: Final = re.compile(r"-?\d{1,18}")


def grade(answer: str, gold: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """Sentences about a wrong answer; none where there is nothing to compare.

    Of a number: its sign, or else its size, a factor above ten, and how many of its digits stand where they should (for
    whole numbers of the same length, of two digits or more). Of a tuple or list: how many elements there should be, or
    else which are right. Only the first accepted answer is looked at.

    >>> from mathturn_gym.env.feedback._registry import TEXTS
    >>> grade("-41", ["42"], TEXTS["en"]), grade("41", ["42"], TEXTS["en"])
    (['Its sign is wrong.'], ['It is too small in size.', '1 of its 2 digits are right.'])
    >>> grade("(1, 3)", ["(1, 2)"], TEXTS["en"])
    ['These of its elements are right: 1.']
    """
    ours, theirs = _elements(answer), _elements(gold[0])
    if theirs is not None and len(theirs) > 1:
        return _tuple(ours or [answer], theirs, texts)
    value, wanted = literal_value(answer), literal_value(gold[0])
    return [] if value is None or wanted is None else _number(value, wanted, texts)


def _number(value: Fraction, wanted: Fraction, texts: Mapping[str, str]) -> list[str]:
    if value * wanted < 0:
        return [texts["sign"]]
    if abs(value) == abs(wanted):
        return []
    said = [texts["small" if abs(value) < abs(wanted) else "large"]]
    low, high = sorted((abs(value), abs(wanted)))
    if low and high > 10 * low:
        said.append(texts["far"])
    if value.denominator == wanted.denominator == 1:
        digits, goal = str(abs(int(value))), str(abs(int(wanted)))
        if len(digits) == len(goal) > 1:
            right = sum(a == b for a, b in zip(digits, goal, strict=True))
            said.append(texts["digits"].replace("{right}", str(right)).replace("{count}", str(len(goal))))
    return said


def _tuple(ours: Sequence[str], theirs: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    if len(ours) != len(theirs):
        return [texts["count"].replace("{count}", str(len(theirs)))]
    right = [
        str(k) for k, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1) if answer_key(a) == answer_key(b)
    ]
    return [texts["elements"].replace("{which}", ", ".join(right))] if right else [texts["no_element"]]


def _elements(text: str) -> list[str] | None:
    """The elements of a flat tuple or list; None for anything else."""
    text = text.replace(r"\left", "").replace(r"\right", "").strip()
    if len(text) > 1 and _BRACKETS.get(text[0]) == text[-1]:
        text = text[1:-1]
    if "," not in text or any(bracket in text for bracket in "()[]{}"):
        return None
    return [part.strip() for part in text.split(",")]


# ---- the modes


@feedback_mode("plain")
def plain(context: TurnContext, texts: Texts) -> str:
    """Right or wrong; undecided and no answer count as wrong."""
    return texts["right" if context.judged.correct else "wrong"]


@feedback_mode("none")
def none(context: TurnContext, texts: Texts) -> str:
    """The same sentence whatever the verdict."""
    return texts["neutral"]


@feedback_mode("reason")
def reason(context: TurnContext, texts: Texts) -> str:
    """The reason why the answer does not count; nothing about the right one."""
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


@dataclass(frozen=True)
class AboveBelow:
    """`plain`, and after a wrong whole number whether the right one is above or below it.

    The hint answers what was asked: which answer to give is also a question of what its hint is worth.

    Args:
        lies: Share of the hints that say the opposite; each turn of each episode has a draw of its own.

    >>> AboveBelow(lies=0.1)
    AboveBelow(lies=0.1)
    """

    lies: float = 0.0

    def __post_init__(self) -> None:
        """Checks the share."""
        check_float("lies", self.lies, low=0.0, high=1.0)

    def __call__(self, context: TurnContext) -> str:
        """The text for a judged turn."""
        return self.write(context, TEXTS["en"])

    def write(self, context: TurnContext, texts: Texts) -> str:
        """The text in a language."""
        said = _right_or_wrong(texts, context.judged.correct)
        said_number, wanted = (_whole(text) for text in (context.judged.answer, context.problem.gold[0]))
        if context.judged.correct or said_number is None or wanted is None or said_number == wanted:
            return said
        lie = uniforms(derive_seed("above-below", context.episode_seed, context.turn), 1)[0] < self.lies
        side = texts["above" if (wanted > said_number) != lie else "below"]
        return said + _fill(texts["hint"], hint=_fill(side, number=str(said_number)))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


@feedback_mode("above-below")
def above_below(context: TurnContext, texts: Texts) -> str:
    """`plain`, and after a wrong whole number whether the right one is above or below it (`AboveBelow` lies at times)."""
    return AboveBelow().write(context, texts)


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
