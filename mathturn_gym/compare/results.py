"""What the runs of a comparison have scored, at equal tokens, at equal CPU seconds, and at their end.

Four *views* of the same runs:

    tokens         accuracy on the validation split at the environment tokens that every finished run of the task has used
    total_tokens   the same at all tokens of the episodes, with prompts and feedback; not where a run has not counted them
    cpu_s          the same at the CPU seconds of training that every finished run of the task has used
    test           accuracy of the final policy on the test split

Where no run was evaluated on the way, there is only the last.

Between two evaluations a run's accuracy is interpolated linearly: runs are evaluated every few iterations, whose lengths
differ by algorithm, and a run that is evaluated more often must not win by that. After its last evaluation a run
keeps that accuracy. A run that diverged (its loss or weights were no longer finite) counts as 0 from there on, and on
the test split: there is no policy left to use. A run that failed, was interrupted or is missing has no score; every
table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mathturn_gym.compare.cells import Outcome, Point
from mathturn_gym.errors import InvalidValueError

AXES: Final = ("tokens", "total_tokens", "cpu_s")
Floats: TypeAlias = npt.NDArray[np.float64]
Scales: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]
LAST: Final = "acc@K"
"""Solved within all the turns that the task gives."""


class Results:
    """The outcomes of a comparison, by algorithm and task.

    Attributes:
        labels: The rows, in the order of the outcomes.
        tasks: The tasks, likewise.
        seeds: Every seed of any run, in order.
        budgets: Those of `AXES` that all runs have counted.
        axes: Those that accuracies can be looked at over: the same, or none where no finished run was evaluated on the way.
        views: `axes`, and "test".

    Args:
        outcomes: Of every cell.
        figure: What is compared: "acc@1" and on, or "acc@K" for as many turns as the task has.
        scales: By task and figure, floor and ceiling (see `Task.scale`); 0 and 1 where nothing is said.

    Raises:
        InvalidValueError: no outcome, or no such figure.
    """

    def __init__(self, outcomes: Sequence[Outcome], figure: str = LAST, scales: Scales | None = None) -> None:
        if not outcomes:
            raise InvalidValueError("there is no cell to report on")
        number = figure.removeprefix("acc@")
        if figure != LAST and (number == figure or not number.isdecimal() or int(number) < 1):
            raise InvalidValueError(f"figure must be acc@1, acc@2, ... or {LAST}, got {figure!r}")
        self.outcomes = tuple(outcomes)
        self.figure = figure
        self.labels = tuple(dict.fromkeys(one.cell.label for one in outcomes))
        self.tasks = tuple(dict.fromkeys(one.cell.task for one in outcomes))
        self.seeds = tuple(sorted({one.cell.seed for one in outcomes}))
        self._scales = scales or {}
        self._turns = {task: self._most_turns(task) for task in self.tasks}
        # a run that an earlier version began has evaluations without the count, and a total that lacks their tokens.
        amounts = [
            used
            for one in self.outcomes
            if one.done
            for used in (one.total_tokens, *(p.total_tokens for p in one.curve))
        ]
        counted = None not in amounts
        self.budgets = AXES if counted else tuple(axis for axis in AXES if axis != "total_tokens")
        blind = any(one.done for one in self.outcomes) and not any(one.curve for one in self.outcomes)
        self.axes = () if blind else self.budgets
        self.views = (*self.axes, "test")
        self._limits = {(task, axis): self._limit(task, axis) for task in self.tasks for axis in self.budgets}

    def of(self, label: str | None, task: str) -> list[Outcome]:
        """The outcomes of a row on a task (of every row for None), by seed."""
        found = [one for one in self.outcomes if one.cell.task == task and label in (None, one.cell.label)]
        return sorted(found, key=lambda one: one.cell.seed)

    def turns(self, task: str) -> int:
        """The most turns that any run of the task was evaluated on; 1 where nothing is known."""
        return self._turns[task]

    def limit(self, task: str, axis: str) -> Outcome | None:
        """The finished run of a task that used least of a budget: all used as much; None where no run has finished."""
        return self._limits[task, axis]

    def score(self, outcome: Outcome, view: str, figure: str | None = None) -> float | None:
        """A run's accuracy in a view; None where it has none.

        Args:
            outcome: The run.
            view: One of `views`.
            figure: Another than the comparison's.
        """
        if not outcome.done:
            return None
        wanted = self.figure if figure is None else figure
        turn = self.turns(outcome.cell.task) if wanted == LAST else int(wanted.removeprefix("acc@"))
        if view == "test":
            return 0.0 if outcome.test is None else _at_turn(outcome.test, turn)
        limit = self.limit(outcome.cell.task, view)
        return None if limit is None else value_at(outcome, view, used_of(limit, view), turn)

    def by_seed(self, label: str, view: str, task: str, figure: str | None = None) -> Floats:
        """The scores of a row on a task, one for each of `seeds`, NaN where there is none, float64 (S,)."""
        found = {one.cell.seed: self.score(one, view, figure) for one in self.of(label, task)}
        scores = [found.get(seed) for seed in self.seeds]
        return np.array([np.nan if score is None else score for score in scores], dtype=np.float64)

    def scores(self, label: str, view: str, task: str, figure: str | None = None) -> Floats:
        """The scores of a row on a task, one per run that has one, float64 (N,)."""
        found = self.by_seed(label, view, task, figure)
        return np.asarray(found[~np.isnan(found)])

    def crossed(self, view: str, task: str, figure: str) -> Floats:
        """The scores of the rows with two runs or more, of the seeds that all of these have, float64 (rows, N)."""
        rows = [row for label in self.labels if (~np.isnan(row := self.by_seed(label, view, task, figure))).sum() > 1]
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.seeds))
        return np.asarray(table[:, ~np.isnan(table).any(axis=0)])

    def scale(self, task: str) -> tuple[float, float]:
        """What blind guessing reaches on a task and what can be reached at most, in the comparison's figure."""
        figure = f"acc@{self.turns(task)}" if self.figure == LAST else self.figure
        floor, ceiling = self._scales.get(task, {}).get(figure, (0.0, 1.0))
        return float(floor), float(ceiling)

    @property
    def pooled_tasks(self) -> tuple[str, ...]:
        """The tasks on which the figure can differ: no policy is better than another at the first guess of `guess8`."""
        return tuple(task for task in self.tasks if self.scale(task)[1] > self.scale(task)[0])

    def normalized(self, label: str, view: str) -> Floats:
        """A row's scores on the pooled tasks, float64 (tasks, S): 0 is the task's floor, 1 its ceiling, NaN is no run.

        Accuracies of tasks with different ends have no common scale: .6 may be all that can be reached on one task, and a
        bad result on another.
        """
        rows = []
        for task in self.pooled_tasks:
            floor, ceiling = self.scale(task)
            rows.append((self.by_seed(label, view, task) - floor) / (ceiling - floor))
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.seeds))

    def complete(self, view: str) -> list[str]:
        """The rows that have a score on every pooled task: those that can be compared over all tasks."""
        known = {label: ~np.isnan(self.normalized(label, view)) for label in self.labels}
        return [label for label, found in known.items() if len(found) and found.any(axis=1).all()]

    def _most_turns(self, task: str) -> int:
        names = [name for one in self.of(None, task) for name in _figures_of(one)]
        return max((int(name.removeprefix("acc@")) for name in names), default=1)

    def _limit(self, task: str, axis: str) -> Outcome | None:
        done = [one for one in self.of(None, task) if one.status == "finished"]
        # A run that stopped early has used less by choice: it sets the limit only where no run was longer.
        done = done or [one for one in self.of(None, task) if one.status == "stopped_early"]
        return min(done, key=lambda one: used_of(one, axis), default=None)


def value_at(outcome: Outcome, axis: str, at: float, turn: int) -> float | None:
    """A run's accuracy on the validation split after a number of tokens or CPU seconds.

    Args:
        outcome: The run.
        axis: One of `AXES`.
        at: Where.
        turn: Number of turns that count; a run with fewer turns gives its last.

    Returns:
        The accuracy, interpolated linearly between evaluations; 0 from where the run diverged on; None without an
        evaluation.
    """
    if outcome.status == "diverged" and at >= used_of(outcome, axis):
        return 0.0
    if not outcome.curve:
        return None
    where = [used_of(point, axis) for point in outcome.curve]
    values = [_at_turn(point.figures, turn) for point in outcome.curve]
    if None in values or any(late < early for early, late in pairwise(where)):
        return None
    # `np.interp` keeps the last value: so does a run after its last evaluation.
    return float(np.interp(at, where, np.array(values, dtype=np.float64)))


def area(outcome: Outcome, axis: str, end: float, turn: int) -> float | None:
    """The mean of a run's accuracy over its budget: the area under its curve from 0 to `end`, divided by `end`.

    Args:
        outcome: The run.
        axis: One of `AXES`.
        end: Where the budget that counts ends.
        turn: As in `value_at`.
    """
    places = [0.0, *(x for x in (used_of(point, axis) for point in outcome.curve) if 0 < x < end), end]
    values = [value_at(outcome, axis, x, turn) for x in places]
    if end <= 0 or None in values:
        return None
    return float(np.trapezoid(np.array(values, np.float64), places)) / end


def place_of(outcome: Outcome, axis: str, level: float, turn: int) -> float | None:
    """What a run had used when its accuracy, interpolated, first was at a level; None where it never was."""
    before: tuple[float, float] | None = None
    for point in outcome.curve:
        x, value = used_of(point, axis), _at_turn(point.figures, turn)
        if value is None:
            return None
        if value >= level:
            if before is None or value == before[1]:
                return x
            return before[0] + (x - before[0]) * (level - before[1]) / (value - before[1])
        before = x, value
    return None


def used_of(one: Outcome | Point, axis: str) -> float:
    """What a run has used of a budget so far.

    Args:
        one: The run, or one of its evaluations.
        axis: One of `AXES`; 0 of what was not counted.
    """
    return float(getattr(one, axis) or 0)


def _figures_of(outcome: Outcome) -> list[str]:
    names = [name for point in outcome.curve for name in point.figures] + list(outcome.test or ())
    return [name for name in names if name.startswith("acc@") and name.removeprefix("acc@").isdecimal()]


def _at_turn(figures: Mapping[str, float], turn: int) -> float | None:
    """Solved within `turn` turns; a policy that was given fewer has solved by then what it solved within its last."""
    found = (figures.get(f"acc@{k}") for k in range(turn, 0, -1))
    return next((value for value in found if value is not None), None)
