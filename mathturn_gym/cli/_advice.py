"""What an evaluation warns of, and what to change: answers that were cut off, and turns without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mathturn_gym.types import Episode, Status

if TYPE_CHECKING:
    from mathturn_gym.env.config import EnvConfig


_MANY: Final = 0.05  # share of the turns from which on a warning is due

_ASK: Final = r"--prompt-template '{problem} Put the final answer in \boxed{}.'"


def advice(episodes: Sequence[Episode], read_again: Sequence[Episode] | None, config: EnvConfig) -> list[str]:
    """Warnings, each with what to change; `read_again` is what `metrics.read_leniently` makes of the episodes."""
    turns = sum(episode.num_turns for episode in episodes)
    found = [_cut_off(episodes, turns, config), _no_answer(episodes, read_again, turns, config)]
    return [warning for warning in found if warning is not None]


def _cut_off(episodes: Sequence[Episode], turns: int, config: EnvConfig) -> str | None:
    """Answers that their budget ended."""
    budget = int(config.value("max_completion_tokens"))
    cut = [(episode, k) for episode in episodes for k, flag in enumerate(episode.turn_truncated) if flag]
    if len(cut) <= _MANY * turns:
        return None
    said = f"{len(cut) / turns:.0%} of {turns:,} turns were cut off by their budget of {budget} tokens"
    shorter = sum(bool(episode.budgets) and episode.budgets[k] < budget for episode, k in cut)
    # A budget below the one asked for: the context was nearly full, and a larger budget would not help.
    if 2 * shorter > len(cut):
        return f"{said}, most of them because the context was full: raise --max-context-tokens, or take fewer turns"
    # An answer that was cut off inside a thought never began.
    thinking = sum(bool(episode.responses) and _is_thinking(episode.responses[k]) for episode, k in cut)
    change = f"raise --max-completion-tokens, to {4 * budget} say"
    if 2 * thinking > len(cut):
        change += (
            ", or switch thoughts off where the chat template can, as in --chat-template-kwargs"
            """ '{"enable_thinking": false}' (most were cut off inside a thought)"""
        )
    return f"{said}: {change}"


def _no_answer(
    episodes: Sequence[Episode], read_again: Sequence[Episode] | None, turns: int, config: EnvConfig
) -> str | None:
    """Turns in which no answer was found; those that were cut off are another matter, which is said above."""
    # Cut-off turns are left out: their missing answer has another cause and another cure.
    silent = [
        (i, k)
        for i, episode in enumerate(episodes)
        for k, verdict in enumerate(episode.verdicts)
        if verdict.status is Status.NO_ANSWER and not episode.turn_truncated[k]
    ]
    if len(silent) <= _MANY * turns:
        return None
    said = f"{len(silent) / turns:.0%} of {turns:,} turns ended by themselves and have no answer"
    if read_again is not None:
        found = [read_again[i].verdicts[k] for i, k in silent]
        has = sum(verdict.status is not Status.NO_ANSWER for verdict in found)
        right = sum(verdict.correct for verdict in found)
        said += f" that is marked (the last number or formula of {has} is an answer, of {right} the right one)"
    asked = " ".join(str(config.value(name) or "") for name in ("prompt_template", "system_prompt"))
    # A policy that was not asked for a form cannot be blamed for another one.
    if "\\boxed" not in asked:
        return f"{said}: the prompt asks for no mark; {_ASK} does"
    return (
        f"{said}, though the prompt asks for a box: this policy does not know the form. Read the lenient figures,"
        " or let --verifier lenient look for answers in the text; training learns the form soon"
    )


def _is_thinking(response: str) -> bool:
    return response.rfind("<think>") > response.rfind("</think>")
