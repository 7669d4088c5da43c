"""Signs of reward hacking and collapse, seen while a run trains: one warning for each kind.

The last `WINDOW` turns are compared with the first ones of the run. A warning stops nothing: it says what to look at.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from mathturn_gym.types import Episode, Verdict

_LOG = logging.getLogger(__name__)

WINDOW: Final = 256
"""Turns that are compared; the standard error of a share of them is at most .03."""

_UNLIKE: Final = 8  # different problems, or accepted answers, among which one answer is suspicious
_FACTOR: Final = 2.0  # of the length of turns
_FALL: Final = 0.1  # of the share of right answers
_RISE: Final = 0.25  # of the mean reward, in standard deviations of the first rewards
_MOST: Final = 0.5  # share of the turns, or of the right answers
_FEWEST_RIGHT: Final = 32  # with fewer right answers, shares of them say nothing
# Tiers and rules that a policy should move to: answers that are marked, and equal as texts.
_PLAIN: Final = ("exact", "box", "tag", "answer")


class _Seen(NamedTuple):
    problem: str
    tokens: int
    reward: float
    verdict: Verdict


class AlarmWatch:
    """Logs a warning, once each, for five signs in the episodes of a run.

    - one answer given to most of the problems, mostly wrong: the policy has collapsed;
    - one answer accepted where the accepted answers differ: the verifier is being fooled;
    - rewards that rise while right answers become fewer: something else than the verdict is rewarded;
    - right answers that are now decided by another tier or found by another rule, which may be too lenient;
    - turns that have become twice or half as long, with no more right answers.
    """

    def __init__(self) -> None:
        self._first: list[_Seen] = []
        self._last: deque[_Seen] = deque(maxlen=WINDOW)
        self._said: set[str] = set()

    def see(self, episodes: Iterable[Episode]) -> None:
        """Takes the episodes of an iteration, and logs what they show for the first time."""
        for episode in episodes:
            lengths = (episode.turn_spans[:, 1] - episode.turn_spans[:, 0]).tolist()
            for tokens, reward, verdict in zip(lengths, episode.rewards.tolist(), episode.verdicts, strict=True):
                seen = _Seen(episode.problem_id, tokens, reward, verdict)
                (self._first if len(self._first) < WINDOW else self._last).append(seen)
        if len(self._last) == WINDOW:
            for kind, text in _alarms(self._first, list(self._last)):
                if kind not in self._said:
                    self._said.add(kind)
                    _LOG.warning("in the last %d turns %s", WINDOW, text)


def _alarms(first: Sequence[_Seen], last: Sequence[_Seen]) -> Iterator[tuple[str, str]]:
    """Kind and text of each sign."""
    given: defaultdict[str, list[_Seen]] = defaultdict(list)
    for one in last:
        if one.verdict.answer is not None:
            given[one.verdict.answer].append(one)
    for answer, turns in given.items():
        right = [one.verdict.gold for one in turns if one.verdict.correct]
        problems = len({one.problem for one in turns})
        if len(turns) > _MOST * len(last) and len(right) < _MOST * len(turns) and problems >= _UNLIKE:
            yield (
                "collapse",
                f"the policy gave the answer {answer[:40]!r} to {problems} problems, mostly wrong: collapse?",
            )
        golds = len(set(right))
        if golds >= _UNLIKE:
            yield (
                "accepted",
                (
                    f"the answer {answer[:40]!r} was right for {golds} different accepted answers: read these verdicts, the"
                    " policy may have found a hole in the verifier"
                ),
            )
    was, now = _share_right(first), _share_right(last)
    rewards, before = (np.array([one.reward for one in turns]) for turns in (last, first))
    if now < was - _FALL and rewards.mean() > before.mean() + _RISE * before.std():
        yield (
            "reward",
            (
                f"rewards rose from {before.mean():.2f} to {rewards.mean():.2f} a turn, while right answers fell from"
                f" {was:.2f} to {now:.2f}: a reward term other than the verdict dominates"
            ),
        )
    tokens, long = (float(np.mean([one.tokens for one in turns])) for turns in (last, first))
    if now <= was and not long / _FACTOR <= tokens <= long * _FACTOR:
        yield "length", f"a turn has {tokens:.0f} tokens, at first {long:.0f}, and no more of them are right than then"
    then = _deciders(first)
    for name, share in _deciders(last).items() if then else ():
        if name not in _PLAIN and share - then.get(name, 0.0) > _MOST:
            yield (
                "decider",
                (
                    f"{name!r} decided {100 * share:.0f} % of the right answers, at first {100 * then.get(name, 0.0):.0f} %:"
                    " read some of them (tiers and rules: docs/verifier.md)"
                ),
            )


def _share_right(turns: Sequence[_Seen]) -> float:
    return sum(one.verdict.correct for one in turns) / len(turns)


def _deciders(turns: Sequence[_Seen]) -> dict[str, float]:
    """Share of the right answers that each tier decided and each rule found; empty where too few are right."""
    right = [one.verdict for one in turns if one.verdict.correct]
    if len(right) < _FEWEST_RIGHT:
        return {}
    counts = Counter(name for one in right for name in (one.tier, one.rule) if name is not None)
    return {name: count / len(right) for name, count in counts.items()}
