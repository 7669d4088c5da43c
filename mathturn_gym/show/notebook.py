"""Notebook displays of the package's objects: small pieces of HTML, everything in them escaped.

Colors are read on light and on dark pages; text takes the page's own color. There is no script in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym.base.render import COLORS, Line, dialogue_html, render_episode, verdict_text
from mathturn_gym.base.text import html_text

if TYPE_CHECKING:
    from mathturn_gym.episodes.metrics import Estimate
    from mathturn_gym.episodes.metrics.report import Report
    from mathturn_gym.episodes.packing import PackedBatch
    from mathturn_gym.types import Episode, Problem, Verdict

_MOST_CELLS: Final = 2000
_MOST_ROWS: Final = 24


def problem_html(problem: Problem) -> str:
    """Returns a problem with its accepted answers and its metadata."""
    facts = [Line(name, "end", str(value)) for name, value in problem.metadata.items()]
    gold = Line("gold", "right", " or ".join(problem.gold))
    return dialogue_html([Line(f"problem {problem.id}", "problem", problem.prompt), gold, *facts])


def verdict_html(verdict: Verdict) -> str:
    """Returns a verdict in a line, in its color."""
    return f'<span style="color:{COLORS[verdict.status.value]}">{html_text(verdict_text(verdict))}</span>'


def episode_html(episode: Episode) -> str:
    """Returns an episode: its dialogue, and its first 2,000 ids in cells, darker where an id was less likely."""
    dialogue = render_episode(episode, color=False).html
    turn_of = {at: k for k, (start, end) in enumerate(episode.turn_spans.tolist()) for at in range(start, end)}
    cells = []
    for at, (token, logprob) in enumerate(
        zip(episode.ids[:_MOST_CELLS].tolist(), episode.logprobs[:_MOST_CELLS].tolist(), strict=True)
    ):
        turn = turn_of.get(at)
        if turn is None:
            cells.append(f'<span title="position {at}, masked" style="opacity:.5">{token}</span>')
            continue
        known = "no log-prob" if math.isnan(logprob) else f"log-prob {logprob:.4f}"
        # Darker where the id was less likely, never so dark that it cannot be read.
        shade = 0.5 if math.isnan(logprob) else min(0.7, 0.08 - 0.12 * logprob)
        style = f"background:rgba(217,119,6,{shade:.2f});border-radius:2px"
        cells.append(f'<span title="position {at}, turn {turn + 1}, {known}" style="{style}">{token}</span>')
    rest = len(episode.ids) - len(cells)
    more = f" and {rest:,} more" if rest else ""
    summary = f"{len(episode.ids):,} token ids, {int(episode.loss_mask.sum()):,} of them the policy's"
    strip = f'<div style="font-family:monospace;max-width:60em;line-height:1.6">{" ".join(cells)}{more}</div>'
    return f"{dialogue}<details><summary>{summary}</summary>{strip}</details>"


def batch_html(batch: PackedBatch) -> str:
    """Returns a packed batch: its size, and each row as a bar in which completions stand out."""
    widest = max(batch.max_seqlen, 1)
    mask = batch.loss_mask.detach().cpu().numpy().reshape(-1)
    starts = (
        batch.cu_seqlens[:-1].cpu().numpy()
        if batch.form == "varlen"
        else range(0, batch.input_ids.numel(), max(batch.input_ids.shape[1], 1))
    )
    bars = []
    for start, length in list(zip(starts, batch.lengths.tolist(), strict=True))[:_MOST_ROWS]:
        row = mask[int(start) : int(start) + length].astype(int)
        ends = [i + 1 for i in range(len(row)) if i + 1 == len(row) or row[i + 1] != row[i]]
        parts = zip([0, *ends], ends, strict=False)
        bars.append(
            '<div style="display:flex;height:.55em;margin:.12em 0">'
            + "".join(_bar(100 * (end - begin) / widest, trained=bool(row[begin])) for begin, end in parts)
            + "</div>"
        )
    rest = batch.num_rows - len(bars)
    more = f"<div>and {rest:,} more rows</div>" if rest > 0 else ""
    legend = '<small style="opacity:.65">dark: trained on · light: masked (prompt and feedback)</small>'
    return f'<div style="max-width:60em">{html_text(repr(batch))}{"".join(bars)}{more}{legend}</div>'


def report_html(report: Report) -> str:
    """Returns the metrics of `summarize` as a table, each with its interval drawn where it lies in [0, 1]."""
    rows = []
    for question, names in report.by_question().items():
        rows.append(f'<tr><td colspan="3" style="text-align:left;opacity:.65">{html_text(question)}</td></tr>')
        for name in names:
            cells = f"<td>{html_text(str(report[name]))}</td><td>{_interval(report[name])}</td>"
            rows.append(f'<tr><td style="text-align:left;padding-left:1em">{html_text(name)}</td>{cells}</tr>')
    head = f"{report.episodes:,} episodes on {report.problems:,} problems, {report.confidence:.0%} intervals"
    counts = f"ended: {_counts(report.stop_reasons)} · turns: {_counts(report.verdicts)}"
    parts = "".join(
        f"<details><summary>by {html_text(key)}</summary>{_parts(parts)}</details>" for key, parts in report.by.items()
    )
    return f"<div><b>{head}</b><table>{''.join(rows)}</table><small>{html_text(counts)}</small>{parts}</div>"


def _parts(parts: Mapping[str, Report]) -> str:
    """One row per value of a key, with the accuracies that each of them has."""
    names = [name for name in next(iter(parts.values())).figures if name.startswith("acc@")]
    head = "".join(f"<th>{html_text(name)}</th>" for name in ["", "episodes", *names])
    rows = "".join(
        f"<tr><td>{html_text(value)}</td><td>{part.episodes:,}</td>"
        + "".join(f"<td>{html_text(str(part.figures[name])) if name in part.figures else '-'}</td>" for name in names)
        + "</tr>"
        for value, part in parts.items()
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _interval(figure: Estimate) -> str:
    """A line from `low` to `high` with a mark at the value, on the range [0, 1]."""
    value, low, high = figure.value, figure.low, figure.high
    if value is None or low is None or high is None or not 0 <= low <= high <= 1:
        return ""
    return (
        '<div style="position:relative;width:12em;height:.7em;background:rgba(127,127,127,.18)">'
        f'<div style="position:absolute;left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%;top:.25em;height:.2em;'
        'background:#0e7490"></div>'
        f'<div style="position:absolute;left:{100 * value:.2f}%;width:2px;height:.7em;background:#0e7490"></div></div>'
    )


def _bar(percent: float, *, trained: bool) -> str:
    shade = ".85" if trained else ".25"
    return f'<div style="width:{percent:.3f}%;background:rgba(14,116,144,{shade})"></div>'


DISPLAYS: Final[Mapping[str, Callable[[Any], str]]] = {
    "problem": problem_html,
    "verdict": verdict_html,
    "episode": episode_html,
    "episode as text": lambda episode: str(render_episode(episode)),
    "batch": batch_html,
    "report": report_html,
}
"""The displays of `mathturn_gym.base.display`, by kind of object."""
