"""Writes what a comparison has shown: a verdict, tables, charts and raw numbers.

OUT/report.html      everything, in one file
OUT/report.md        the verdict and the tables
OUT/differences.tex  the table of paired differences, for a paper; tables.tex has the others
OUT/results.csv      one line per run
OUT/results.json     every run with its curve, and every number of the tables
OUT/*.svg            the charts
"""

from __future__ import annotations

import csv
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from mathturn_gym.base.files import replacing, write_atomically, write_json
from mathturn_gym.baselines.run_folder import read_object
from mathturn_gym.compare.cells import CellFolder, Outcome
from mathturn_gym.compare.charts import aggregate_chart, curve_charts, difference_charts, profile_chart
from mathturn_gym.compare.results import LAST, Results, used_of
from mathturn_gym.compare.runner import read_cells, read_scales
from mathturn_gym.compare.statistics import AGGREGATES, aggregate, difference, improvement, shared
from mathturn_gym.compare.summary import (
    FEW_SEEDS,
    aggregate_table,
    cell_table,
    center,
    curve_table,
    improvement_table,
    planning_table,
    seed_table,
    task_table,
)
from mathturn_gym.compare.verdict import ALL_TASKS, Differences, difference_table, paired_differences, verdict
from mathturn_gym.errors import raise_unknown_name
from mathturn_gym.show.charts import standalone
from mathturn_gym.show.pages import Chart, Section, write_report_page
from mathturn_gym.show.tables import Table, as_latex, as_markdown

_LIBRARIES = ("mathturn-gym", "torch", "numpy", "gymnasium", "transformers", "stable-baselines3", "sb3-contrib")


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison's results, and what was written of them."""

    out: Path  # the folder
    results: Results  # the runs and their scores
    verdict: Sequence[str]  # what they show, in sentences
    brief: Sequence[str]  # the same for a terminal: without the sentences of single tasks, where there are several
    differences: Table | None  # the one table to read; None where no two rows have a score
    tables: Sequence[Table]  # all others, in the order of the page, but for the table of every run
    cells: Table  # the table of every run


def make_report(
    out: str | Path,
    *,
    figure: str = LAST,
    resamples: int = 10_000,
    seed: int = 0,
    algorithms: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    against: str | None = None,
) -> Report:
    """Writes the report of a comparison's folder, from the runs that are there.

    Args:
        out: The folder.
        figure: What is compared over all tasks and drawn: "acc@1" and on, or "acc@K" for as many turns as a task has.
        resamples: Bootstrap samples of the tables' intervals.
        seed: Decides them.
        algorithms: Only these rows; None for all. Tables rank them, the best first; colors go by this order.
        tasks: Only these tasks, in this order; None for all.
        against: The row that is subtracted from the others, paired by seed; None for the one that the matrix names, if it
            is among the rows, and else for the best row.

    Raises:
        CheckpointError: the folder is no comparison's.
        InvalidValueError: no such figure, row or task.
    """
    folder = Path(out)
    cells = read_cells(folder)
    for field, chosen, known in (
        ("algorithm", algorithms, {cell.label for cell in cells}),
        ("task", tasks, {cell.task for cell in cells}),
    ):
        for name in chosen or ():
            if name not in known:
                raise_unknown_name(field, name, known)
    if algorithms is not None:
        cells = [cell for label in algorithms for cell in cells if cell.label == label]
    if tasks is not None:
        cells = [cell for task in tasks for cell in cells if cell.task == task]
    written = read_object(folder / "matrix.json")
    results = Results([CellFolder(folder, cell).outcome() for cell in cells], figure, read_scales(folder))
    if against is None and written.get("against") in results.labels:
        against = written["against"]
    if against is not None and against not in results.labels:
        raise_unknown_name("against", against, results.labels)
    found = paired_differences(results, against)
    held = None if found is None else difference_table(results, found)
    said = verdict(results, found)
    many, several = len(results.seeds) >= FEW_SEEDS, len(results.pooled_tasks) > 1
    over_all = [aggregate_table(results, view, resamples=resamples, seed=seed) for view in results.views]
    by_task = {
        view: [task_table(results, task, view, resamples=resamples, seed=seed) for task in results.tasks]
        for view in results.axes or ("test",)
    }
    better = [improvement_table(results, view) for view in results.views if many and len(results.complete(view)) > 1]
    seeds, every = seed_table(results), cell_table(results)
    plan = [] if found is None else [planning_table(results, found.reference)]
    speed = [curve_table(results, task) for task in results.tasks] if "tokens" in results.axes else []
    further = [table for table in (*speed, seeds, *plan) if table.rows]
    tables = [
        *(over_all if several else []),
        *(table for those in by_task.values() for table in those),
        *better,
        *further,
    ]
    _write_raw(folder, results, found, resamples, seed)
    listed = [one for one in (held, *tables, every) if one is not None]
    parts = ["\n".join(f"{sentence}\n" for sentence in said), *map(as_markdown, listed)]
    (folder / "report.md").write_text("\n".join(parts), encoding="utf-8")
    if held is not None:
        (folder / "differences.tex").write_text(as_latex(held) + "\n", encoding="utf-8")
    (folder / "tables.tex").write_text("\n\n".join(as_latex(table) for table in tables) + "\n", encoding="utf-8")
    curves = {axis: curve_charts(results, axis) for axis in results.axes}
    profiles = [profile_chart(results, view) for view in results.views if many and results.complete(view)]
    forest = [] if found is None else difference_charts(found)
    pooled = [aggregate_chart(results, view, resamples=resamples, seed=seed) for view in results.views if several]
    drawn = {f"curves-{axis}-{at}": chart for axis, those in curves.items() for at, chart in enumerate(those, 1)}
    drawn |= {f"differences-{at}": chart for at, chart in enumerate(forest, 1)}
    drawn |= {f"aggregates-{view}": chart for view, chart in zip(results.views, pooled, strict=False) if chart}
    drawn |= {f"profiles-{view}": chart for view, chart in zip(results.views, profiles, strict=False)}
    for name, chart in drawn.items():
        # Also as files, for papers and slides.
        write_atomically(folder / f"{name}.svg", standalone(chart.drawing))
    made_with = [str(written.get("command", "")), *(f"{name} {version}" for name, version in _facts().items())]
    sections = [
        *([Section(title="Differences", charts=forest, tables=[held])] if held is not None else []),
        *_curve_sections(results, curves),
        *_folded_sections(results, over_all, by_task, pooled, profiles, better, further, every),
        Section(title="Made with", text="\n".join(filter(None, made_with)), folded=True),
    ]
    title = f"{len(results.labels)} algorithms on {', '.join(results.tasks)}"
    write_report_page(folder / "report.html", title=title, verdict=said, sections=sections)
    brief = [said[0], *said[1 + len(results.tasks) :]] if found is not None and several else said
    return Report(folder, results, said, brief, held, tables, every)


_NAMES: Final = {"total_tokens": "total tokens", "cpu_s": "CPU seconds"}
_AXES: Final = {
    "tokens": ("At equal tokens", "Environment tokens are the ids that a policy sampled in training."),
    "total_tokens": (
        "At equal total tokens",
        "All ids of the episodes of training: prompts and feedback, which are read, and what was sampled.",
    ),
    "cpu_s": ("At equal CPU seconds", "CPU seconds of training, evaluations not counted."),
    "test": ("Final policies", "No run was evaluated on the way (`evaluation.every = 0`): there are no curves."),
}


def _curve_sections(results: Results, curves: Mapping[str, Sequence[Chart]]) -> list[Section]:
    """Learning curves: over environment tokens to be seen at once, over other budgets folded."""
    lead = f"Validation split, {center(results)} over seeds with 95 % bands; a mark is an evaluation."
    return [
        Section(
            title="Learning curves" if axis == "tokens" else f"Learning curves over {_NAMES[axis]}",
            lead=f"{lead} {_AXES[axis][1]}",
            charts=charts,
            folded=axis != "tokens",
        )
        for axis, charts in curves.items()
        if charts
    ]


def _folded_sections(
    results: Results,
    over_all: Sequence[Table],
    by_task: Mapping[str, Sequence[Table]],
    pooled: Sequence[Chart | None],
    profiles: Sequence[Chart],
    better: Sequence[Table],
    further: Sequence[Table],
    every: Table,
) -> list[Section]:
    over = (
        "Brackets: 95 % intervals over seeds; a seed is drawn with its runs on all tasks. IQM: the interquartile mean over all"
        " runs, without the lowest and the highest quarter. Optimality gap: how far the mean stays below 1, lower is better."
        " Bold: the best value of a column."
    )
    charts = [chart for chart in pooled if chart is not None]
    sections = (
        [Section(title="Over all tasks", lead=over, charts=charts, tables=over_all, folded=True)] if charts else []
    )
    sections += [
        Section(title=_AXES[view][0], lead=_AXES[view][1], tables=tables, folded=True)
        for view, tables in by_task.items()
    ]
    if profiles:
        words = "A profile shows which share of an algorithm's runs, over all tasks, scores above each level."
        sections.append(Section(title="Performance profiles", lead=words, charts=profiles, folded=True))
    if better:
        sections.append(Section(title="Probability of improvement", tables=better, folded=True))
    return [*sections, Section(title="Every run", tables=[*further, every], folded=True)]


def _write_raw(folder: Path, results: Results, found: Differences | None, resamples: int, seed: int) -> None:
    """Writes the numbers behind the tables."""
    against = None if found is None else found.reference
    turns = max(results.turns(task) for task in results.tasks)
    names = [f"acc@{k}" for k in range(1, turns + 1)]
    # Replaced as a whole: who reads it while a report is made again sees one of the two.
    with replacing(folder / "results.csv") as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        head = ["label", "algorithm", "task", "seed", "status", "budget_tokens", "budget_total_tokens", "budget_cpu_s"]
        views = [f"{view}/{name}" for view in results.views for name in names]
        writer.writerow([*head, "episodes", *results.budgets, *views, "message"])
        for one in results.outcomes:
            cell = one.cell
            own = names[: results.turns(cell.task)]
            scores = [
                results.score(one, view, name) if name in own else None for view in results.views for name in names
            ]
            budget = [cell.tokens, cell.total_tokens, cell.cpu_seconds]
            used = [used_of(one, axis) for axis in results.budgets]
            row = [cell.label, cell.algorithm, cell.task, cell.seed, one.status, *budget, one.episodes, *used]
            writer.writerow([*row, *scores, " ".join(one.message.split())])
    write_json(
        folder / "results.json",
        {
            "figure": results.figure,
            "cells": [_cell_json(one) for one in results.outcomes],
            "limits": {
                task: {axis: _limit_json(results, task, axis) for axis in results.budgets} for task in results.tasks
            },
            "tasks": {task: _task_json(results, task, resamples, seed) for task in results.tasks},
            "aggregates": {view: _aggregates_json(results, view, resamples, seed) for view in results.views},
            "against": against,
            "differences": {task: _differences_json(results, task, found) for task in results.tasks if found},
            "differences_over_all_tasks": _all_tasks_json(found) if found else {},
            "seeds": {task: _seeds_json(results, task) for task in results.tasks},
            "improvement": {view: _improvement_json(results, view) for view in results.views},
            "versions": _facts(),
        },
    )


def _cell_json(one: Outcome) -> dict[str, Any]:
    return {
        **one.cell.to_json(),
        "status": one.status,
        "message": one.message,
        "episodes": one.episodes,
        "used_tokens": one.tokens,
        "used_total_tokens": one.total_tokens,
        "used_cpu_s": one.cpu_s,
        "test": None if one.test is None else dict(one.test),
        "curve": [
            {"tokens": p.tokens, "total_tokens": p.total_tokens, "cpu_s": p.cpu_s, **p.figures} for p in one.curve
        ],
    }


def _limit_json(results: Results, task: str, axis: str) -> dict[str, Any] | None:
    limit = results.limit(task, axis)
    if limit is None:
        return None
    return {"value": used_of(limit, axis), "set_by": limit.cell.label, "seed": limit.cell.seed}


def _task_json(results: Results, task: str, resamples: int, seed: int) -> dict[str, Any]:
    """By view, row and figure: the scores of the runs, and their IQM with its interval."""
    found: dict[str, Any] = {}
    for view in results.views:
        for label in results.labels:
            for k in range(1, results.turns(task) + 1):
                scores = results.scores(label, view, task, f"acc@{k}")
                if scores.size:
                    iqm = aggregate(scores[None, :], "IQM", resamples=resamples, seed=seed).to_dict()
                    entry = {"scores": scores.tolist(), "mean": float(scores.mean()), "IQM": iqm}
                    found.setdefault(view, {}).setdefault(label, {})[f"acc@{k}"] = entry
    return found


def _aggregates_json(results: Results, view: str, resamples: int, seed: int) -> dict[str, Any]:
    return {
        label: {
            name: aggregate(results.normalized(label, view), name, resamples=resamples, seed=seed).to_dict()
            for name in AGGREGATES
        }
        for label in results.complete(view)
    }


def _improvement_json(results: Results, view: str) -> list[dict[str, Any]]:
    scores = {label: results.normalized(label, view) for label in results.complete(view)}
    pairs = [(x, y) for x in scores for y in scores if x != y]
    return [{"x": x, "y": y, **improvement(scores[x], scores[y]).to_dict()} for x, y in pairs]


def _differences_json(results: Results, task: str, found: Differences) -> dict[str, Any]:
    """By row and figure: what the final policies score above those of the reference, paired by seed."""
    shown: dict[str, Any] = {}
    for label in found.labels:
        for name in (f"acc@{k}" for k in range(1, results.turns(task) + 1)):
            one = difference(*(results.by_seed(row, "test", task, name)[None, :] for row in (label, found.reference)))
            if one.difference.value is not None:
                shown.setdefault(label, {})[name] = {**one.difference.to_dict(), "p_value": one.p_value}
    return shown


def _all_tasks_json(found: Differences) -> dict[str, Any]:
    keys = [(label, ALL_TASKS) for label in found.labels if ALL_TASKS in found.columns]
    return {
        key[0]: {
            **found.found[key].difference.to_dict(),
            "p_value": found.found[key].p_value,
            "p_corrected": found.corrected.get(key),
        }
        for key in keys
    }


def _seeds_json(results: Results, task: str) -> dict[str, Any]:
    """By figure: the mean correlation of two rows over their seeds."""
    names = [f"acc@{k}" for k in range(1, results.turns(task) + 1)]
    return {name: shared(scores) for name in names if min((scores := results.crossed("test", task, name)).shape) > 1}


def _facts() -> dict[str, str]:
    """Versions and machine."""
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return {**installed, "Python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
