"""`summarize` and `compare`: episodes in, figures with intervals out, of one policy and of two on the same problems."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mathturn_gym.base.display import displayed
from mathturn_gym.episodes.metrics.figures import QUESTIONS, Counts, count_by_problem, facts
from mathturn_gym.episodes.metrics.intervals import (
    Bounds,
    Difference,
    Estimate,
    Floats,
    check_confidence,
    difference_estimate,
    ratio_estimate,
)
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode, Status, Verdict
from mathturn_gym.verifier import Verifier


def read_leniently(episodes: Sequence[Episode], verifier: Verifier | None = None) -> list[Episode]:
    """The episodes, with answers also where none was marked: the last formula or number of such a turn counts.

    Turns that have an answer keep their verdict. So accuracy can only rise, and what it rises by is what the policy
    knows and does not say in the form that was asked for. The episodes are those that were played: where the
    environment took a turn for one without an answer, it went on.

    Args:
        episodes: With texts and gold answers (`gold_in_info=True`).
        verifier: Reads what has no answer; None is `Verifier(extract="lenient")`.

    Raises:
        InvalidValueError: an episode without texts or without a gold answer.

    >>> read_leniently([])
    []
    """
    found = [list(episode.verdicts) for episode in episodes]
    open_turns = [
        (i, k)
        for i, verdicts in enumerate(found)
        for k, verdict in enumerate(verdicts)
        if verdict.status is Status.NO_ANSWER
    ]
    # Refused before the first text is read: nothing is judged twice.
    for i in {i for i, _ in open_turns}:
        if not (episodes[i].responses and episodes[i].gold):
            raise InvalidValueError(
                f"episode {episodes[i].index} has no texts or no gold answer to read again: collect with gold_in_info=True"
            )
    # Only turns without an answer are read again: a marked answer is what the policy chose to say.
    reader = Verifier(extract="lenient") if verifier is None else verifier
    responses = [episodes[i].responses[k] for i, k in open_turns]
    again: list[Verdict] = reader.verify_batch(responses, [episodes[i].gold for i, _ in open_turns])
    for (i, k), verdict in zip(open_turns, again, strict=True):
        found[i][k] = verdict
    return [
        dataclasses.replace(episode, verdicts=tuple(verdicts))
        for episode, verdicts in zip(episodes, found, strict=True)
    ]


# ---- `summarize`: episodes in, figures with intervals out, overall and per family and level


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a set of episodes (`metrics.MEANING` says what each is).

    Args:
        episodes: How many.
        problems: On how many different problems; the intervals are made of these.
        turns: The most turns that an episode had, T.
        confidence: Of the intervals.
        figures: By name: `acc@1` … `acc@T`, and the others.
        stop_reasons: Episodes by why they ended ("none": cut short by their user).
        verdicts: Turns by status.
        by: The same per value of a metadata key: `report.by["family"]["lins"]`.
    """

    episodes: int
    problems: int
    turns: int
    confidence: float
    figures: Mapping[str, Estimate]
    stop_reasons: Mapping[str, int]
    verdicts: Mapping[str, int]
    by: Mapping[str, Mapping[str, Report]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Estimate:
        """The figure `name`."""
        return self.figures[name]

    def __repr__(self) -> str:
        """`Report(64 episodes on 16 problems: acc@1 0.250 [0.145, 0.383], acc@4 0.500 [0.352, 0.648])`."""
        names = dict.fromkeys(("acc@1", f"acc@{self.turns}"))
        shown = ", ".join(f"{name} {self.figures[name]}" for name in names if name in self.figures)
        return f"Report({self.episodes} episodes on {self.problems} problems{f': {shown}' if shown else ''})"

    def by_question(self) -> dict[str, list[str]]:
        """The names of the figures that have a value, by the question that they answer (`metrics.figures.QUESTIONS`).

        >>> summarize([]).by_question()
        {}
        """
        known = [name for name, figure in self.figures.items() if figure.value is not None]
        names = {
            question: [name for stem in stems for name in known if stem == re.sub("@.*", "@k", name)]
            for question, stems in QUESTIONS.items()
        }
        return {question: found for question, found in names.items() if found}

    def _repr_html_(self) -> str:
        return displayed("report", self)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "episodes": self.episodes,
            "problems": self.problems,
            "turns": self.turns,
            "confidence": self.confidence,
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
            "stop_reasons": dict(self.stop_reasons),
            "verdicts": dict(self.verdicts),
            "by": {key: {value: r.to_dict() for value, r in parts.items()} for key, parts in self.by.items()},
        }


def summarize(
    episodes: Sequence[Episode], *, confidence: float = 0.95, by: Sequence[str] = ("family", "level")
) -> Report:
    """The figures of a set of episodes, with intervals (see `metrics.intervals`).

    Episodes on the same problem count as one problem with several episodes. An episode without a turn (its prompt did not
    fit) counts as unsolved. Figures of independent samples (`pass@k` and those built on it) take the first turns of the
    episodes that share a problem, so they need groups: `collect(…, group_size=8)`.

    Args:
        episodes: Any number.
        confidence: Of the intervals, in (0, 1).
        by: Metadata keys to report by as well, where the episodes have more than one value of them.

    Raises:
        InvalidValueError: an argument outside what is allowed.

    >>> summarize([]).figures["turns"].value is None
    True
    """
    check_confidence(confidence)
    known = [facts(episode) for episode in episodes]
    counts = count_by_problem(known)
    estimates = [
        ratio_estimate(
            counts.tops_CF[:, f],
            counts.bottoms_CF[:, f],
            counts.bounds[f],
            units=counts.units[f],
            confidence=confidence,
        )
        for f in range(len(counts.names))
    ]
    return Report(
        episodes=len(known),
        problems=len(counts.problem_ids),
        turns=counts.turns,
        confidence=confidence,
        figures=dict(zip(counts.names, estimates, strict=True)),
        stop_reasons=dict(Counter("none" if e.stop_reason is None else e.stop_reason.value for e in episodes)),
        verdicts=dict(Counter(status.value for fact in known for status in fact.statuses)),
        by={
            key: {
                value: summarize(part, confidence=confidence, by=())
                for value, part in sorted(parts.items(), key=_in_order)
            }
            for key, parts in ((key, _parts(episodes, key)) for key in by)
            if len(parts) > 1
        },
    )


def _in_order(part: tuple[str, Any]) -> tuple[bool, float, str]:
    """Numbers by their size, before all other values."""
    value = part[0]
    number = value.removeprefix("-").isdecimal()
    # Levels sort as 2 before 10, families as words.
    return not number, float(value) if number else 0.0, value


def _parts(episodes: Sequence[Episode], key: str) -> dict[str, list[Episode]]:
    """The episodes by the value that their metadata has for `key`; those that have none are left out."""
    parts: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        if key in episode.metadata:
            parts[str(episode.metadata[key])].append(episode)
    return parts


# ---- `compare`: two policies on the same problems, paired differences with intervals and p-values


@dataclass(frozen=True, slots=True)
class Comparison:
    """All metrics that both policies have.

    Args:
        problems: Problems that both were tried on; only these count.
        only_a: Problems of the first alone.
        only_b: Problems of the second alone.
        confidence: Of the intervals.
        figures: By name.
    """

    problems: int
    only_a: int
    only_b: int
    confidence: float
    figures: Mapping[str, Difference]

    def __repr__(self) -> str:
        """`Comparison(16 problems, b - a: acc@1 0.125 [-0.020, 0.271], …)`."""
        shown = ", ".join(f"{name} {one.difference}" for name, one in self.figures.items() if name.startswith("acc@"))
        return f"Comparison({self.problems} problems, b - a: {shown})"

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            "problems": self.problems,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "confidence": self.confidence,
            "figures": {name: figure.to_dict() for name, figure in self.figures.items()},
        }


def compare(a: Sequence[Episode], b: Sequence[Episode], *, confidence: float = 0.95) -> Comparison:
    """Compares two policies on the problems that both were tried on.

    Intervals and p-values are paired by problem and come from one statistic (see `metrics.intervals`), so that an interval
    excludes 0 where its p-value is small. A permutation test of the plain difference is not used: two policies that differ
    in how many of their episodes a conditional metric is about may not change places, even where the metric is equal.

    Args:
        a: Episodes of the first policy.
        b: Episodes of the second.
        confidence: Of the intervals, in (0, 1).

    Raises:
        InvalidValueError: no problem in common, or an argument outside what is allowed.
    """
    check_confidence(confidence)
    ids_a, ids_b = {e.problem_id for e in a}, {e.problem_id for e in b}
    common = ids_a & ids_b
    if not common:
        raise InvalidValueError(
            f"the policies have no problem in common ({len(ids_a)} and {len(ids_b)} problems): evaluate both with the same"
            " problems, seed and number of episodes"
        )
    known = [[facts(e) for e in episodes if e.problem_id in common] for episodes in (a, b)]
    # Both are counted over the same number of turns, or acc@4 of one would have no partner.
    turns = max(len(fact.right) for part in known for fact in part)
    counts = [count_by_problem(part, turns) for part in known]
    order = sorted(common)
    names = [name for name in counts[0].names if name in counts[1].names]
    tops, bottoms = (np.stack([_aligned(c, part, order, names) for c in counts]) for part in ("tops_CF", "bottoms_CF"))
    bounds = dict(zip(counts[0].names, counts[0].bounds, strict=True))
    wider = dict(zip(counts[1].names, counts[1].bounds, strict=True))
    # A metric may have other bounds for each policy, where they had different numbers of turns.
    both = [_both(bounds[name], wider[name]) for name in names]
    figures = {}
    for f, name in enumerate(names):
        found = difference_estimate(tops[:, :, f], bottoms[:, :, f], both[f], confidence=confidence)
        if found.difference.value is not None:
            figures[name] = found
    return Comparison(len(common), len(ids_a - common), len(ids_b - common), confidence, figures)


def _both(a: Bounds, b: Bounds) -> Bounds:
    """Bounds that hold for both."""
    low, high = zip(a, b, strict=True)
    return (
        None if low[0] is None or low[1] is None else min(low[0], low[1]),
        None if high[0] is None or high[1] is None else max(high[0], high[1]),
    )


def _aligned(counts: Counts, part: str, order: Sequence[str], names: Sequence[str]) -> Floats:
    """Rows in the order of `order`, columns in that of `names`."""
    rows = {problem_id: i for i, problem_id in enumerate(counts.problem_ids)}
    columns = {name: i for i, name in enumerate(counts.names)}
    values: Floats = getattr(counts, part)
    return values[np.ix_([rows[problem_id] for problem_id in order], [columns[name] for name in names])]
