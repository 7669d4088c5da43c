"""Feedback in the user's own words."""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter
from typing import Final

from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.types import Status, TurnContext

__all__ = ["TemplateFeedback"]

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
        chosen = {
            Status.RIGHT: self.right,
            Status.NO_ANSWER: self.no_answer,
            Status.UNDECIDED: self.undecided,
        }.get(verdict.status)
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
