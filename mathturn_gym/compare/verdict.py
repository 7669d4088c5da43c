"""Which row of a comparison is better: paired differences over seeds, and the verdict in words.

    results ─► paired_differences ─► difference_table   rows, their scores, and what each differs by from the reference
                                 └─► verdict            sentences, the first thing that a report says

A difference counts as shown where its p-value, corrected for the number of differences looked at, is at most .05.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from mathturn_gym.compare.cells import Outcome
from mathturn_gym.compare.results import LAST, Results
from mathturn_gym.compare.statistics import Floats, PairedDifference, difference, holm
from mathturn_gym.compare.summary import best_first, remarks, with_interval
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.show.tables import Table

ALL_TASKS: Final = "all tasks"
_LEVEL: Final = 0.05
_MOST_NAMED: Final = 4
_MOST_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences of all rows from one of them, on final policies (test split)."""

    reference: str  # the row that is subtracted from
    chosen: bool  # the user named it; otherwise it is the best row
    labels: Sequence[str]  # the other rows, the best first
    columns: Sequence[str]  # the tasks, and `ALL_TASKS` where there are several
    found: Mapping[tuple[str, str], PairedDifference]  # by label and column
    # p-values by label and column, corrected for `looked_at` (see `holm`); those that are known.
    corrected: Mapping[tuple[str, str], float]
    # Number of differences with a p-value: against the reference where the user named it; of all pairs of rows where
    # the best was chosen by its results, since that choice has looked at them all.
    looked_at: int

    def shown(self, label: str, column: str) -> bool:
        """True where a row differs from the reference by more than chance explains."""
        return self.corrected.get((label, column), 1.0) <= _LEVEL


def paired_differences(results: Results, against: str | None = None) -> Differences | None:
    """Returns how all rows differ from one (the best by default), seed by seed; None where no two rows have a score."""
    columns = [*results.tasks, *([ALL_TASKS] if len(results.pooled_tasks) > 1 else [])]
    scores = {(label, column): _scores(results, label, column) for label in results.labels for column in columns}
    ranked = best_first(results, "test")
    rest = [label for label in results.labels if label not in ranked]
    ranked += [label for label in rest if not all(np.isnan(scores[label, task]).all() for task in results.tasks)]
    if len(ranked) < 2 and against is None:
        return None
    reference = ranked[0] if against is None else against
    labels = list(dict.fromkeys(label for label in (*ranked, *rest) if label != reference))
    pairs = [(label, reference) for label in labels]
    # The best row was chosen by its results, which has looked at every pair.
    if against is None:
        pairs += list(combinations(labels, 2))
    every = {
        (label, other, column): difference(scores[label, column], scores[other, column])
        for label, other in pairs
        for column in columns
        if scores[label, column].size and scores[other, column].size
    }
    # Two families: the tasks one by one, and all of them together.
    p_values = {key: one.p_value for key, one in every.items() if key[2] != ALL_TASKS}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    pooled = {key: one.p_value for key, one in every.items() if key[2] == ALL_TASKS}
    corrected |= dict(zip(pooled, holm(list(pooled.values())), strict=True))
    return Differences(
        reference,
        against is not None,
        labels,
        columns,
        {(label, column): one for (label, other, column), one in every.items() if other == reference},
        {(key[0], key[2]): p for key, p in corrected.items() if key[1] == reference and p is not None},
        sum(p is not None for p in p_values.values()),
    )


def _scores(results: Results, label: str, column: str) -> Floats:
    if column == ALL_TASKS:
        return results.normalized(label, "test")
    return results.by_seed(label, "test", column)[None, :]


def difference_table(results: Results, found: Differences) -> Table:
    """Returns the one table of a comparison: each row's score on each task, and its difference from the reference."""
    reference = found.reference
    chosen = "" if found.chosen else ", the best row,"
    lead = (
        f"Final policies, test split: means over seeds, and differences from {reference}{chosen} of runs with the same seed,"
        " with Student's 95 % interval."
    )
    if found.looked_at:
        lead += (
            f" Bold: p at most {_LEVEL:g} after correction for {found.looked_at} differences (Holm)."
            if found.looked_at > 1
            else f" Bold: p at most {_LEVEL:g}."
        )
    if ALL_TASKS in found.columns:
        lead += f" {ALL_TASKS.capitalize()}: the mean over tasks, 0 being blind guessing and 1 what can be reached."
    columns = ["algorithm", "seeds"]
    for column in found.columns:
        columns += [f"{column}, {figure_of(results, column)}", "difference"]
    table = Table(f"Differences from {reference}", columns, lead)
    for r, label in enumerate((reference, *found.labels)):
        several = len(results.tasks) > 1
        notes = [
            f"{task}: {note}" if several else note for task in results.tasks for note in remarks(results, label, task)
        ]
        if len(results.tasks) == 1 and _same(results, label, found):
            notes.insert(0, f"each run scores exactly what {reference}'s with the same seed does")
        pairs = [one.difference.count for column in found.columns if (one := found.found.get((label, column)))]
        row = [label + table.marks(notes), "" if label == reference else f"{min(pairs, default=0):.0f}"]
        for column in found.columns:
            scores = _scores(results, label, column)
            per_seed = scores.mean(axis=0)
            known = per_seed[~np.isnan(per_seed)]
            row.append(f"{known.mean():.3f}" if known.size else "–")
            one = found.found.get((label, column))
            row.append("" if label == reference else with_interval(one.difference if one else None, sign="+"))
            if found.shown(label, column):
                table.best.add((r, len(row) - 1))
        table.rows.append(row)
    return table


def brief_table(table: Table, width: int) -> Table:
    """Returns as much of `difference_table` as a terminal shows at once.

    Where it is too wide, the columns of single tasks are left out; of many rows, the best are kept.
    """
    wide = sum(max(map(len, column)) + 2 for column in zip(table.columns, *table.rows, strict=True))
    kept = [0, 1, len(table.columns) - 2, len(table.columns) - 1] if wide > width else range(len(table.columns))
    rows = table.rows[:_MOST_LINES]
    more = len(table.rows) - len(rows)
    notes = table.notes[:_MOST_NAMED] if len(table.notes) > _MOST_NAMED + 1 else table.notes
    return Table(
        "",
        [table.columns[c] for c in kept],
        "",
        [[row[c] for c in kept] for row in rows],
        [*notes, *([f"and {more} more rows"] if more else [])],
        {(r, list(kept).index(c)) for r, c in table.best if c in kept and r < len(rows)},
    )


def verdict(results: Results, found: Differences | None) -> list[str]:
    """Returns what a comparison has shown, in sentences: the first task by task, then over all tasks, then what is missing."""
    lost: dict[str, list[Outcome]] = {}
    for one in results.outcomes:
        if one.status not in ("finished", "stopped_early"):
            lost.setdefault(one.status, []).append(one)
    words = [f"{len(those)} {status}" for status, those in lost.items()]
    missing = [f"Of {len(results.outcomes)} runs, {', '.join(words)}: the tables say which."] if words else []
    if found is None:
        return ["No two rows have a result that can be compared.", *missing]
    sentences = [_sentence(results, found, column) for column in found.columns]
    if ALL_TASKS in found.columns:
        sentences = [sentences[-1], *sentences[:-1]]
    return [*sentences, *_limits(found), *missing]


def _sentence(results: Results, found: Differences, column: str) -> str:
    """What is known on one task, or over all."""
    kinds: dict[str, list[str]] = {"ahead": [], "behind": [], "unclear": [], "unknown": []}
    for label in found.labels:
        one = found.found.get((label, column))
        if one is None or one.difference.value is None:
            continue
        kind = "ahead" if one.difference.value < 0 else "behind"
        kind = "unknown" if one.p_value is None else kind if found.shown(label, column) else "unclear"
        kinds[kind].append(label)
    metric = "normalized score" if column == ALL_TASKS else figure_of(results, column)
    seeds = {one.difference.count for label in found.labels if (one := found.found.get((label, column)))} - {0}
    count = f"{max(seeds, default=0):.0f} seed{'s' * (max(seeds, default=0) != 1)}"
    # The reference's lead is the other row's difference with its sign turned.
    said_of = {
        "ahead": ("is ahead of {}", -1),
        "behind": ("is behind {}", 1),
        "unclear": ("is not distinguishable from {}", -1),
        "unknown": ("differs from {}, of which the spread between seeds is not known", -1),
    }
    parts = [
        words.format(_named(found, column, kinds[kind], sign)) for kind, (words, sign) in said_of.items() if kinds[kind]
    ]
    if not parts:
        return f"On {column} no two rows have a result that can be compared."
    said = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{found.reference} {said} on {column} ({metric}, {count})."


def _named(found: Differences, column: str, labels: Sequence[str], sign: int) -> str:
    """`grpo by 0.143 [0.093, 0.193], rloo by …`."""
    shown = []
    for label in labels[:_MOST_NAMED]:
        one = found.found[label, column].difference
        assert one.value is not None
        ends = "" if one.low is None or one.high is None else f" [{_ends(one, sign)}]"
        by = "" if not found.shown(label, column) else "by "
        value = sign * one.value + 0.0  # -0.0 is 0
        shown.append(f"{label} {by}{value:.3f}{ends}" if by else f"{label} ({value:+.3f}{ends})")
    more = len(labels) - _MOST_NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _ends(one: Estimate, sign: int) -> str:
    assert one.low is not None
    assert one.high is not None
    low, high = sorted((sign * one.low, sign * one.high))
    return f"{low:.3f}, {high:.3f}"


def _limits(found: Differences) -> list[str]:
    """How large a difference must be to be seen with this many seeds."""
    widths: dict[float, list[float]] = {}
    for column in found.columns:
        for label in found.labels:
            one = found.found.get((label, column))
            if column != ALL_TASKS and one and one.difference.low is not None and one.difference.high is not None:
                widths.setdefault(one.difference.count, []).append((one.difference.high - one.difference.low) / 2)
    if not widths:
        return ["One run a row shows no difference: nothing is known of the spread between seeds."]
    seeds = max(widths)
    smallest = float(np.median(widths[seeds]))
    return [f"With {seeds:.0f} seeds, differences below about {smallest:.2g} cannot be shown."]


def figure_of(results: Results, column: str) -> str:
    """Returns the metric of a column of the table: `acc@3`, or what is pooled over all tasks."""
    if column == ALL_TASKS:
        return "normalized"
    return f"acc@{results.turns(column)}" if results.figure == LAST else results.figure


def _same(results: Results, label: str, found: Differences) -> bool:
    if label == found.reference:
        return False
    pairs = [(_scores(results, label, t)[0], _scores(results, found.reference, t)[0]) for t in results.tasks]
    both = [~np.isnan(x) & ~np.isnan(y) for x, y in pairs]
    return all(at.any() and np.array_equal(x[at], y[at]) for (x, y), at in zip(pairs, both, strict=True))
