"""Writes what a comparison has shown: tables, pictures, raw numbers, one page.

OUT/report.html      everything, in one file
OUT/report.md        the tables
OUT/results.csv      one line per run
OUT/results.json     every run with its curve, and every figure of the tables
OUT/*.png            the pictures
"""

from __future__ import annotations

import base64
import csv
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mathturn_gym.base.files import write_atomically, write_json
from mathturn_gym.base.text import html_text
from mathturn_gym.baselines.run_folder import read_object
from mathturn_gym.compare.cells import CellFolder, Outcome
from mathturn_gym.compare.results import LAST, Results, used_of
from mathturn_gym.compare.runner import read_cells, read_scales
from mathturn_gym.compare.statistics import AGGREGATES, aggregate, difference, improvement, shared
from mathturn_gym.compare.summary import (
    Table,
    aggregate_table,
    as_html,
    as_markdown,
    cell_table,
    difference_table,
    improvement_table,
    seed_table,
    task_table,
)
from mathturn_gym.errors import MissingDependencyError, raise_unknown_name
from mathturn_gym.show.pages import render_report

Section = tuple[str, str, Sequence[Table], Sequence[tuple[str, str]]]
"""Heading, introduction, tables, and pictures as (file name, caption)."""


def write_page(
    path: Path,
    *,
    title: str,
    command: str,
    counts: Mapping[str, int],
    sections: Sequence[Section],
    facts: Mapping[str, str],
) -> None:
    """Writes the page; pictures are taken from its folder into it.

    Args:
        path: File to write.
        title: Its heading.
        command: What was typed; empty where nothing was.
        counts: Number of runs by status.
        sections: In order.
        facts: Versions and the like, at the end.
    """
    plain = ("finished", "stopped_early")
    pills = "".join(
        f'<span class="{"" if status in plain else "bad"}">{number} {html_text(status.replace("_", " "))}</span>'
        for status, number in counts.items()
    )
    links = "".join(f'<a href="#s{i}">{html_text(section[0])}</a>' for i, section in enumerate(sections))
    parts = [_section(i, section, path.parent) for i, section in enumerate(sections)]
    shown = f"<pre>{html_text(command)}</pre>" if command else ""
    rows = "".join(f"<tr><td>{html_text(k)}</td><td>{html_text(v)}</td></tr>" for k, v in facts.items())
    made = f"<section><h2>Made with</h2><table>{rows}</table></section>"
    words = "<p>A click on a heading sorts its table.</p>"
    body = f'<div class="pills">{pills}</div>{shown}<nav>{links}</nav>{words}{"".join(parts)}{made}'
    write_atomically(path, render_report(title, body))


def _section(number: int, section: Section, folder: Path) -> str:
    heading, lead, tables, pictures = section
    drawn = []
    for name, caption in pictures:
        data = base64.b64encode((folder / name).read_bytes()).decode("ascii")
        words = html_text(caption)
        drawn.append(
            f'<figure><img alt="{words}" src="data:image/png;base64,{data}"><figcaption>{words}</figcaption></figure>'
        )
    intro = f"<p>{html_text(lead)}</p>" if lead else ""
    body = "".join(as_html(table) for table in tables)
    return f'<section id="s{number}"><h2>{html_text(heading)}</h2>{intro}{body}{"".join(drawn)}</section>'


# ---- writes what a comparison has shown: tables, pictures, raw numbers, one page


_LOG = logging.getLogger(__name__)
_LIBRARIES = ("mathturn-gym", "torch", "numpy", "gymnasium", "transformers", "stable-baselines3", "sb3-contrib")


@dataclass(frozen=True, slots=True)
class Report:
    """A comparison's results, and the tables that were written.

    Args:
        out: The folder.
        results: The runs and their scores.
        tables: In the order of the page, but for the table of every run.
        cells: The table of every run.
    """

    out: Path
    results: Results
    tables: Sequence[Table]
    cells: Table


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
    """Writes the report of a comparison's folder, from whatever runs are there.

    Args:
        out: The folder.
        figure: What is compared over all tasks and drawn: "acc@1" and on, or "acc@K" for as many turns as a task has.
        resamples: Bootstrap samples of the tables' intervals.
        seed: Decides them.
        algorithms: Only these rows; None for all. Tables rank them, the best first; colors go by this order.
        tasks: Only these tasks, in this order; None for all.
        against: The row that the others are held against, paired by seed; None for the one that the matrix names, if it is
            among the rows.

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
    over_all = [aggregate_table(results, view, resamples=resamples, seed=seed) for view in results.views]
    by_task = {
        view: [task_table(results, task, view, resamples=resamples, seed=seed) for task in results.tasks]
        for view in results.axes or ("test",)
    }
    held = [difference_table(results, task, against) for task in results.tasks] if against is not None else []
    better = [improvement_table(results, view) for view in results.views if len(results.complete(view)) > 1]
    seeds = seed_table(results)
    every = cell_table(results)
    pictures = _pictures(results, folder, resamples, seed)
    tables = [
        *over_all,
        *(table for those in by_task.values() for table in those),
        *held,
        *better,
        *([seeds] if seeds.rows else []),
    ]
    command = str(written.get("command", ""))
    _write_raw(folder, results, against, resamples, seed)
    (folder / "report.md").write_text("\n".join(as_markdown(table) for table in (*tables, every)), encoding="utf-8")
    sections = _sections(over_all, by_task, held, better, seeds, every, pictures)
    write_page(
        folder / "report.html",
        title=f"{len(results.labels)} algorithms on {', '.join(results.tasks)}",
        command=command,
        counts=_counts(results.outcomes),
        sections=sections,
        facts=_facts(),
    )
    return Report(folder, results, tables, every)


def _pictures(results: Results, folder: Path, resamples: int, seed: int) -> list[tuple[str, str]]:
    from mathturn_gym.compare.figures import draw_all

    try:
        return draw_all(results, folder, resamples=resamples, seed=seed)
    except MissingDependencyError as error:
        _LOG.warning("no pictures in the report: %s", error)
        return []


def _sections(
    over_all: Sequence[Table],
    by_task: Mapping[str, Sequence[Table]],
    held: Sequence[Table],
    better: Sequence[Table],
    seeds: Table,
    every: Table,
    pictures: Sequence[tuple[str, str]],
) -> list[Section]:
    def those(*stems: str) -> list[tuple[str, str]]:
        return [(name, caption) for name, caption in pictures if name.rsplit("-", 1)[0] in stems]

    def curves(axis: str) -> list[tuple[str, str]]:
        return [(name, caption) for name, caption in pictures if name == f"curves-{axis}.png"]

    over = (
        "Interquartile mean (IQM) over all runs of all tasks: the lowest and the highest quarter are left out. Brackets:"
        " 95 % intervals over seeds: runs are drawn again within each task. Optimality gap: how far the mean stays"
        " below 1, lower is better. Stressed: the best value of a column, whatever the intervals say."
    )
    profiles = "A profile shows which share of an algorithm's runs, over all tasks, scores above each level."
    views = {
        "tokens": ("At equal tokens", "Environment tokens are the ids that a policy sampled in training."),
        "total_tokens": (
            "At equal total tokens",
            "All ids of the episodes of training: prompts and feedback, which are read, and what was sampled.",
        ),
        "cpu_s": ("At equal CPU seconds", "CPU seconds of training, evaluations not counted."),
        "test": ("Final policies", "No run was evaluated on the way (`evaluation.every = 0`): there are no curves."),
    }
    return [
        ("All tasks", over, over_all, those("aggregates")),
        *((*views[view], tables, curves(view)) for view, tables in by_task.items()),
        *([("Differences from one row", "", held, [])] if held else []),
        ("Performance profiles", profiles, [], those("profiles")),
        ("Probability of improvement", "", better, those("improvement")),
        ("Every run", "", [*([seeds] if seeds.rows else []), every], []),
    ]


def _write_raw(folder: Path, results: Results, against: str | None, resamples: int, seed: int) -> None:
    """The numbers behind the tables, for whoever wants to compute something else."""
    turns = max(results.turns(task) for task in results.tasks)
    names = [f"acc@{k}" for k in range(1, turns + 1)]
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        head = ["label", "algorithm", "task", "seed", "status", "budget_tokens", "budget_total_tokens", "budget_cpu_s"]
        views = [f"{view}/{name}" for view in results.views for name in names]
        writer.writerow([*head, "episodes", *results.budgets, *views, "message"])
        for one in results.outcomes:
            cell = one.cell
            own = names[: results.turns(cell.task)]
            found = [
                results.score(one, view, name) if name in own else None for view in results.views for name in names
            ]
            budget = [cell.tokens, cell.total_tokens, cell.cpu_seconds]
            used = [used_of(one, axis) for axis in results.budgets]
            row = [cell.label, cell.algorithm, cell.task, cell.seed, one.status, *budget, one.episodes, *used]
            writer.writerow([*row, *found, " ".join(one.message.split())])
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
            "differences": {}
            if against is None
            else {task: _differences_json(results, task, against) for task in results.tasks},
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
    return {"value": limit.value, "set_by": limit.outcome.cell.label, "seed": limit.outcome.cell.seed}


def _task_json(results: Results, task: str, resamples: int, seed: int) -> dict[str, Any]:
    """By view, row and figure: the scores of the runs, and their IQM with its interval."""
    found: dict[str, Any] = {}
    for view in results.views:
        for label in results.labels:
            for k in range(1, results.turns(task) + 1):
                scores = results.scores(label, view, task, f"acc@{k}")
                if scores.size:
                    iqm = aggregate([scores], "IQM", resamples=resamples, seed=seed).to_dict()
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


def _differences_json(results: Results, task: str, against: str) -> dict[str, Any]:
    """By row and figure: what the final policies score above those of another row, paired by seed."""
    found: dict[str, Any] = {}
    for label in results.labels:
        for k in range(1, results.turns(task) + 1):
            pairs = results.paired(label, against, "test", task, f"acc@{k}")
            if label != against and pairs.size:
                found.setdefault(label, {})[f"acc@{k}"] = difference(*pairs).to_dict()
    return found


def _seeds_json(results: Results, task: str) -> dict[str, Any]:
    """By figure: the share of the variance between a row's runs that lies in their seeds."""
    found: dict[str, Any] = {}
    for name in (f"acc@{k}" for k in range(1, results.turns(task) + 1)):
        scores = results.crossed("test", task, name)
        if min(scores.shape) > 1:
            found[name] = shared(scores).to_dict()
    return found


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    statuses = [one.status for one in outcomes]
    return {status: statuses.count(status) for status in dict.fromkeys(sorted(statuses))}


def _facts() -> dict[str, str]:
    """Versions and machine."""
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return {**installed, "Python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
