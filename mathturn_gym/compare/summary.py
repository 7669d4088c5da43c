"""The tables of a comparison, from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from mathturn_gym.compare.cells import Outcome
from mathturn_gym.compare.results import LAST, Results, area, place_of, used_of
from mathturn_gym.compare.statistics import AGGREGATES, aggregate, improvement, seeds_for, shared
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.show.tables import Table

FEW_SEEDS: Final = 5
"""With fewer seeds, interquartile means, profiles and probabilities of improvement say no more than a mean does."""
VIEW_NAMES: Final = {
    "tokens": "at equal tokens (validation split)",
    "total_tokens": "at equal total tokens (validation split)",
    "cpu_s": "at equal CPU seconds (validation split)",
    "test": "final policies (test split)",
}
_UNITS: Final = {"tokens": "tokens", "total_tokens": "total tokens", "cpu_s": "CPU seconds"}
_SHORT: Final = {"tokens": "tokens", "total_tokens": "total tokens", "cpu_s": "CPU s"}
LEVEL: Final = 0.9
EFFECTS: Final = (0.02, 0.05, 0.1)
"""Differences that a next comparison might want to find."""
# A run counts as having used up a budget from here on: it ends with a whole iteration, some end one before.
_USED_UP: Final = 0.98


def task_table(results: Results, task: str, view: str, *, resamples: int, seed: int) -> Table:
    """Returns a task's rows at the budget that all of its finished runs have used, and at their end."""
    names = _figure_names(results, task)
    title, lead = _heading(results, task, view)
    splits = {view: "validation", "test": "test"}
    columns = ["algorithm", "runs", *(f"{split} {name}" for split in splits.values() for name in names)]
    table = Table(title, [*columns, *(f"{_SHORT[each]} used" for each in results.budgets), "ended by"], lead)
    cells = [(each, name) for each in splits for name in names]
    found = {
        label: [_estimate(results, label, view, task, name, resamples, seed) for view, name in cells]
        for label in results.labels
    }
    ranked = _ranked(found, len(names) - 1)
    for label in ranked:
        done = [one for one in results.of(label, task) if one.done]
        marks = table.marks(remarks(results, label, task))
        used = [_spread([used_of(one, each) for one in done], each) for each in results.budgets]
        runs = f"{len(done)}/{len(_seeds(results, task))}"
        table.rows.append([label + marks, runs, *(with_interval(one) for one in found[label]), *used, _endings(done)])
    _mark_best(table, [list(map(_value, found[label])) for label in ranked], offset=2)
    return table


def _heading(results: Results, task: str, view: str) -> tuple[str, str]:
    """Title and sentence of a task's table."""
    test = f"the final policy{_problems(results, task)}. {center(results)} over seeds with its 95 % interval."
    if view == "test":
        return f"{task}, {VIEW_NAMES[view]}", test[0].upper() + test[1:]
    limit, unit = results.limit(task, view), _UNITS[view]
    if limit is None:
        return f"{task} at equal {unit}", "No run has finished: there is no budget that all have used."
    least = f"{limit.cell.label}, seed {limit.cell.seed}"
    lead = f"Validation: at the {unit} that every finished run has used (least: {least}). Test: {test}"
    return f"{task} at {_amount(used_of(limit, view), view)} {unit}", lead


def aggregate_table(results: Results, view: str, *, resamples: int, seed: int) -> Table:
    """Returns interquartile mean, median, mean and optimality gap over all tasks, with intervals over seeds.

    What repeats another column is left out: with two seeds on one task the first three are one number.
    """
    kind = "solved within all turns" if results.figure == LAST else results.figure
    lead = f"Normalized: {kind}, 0 being blind guessing and 1 what can be reached. {_ends(results)}"
    names = sorted(AGGREGATES, key=lambda name: name != center(results))
    table = Table(f"All tasks, {VIEW_NAMES[view]}", ["algorithm", "runs", *names], lead)
    scores = {label: results.normalized(label, view) for label in results.labels}
    complete = results.complete(view)
    found = {
        label: [
            aggregate(scores[label], name, resamples=resamples, seed=seed) if label in complete else None
            for name in names
        ]
        for label in results.labels
    }
    wanted = sum(len(_seeds(results, task)) for task in results.pooled_tasks)
    ranked = _ranked(found)
    for label in ranked:
        marks = table.marks(_aggregate_remarks(results, label, view))
        runs = f"{np.count_nonzero(~np.isnan(scores[label]))}/{wanted}"
        table.rows.append([label + marks, runs, *map(with_interval, found[label])])
    gap = names.index("optimality gap")
    values = [list(map(_value, found[label])) for label in ranked]
    # Of the optimality gap, the smallest is the best.
    _mark_best(table, [[v if c != gap or v is None else -v for c, v in enumerate(r)] for r in values], offset=2)
    table = table.without_repeats(2)
    mean = names.index("mean")
    # Where no score is above 1, the gap is 1 minus the mean: a column that says nothing more.
    if all(abs((row[gap] or 0.0) + (row[mean] or 0.0) - 1) < 1e-9 for row in values if row[mean] is not None):
        table = table.without("optimality gap")
    return table


def improvement_table(results: Results, view: str) -> Table:
    """Returns the probability that a run of the row's algorithm beats one of the column's on the same task."""
    labels = best_first(results, view)
    lead = "P(row > column), ties one half, averaged over tasks; bold where the 95 % interval excludes 0.5."
    table = Table(f"Probability of improvement, {VIEW_NAMES[view]}", ["", *labels], lead)
    for r, x in enumerate(labels):
        row = [x]
        for c, y in enumerate(labels):
            if x == y:
                row.append("")
                continue
            found = improvement(results.normalized(x, view), results.normalized(y, view))
            row.append(with_interval(found, 2))
            if found.low is not None and found.high is not None and not found.low <= 0.5 <= found.high:
                table.best.add((r, c + 1))
        table.rows.append(row)
    return table


def curve_table(results: Results, task: str) -> Table:
    """Returns how fast the rows of a task learn: the area under each curve, and the tokens to a common level."""
    limit, turn = results.limit(task, "tokens"), results.turns(task)
    turn = turn if results.figure == LAST else int(results.figure.removeprefix("acc@"))
    ends = {label: results.scores(label, "tokens", task) for label in results.labels}
    best = max((float(scores.mean()) for scores in ends.values() if scores.size), default=0.0)
    floor, level = results.scale(task)[0], 0.0
    level = floor + LEVEL * (best - floor)
    table = Table(
        f"{task}: speed of learning",
        ["algorithm", "runs", "area under the curve", f"tokens to {level:.3f}", "runs that reach it"],
        f"Validation acc@{turn}. Area: the mean over the tokens that every finished run has used. The level lies"
        f" {LEVEL:g} of the way from blind guessing to the best row's end; tokens are the mean of the runs that reach it.",
    )
    found: dict[str, list[Estimate | None]] = {}
    for label in results.labels:
        done = [one for one in results.of(label, task) if one.done and one.curve]
        areas = [area(one, "tokens", used_of(limit, "tokens"), turn) for one in done] if limit else []
        known = np.array([value for value in areas if value is not None])
        places = [place for one in done if (place := place_of(one, "tokens", level, turn)) is not None]
        found[label] = [aggregate(known[None, :], "mean") if known.size else None]
        tokens = "–" if not places else f"{np.mean(places):,.0f}"
        table.rows.append([label, str(len(done)), with_interval(found[label][0]), tokens, f"{len(places)}/{len(done)}"])
    order = [list(results.labels).index(label) for label in _ranked(found)]
    table.rows[:] = [table.rows[at] for at in order]
    return table


def planning_table(results: Results, reference: str) -> Table:
    """Returns how many seeds the next comparison needs, from the spread of the differences in this one."""
    table = Table(
        f"Seeds to find a difference from {reference}",
        ["algorithm", "task", "seeds here", "deviation of the difference", *(f"for {effect:g}" for effect in EFFECTS)],
        "Final policies, test split. Seeds with which a paired t-test at .05 finds a difference of this size in 80 % of cases.",
    )
    for label in results.labels:
        for task in results.tasks if label != reference else ():
            each = results.by_seed(label, "test", task) - results.by_seed(reference, "test", task)
            each = each[~np.isnan(each)]
            if each.size > 2:
                spread = float(each.std(ddof=1))
                needed = [str(seeds_for(spread, effect)) for effect in EFFECTS]
                table.rows.append([label, task, str(each.size), f"{spread:.3f}", *needed])
    return table


def seed_table(results: Results) -> Table:
    """Returns how alike runs of one seed are, which all rows share."""
    lead = (
        "Runs with one seed have the same problems in the same order, and the same warm start where every seed has its own."
        " Correlation: between two rows over their seeds, the mean of all pairs of rows. Where it is high, rows are to be"
        " compared seed by seed. Test split, seeds that all rows with a score have."
    )
    columns = ["task", "metric", "rows", "seeds", "deviation of a row's runs", "correlation"]
    table = Table("What seeds share", columns, lead)
    for task in results.tasks:
        for name in _figure_names(results, task):
            scores = results.crossed("test", task, name)
            if min(scores.shape) < 2:
                continue
            deviation = float(np.sqrt(scores.var(axis=1, ddof=1).mean()))
            counts = [str(count) for count in scores.shape]
            table.rows.append([task, name, *counts, _three(deviation), _three(shared(scores))])
    return table


def best_first(results: Results, view: str) -> list[str]:
    """Returns the rows that have a score on every task, by their aggregate over all tasks, the best first."""
    scores = {label: results.normalized(label, view) for label in results.complete(view)}
    # Two resamples: the value orders the rows, its interval is not read.
    return _ranked({label: [aggregate(own, center(results), resamples=2)] for label, own in scores.items()})


def cell_table(results: Results) -> Table:
    """Returns every run with its status."""
    used = [_SHORT[axis] for axis in results.budgets]
    columns = ["run", "status", *used, "validation, last", "test acc@1", "test acc@K", "message"]
    table = Table("Every run", columns)
    for one in results.outcomes:
        last = one.curve[-1].figures if one.curve else {}
        turns = results.turns(one.cell.task)
        at_k = results.score(one, "test", LAST) if one.test else None
        table.rows.append(
            [
                str(one.cell),
                one.status,
                *(_amount(used_of(one, axis), axis) for axis in results.budgets),
                " ".join(_three(last[name]) for name in (f"acc@{k}" for k in range(1, turns + 1)) if name in last),
                "" if one.test is None else _three(one.test.get("acc@1")),
                _three(at_k) if at_k is not None else "",
                _short(one.message),
            ]
        )
    return table


def remarks(results: Results, label: str, task: str) -> list[str]:
    """Returns every reason why a row's runs on a task are fewer than its seeds, or not like the others."""
    outcomes = results.of(label, task)
    total = len(_seeds(results, task))
    found = []
    for status, consequence in (
        ("diverged", "counted as 0 from there on, and on the test split"),
        ("failed", "not counted"),
        ("unfinished", "not counted"),
        ("stopped_early", "its last evaluation counts from there on"),
    ):
        those = [one for one in outcomes if one.status == status]
        if those:
            seeds = ", ".join(str(one.cell.seed) for one in those)
            at = f" at {_amount(those[0].tokens, 'tokens')} tokens" if those[0].tokens else ""
            why = f": {_short(those[0].message)}" if those[0].message else ""
            found.append(
                f"{len(those)} of {total} runs {status.replace('_', ' ')} (seed {seeds}{at}{why}): {consequence}"
            )
    there = {one.cell.seed for one in outcomes if one.status != "missing"}
    if missing := sorted(_seeds(results, task) - there):
        found.append(f"not run: seed {', '.join(map(str, missing))}")
    found += _budget_remarks(results, label, task)
    turns, own = results.turns(task), max((_turns(one) for one in outcomes), default=0)
    if 0 < own < turns:
        found.append(f"played with {own} turn{'s' * (own > 1)}: acc@{own} stands for acc@{turns}")
    return found


def _budget_remarks(results: Results, label: str, task: str) -> list[str]:
    """Budgets that differ from other rows', and runs that ended before they had used theirs up."""
    found = []
    for name, unit in (("tokens", "tokens"), ("total_tokens", "total tokens"), ("cpu_seconds", "CPU seconds")):
        others = {getattr(one.cell, name) for one in results.of(None, task)}
        own = {getattr(one.cell, name) for one in results.of(label, task)}
        if len(others) > 1:
            shown = ", ".join(sorted("none" if one is None else f"{one:,}" for one in own))
            found.append(f"unequal budgets on this task: here {shown} {unit}")
    early = [one for one in results.of(label, task) if one.status == "finished" and not _ended_by(one)]
    if early:
        seeds = ", ".join(str(one.cell.seed) for one in early)
        used = f"{_amount(early[0].tokens, 'tokens')} tokens and {_amount(early[0].cpu_s, 'cpu_s')} CPU seconds"
        found.append(f"ended before a budget was used up (seed {seeds}: after {used})")
    return found


def _aggregate_remarks(results: Results, label: str, view: str) -> list[str]:
    empty = [task for task in results.pooled_tasks if not results.scores(label, view, task).size]
    if empty:
        return [f"no score on {', '.join(empty)}: not comparable over all tasks"]
    short = [t for t in results.pooled_tasks if results.scores(label, view, t).size < len(_seeds(results, t))]
    diverged = [t for t in results.pooled_tasks if any(one.status == "diverged" for one in results.of(label, t))]
    found = []
    if short:
        found.append(f"fewer runs than seeds on {', '.join(short)}: see the task's table")
    if diverged:
        found.append(f"diverged runs on {', '.join(diverged)} count as 0")
    return found


def _figure_names(results: Results, task: str) -> list[str]:
    """What a task's tables show: the first turn, and all turns."""
    return [f"acc@{k}" for k in dict.fromkeys((1, results.turns(task)))]


def _problems(results: Results, task: str) -> str:
    """How many different problems the test split's episodes were played on."""
    counts = [one.test["problems"] for one in results.of(None, task) if one.test and "problems" in one.test]
    if not counts:
        return ""
    low, high = f"{min(counts):,.0f}", f"{max(counts):,.0f}"
    return f" on {low if low == high else f'{low} to {high}'} different problems"


def _ends(results: Results) -> str:
    """The tasks with their ends, and those that are left out."""
    shown = [f"{task} ({results.scale(task)[0]:.3g} to {results.scale(task)[1]:.3g})" for task in results.pooled_tasks]
    left_out = [task for task in results.tasks if task not in results.pooled_tasks]
    said = f"Tasks: {', '.join(shown)}." if shown else "No task has a range."
    return said + (f" Left out, for there every policy does the same: {', '.join(left_out)}." if left_out else "")


def _seeds(results: Results, task: str) -> set[int]:
    """Every seed that any row was given on the task."""
    return {one.cell.seed for one in results.of(None, task)}


def _turns(outcome: Outcome) -> int:
    names = outcome.test or (outcome.curve[-1].figures if outcome.curve else {})
    return max((int(name[4:]) for name in names if name.startswith("acc@") and name[4:].isdecimal()), default=0)


def _ended_by(outcome: Outcome) -> str:
    cell = outcome.cell
    if cell.tokens is not None and outcome.tokens >= _USED_UP * cell.tokens:
        return "tokens"
    if cell.total_tokens is not None and (outcome.total_tokens or 0) >= _USED_UP * cell.total_tokens:
        return "total tokens"
    if cell.cpu_seconds is not None and outcome.cpu_s >= _USED_UP * cell.cpu_seconds:
        return "CPU"
    return ""


def _endings(outcomes: Sequence[Outcome]) -> str:
    """`tokens 3, CPU 2`: which budget ended how many of the runs."""
    names = [one.status if one.status != "finished" else _ended_by(one) or "itself" for one in outcomes]
    return ", ".join(f"{name.replace('_', ' ')} {names.count(name)}" for name in dict.fromkeys(names))


def center(results: Results) -> str:
    """Returns how a few runs are summed up: by their interquartile mean, or by their mean where there are few."""
    return "IQM" if len(results.seeds) >= FEW_SEEDS else "mean"


def _estimate(
    results: Results, label: str, view: str, task: str, figure: str, resamples: int, seed: int
) -> Estimate | None:
    scores = results.scores(label, view, task, figure)
    return aggregate(scores[None, :], center(results), resamples=resamples, seed=seed) if scores.size else None


def _ranked(found: Mapping[str, Sequence[Estimate | None]], column: int = 0) -> list[str]:
    """The rows, the largest value of a column first; those without one come last."""
    values = {label: _value(row[column]) for label, row in found.items()}
    known = {label: -np.inf if value is None else value for label, value in values.items()}
    return sorted(known, key=lambda label: known[label], reverse=True)


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _mark_best(table: Table, values: Sequence[Sequence[float | None]], offset: int) -> None:
    """Sets the largest value of each column in bold, where there are several rows."""
    for c in range(len(values[0]) if len(values) > 1 else 0):
        column = [row[c] for row in values]
        known = [value for value in column if value is not None]
        if known:
            table.best |= {(r, c + offset) for r, value in enumerate(column) if value == max(known)}


def with_interval(estimate: Estimate | None, digits: int = 3, sign: str = "") -> str:
    """Returns `0.5 [0.4, 0.6]`, the value alone where there is no interval, or a dash."""
    if estimate is None or estimate.value is None:
        return "–"
    form = f"{sign}.{digits}f"
    if estimate.low is None or estimate.high is None:
        return format(estimate.value, form)
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _spread(values: Sequence[float], axis: str) -> str:
    """The only value, or the smallest and the largest."""
    if not values:
        return "–"
    low, high = _amount(min(values), axis), _amount(max(values), axis)
    return low if low == high else f"{low}–{high}"


def _amount(value: float, axis: str) -> str:
    return f"{value:,.1f}" if axis == "cpu_s" else f"{value:,.0f}"


def _short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= 160 else line[:157] + "..."
