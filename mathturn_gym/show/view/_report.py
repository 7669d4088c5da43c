"""`write_report`: the figures of a set of episodes as one page, ordered by the question that they answer.

episodes ─► summarize ─► tables by question, family, level
         └─► counts   ─► charts: by turn, by family and level, what a turn did with the feedback, lengths, endings
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mathturn_gym.base.files import write_atomically
from mathturn_gym.base.text import html_text
from mathturn_gym.episodes.metrics import MEANING, Estimate, Report, summarize
from mathturn_gym.episodes.metrics.figures import EpisodeFacts, facts
from mathturn_gym.episodes.metrics.intervals import cluster_sums, ratio_estimate
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.pages import render_report
from mathturn_gym.show.view.charts import Series, bars, histogram, lines, ranges
from mathturn_gym.types import Episode, Status

_STATUSES: Final = (
    ("right", "right"),
    ("wrong", "wrong"),
    ("no answer", "no_answer"),
    ("undecided", "undecided"),
    ("already ended", "gone"),
)
_REPLIES: Final = (
    ("right", "right"),
    ("another wrong answer", "wrong"),
    ("an answer that had failed", "repeated"),
    ("no answer", "no_answer"),
    ("undecided", "undecided"),
)
_ENDS: Final = (
    ("solved", "right"),
    ("turns", "wrong"),
    ("context", "no_answer"),
    ("tokens", "no_answer"),
    ("time", "no_answer"),
    ("none", "gone"),
)
_END_WORDS: Final = {
    "solved": "ended by a right answer",
    "turns": "all turns used",
    "context": "context budget used up",
    "tokens": "token budget used up",
    "time": "time budget used up",
    "none": "cut short",
}
_FIFTHS: Final = 5
_MOST_ROWS: Final = 40


def write_report(
    out: str | os.PathLike[str],
    episodes: Sequence[Episode],
    *,
    title: str = "Evaluation",
    settings: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    confidence: float = 0.95,
    by: Sequence[str] = ("family", "level"),
) -> Path:
    """Writes the page: one HTML file for light and dark that asks the network for nothing.

    Args:
        out: The HTML file, replaced if it is there.
        episodes: At least one.
        title: Its heading.
        settings: What the episodes were played with, shown at the end.
        notes: What a reader must know before the figures.
        confidence: Of the intervals, in (0, 1).
        by: Metadata keys to report by as well.

    Returns:
        The file's path.

    Raises:
        InvalidValueError: no episodes; a confidence outside its range; a folder that is not there.

    >>> write_report("report.html", episodes, title="after")  # doctest: +SKIP
    PosixPath('report.html')
    """
    target = Path(out)
    if not target.resolve().parent.is_dir():
        raise InvalidValueError(f"out must be in a folder that is there, got {str(target)!r}")
    if not episodes:
        raise InvalidValueError("a report needs episodes, got none")
    report = summarize(episodes, confidence=confidence, by=by)
    known = [facts(episode) for episode in episodes]
    charts = [
        ("Accuracy by turn", _by_turn(report)),
        ("What the next turn did, by the verdict before", _feedback_use(known)),
        *((f"Accuracy by {key}", _by_part(report, parts)) for key, parts in report.by.items()),
        ("Verdicts by turn", _verdicts(known, report.turns)),
        ("How episodes ended", _ends(report)),
        ("Tokens per turn", _lengths(episodes)),
        ("Is it right where it is sure?", _confidence(episodes, confidence)),
    ]
    body = "".join(
        (
            _head(report),
            *(f'<p class="note">{html_text(note)}</p>' for note in notes),
            _tiles(report),
            f'<div class="charts">{"".join(_chart(name, *found) for name, found in charts if found)}</div>',
            _figures(report),
            *(_parts_table(key, parts) for key, parts in report.by.items()),
            _settings(settings),
        )
    )
    write_atomically(target, render_report(title, body))
    return target


# ---- parts of the page


def _head(report: Report) -> str:
    return (
        f"<p>{report.episodes:,} episodes on {report.problems:,} different problems. Intervals hold the truth in"
        f" {report.confidence:.0%} of cases; they are made of problems, not of episodes.</p>"
    )


def _tiles(report: Report) -> str:
    names = {
        "acc@1": "right at the first turn",
        f"acc@{report.turns}": f"right within {report.turns} turns",
        "corrected": "of the first turns that were not right: corrected",
        "tokens": "tokens per episode",
        "tokens_per_solved": "tokens per solved episode",
    }
    tiles = []
    for name, words in names.items():
        figure = report.figures.get(name)
        if figure is None or figure.value is None or (name == "acc@1" and report.turns == 0):
            continue
        shown = f"{figure.value:,.1f}" if name.startswith("tokens") else f"{figure.value:.1%}"
        tiles.append(f"<div><b>{shown}</b><span>{words}</span></div>")
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _chart(name: str, drawn: str, words: str) -> str:
    return f"<section><h2>{html_text(name)}</h2><p>{words}</p><figure>{drawn}</figure></section>"


def _figures(report: Report) -> str:
    """Every figure below the question that it answers, with what it is."""
    tables = []
    for question, names in report.by_question().items():
        rows = "".join(
            f"<tr><td>{name}</td><td>{_value(report[name])}</td><td>{_interval(report[name])}</td>"
            f'<td class="words">{html_text(MEANING[re.sub("@.*", "@k", name)])}</td></tr>'
            for name in names
        )
        head = f"<tr><th>figure</th><th>value</th><th>{report.confidence:.0%} interval</th><th></th></tr>"
        tables.append(
            f'<h3>{html_text(question)}</h3><div class="wide"><table class="figures"><thead>{head}</thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
    return f"<section><h2>All figures, by question</h2>{''.join(tables)}</section>"


def _parts_table(key: str, parts: Mapping[str, Report]) -> str:
    turns = max(part.turns for part in parts.values())
    names = list(dict.fromkeys(("acc@1", f"acc@{turns}", "corrected", "no_answer", "tokens")))
    head = "".join(f"<th>{html_text(name)}</th>" for name in (key, "episodes", "problems", *names))
    rows = "".join(
        f"<tr><td>{html_text(value)}</td><td>{part.episodes:,}</td><td>{part.problems:,}</td>"
        + "".join(f"<td>{_value(_of(part, name))}<small>{_interval(_of(part, name))}</small></td>" for name in names)
        + "</tr>"
        for value, part in parts.items()
    )
    return (
        f'<section><h2>By {html_text(key)}</h2><p>A click on a heading sorts.</p><div class="wide">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _settings(settings: Mapping[str, Any] | None) -> str:
    if settings is None:
        return ""
    text = json.dumps(settings, indent=1, ensure_ascii=False, default=str)
    return f"<section><h2>Played with</h2><pre>{html_text(text)}</pre></section>"


def _of(report: Report, name: str) -> Estimate:
    """A figure of a part; a part whose episodes had fewer turns stands where its last turn was."""
    found = report.figures.get(name)
    if found is None and name.startswith("acc@"):
        found = report.figures.get(f"acc@{report.turns}")
    return Estimate(None, None, None, 0) if found is None else found


def _value(figure: Estimate) -> str:
    if figure.value is None:
        return "–"
    return f"{figure.value:.3f}" if abs(figure.value) < 100 else f"{figure.value:,.1f}"


def _interval(figure: Estimate) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"[{_value(Estimate(figure.low, None, None, 0))}, {_value(Estimate(figure.high, None, None, 0))}]"


# ---- charts: (SVG, words), or None where there is nothing to draw


def _by_turn(report: Report) -> tuple[str, str] | None:
    if not report.turns:
        return None

    def points(stem: str) -> list[tuple[int, Estimate]]:
        return [(k, report[name]) for k in range(1, report.turns + 1) if (name := f"{stem}@{k}") in report.figures]

    series = [Series("solved within k turns (acc@k)", points("acc"))]
    right = points("right")
    if any(figure.value != report[f"acc@{k}"].value for k, figure in right):
        series.append(Series("right after turn k (right@k)", right, dashed=True))
    fresh = points("pass")
    if fresh:
        series.append(Series("k fresh starts (pass@k)", fresh, dashed=True))
    words = "Where turns are above fresh starts, another turn is worth more than another try." if fresh else ""
    return lines(series, "turn"), words


def _by_part(report: Report, parts: Mapping[str, Report]) -> tuple[str, str]:
    names = list(dict.fromkeys(("acc@1", f"acc@{report.turns}")))
    rows = [(value, [_of(part, name) for name in names]) for value, part in parts.items()]
    if not all(value.removeprefix("-").isdecimal() for value in parts):  # levels stay in their order
        rows.sort(key=lambda row: row[1][-1].value or 0.0, reverse=True)
    left = len(rows) - _MOST_ROWS
    words = f"The best {_MOST_ROWS}; the other {left} are in the table below." if left > 0 else ""
    return ranges(rows[:_MOST_ROWS], names), words


def _feedback_use(known: Sequence[EpisodeFacts]) -> tuple[str, str] | None:
    """What each turn but the first did, by the verdict that it had been told of."""
    counts: dict[Status, Counter[str]] = {status: Counter() for status in Status}
    for one in known:
        failed: set[str] = set()
        for k, (status, answer) in enumerate(zip(one.statuses, one.answers, strict=True)):
            if k:
                repeated = status is Status.WRONG and answer in failed
                counts[one.statuses[k - 1]]["repeated" if repeated else status.value] += 1
            if status is not Status.RIGHT and answer is not None:
                failed.add(answer)
    names = {"right": "right", "wrong": "wrong", "no_answer": "no answer", "undecided": "undecided"}
    rows = [
        (f"after {names[status.value]}", [found[kind] for _, kind in _REPLIES])
        for status, found in counts.items()
        if found
    ]
    words = (
        "A policy that uses its feedback leaves what was wrong and stays with what was right. The number behind each bar"
        " counts its turns."
    )
    return (bars(rows, _REPLIES, "turns"), words) if rows else None


def _verdicts(known: Sequence[EpisodeFacts], turns: int) -> tuple[str, str] | None:
    if not turns:
        return None
    rows = []
    for k in range(turns):
        found = Counter(one.statuses[k].value if k < len(one.statuses) else "gone" for one in known)
        rows.append((f"turn {k + 1}", [found[kind] for _, kind in _STATUSES]))
    return bars(rows, _STATUSES, "episodes"), ""


def _ends(report: Report) -> tuple[str, str]:
    kinds = [(_END_WORDS[name], kind) for name, kind in _ENDS]
    return bars([("episodes", [report.stop_reasons.get(name, 0) for name, _ in _ENDS])], kinds, "episodes"), ""


def _lengths(episodes: Sequence[Episode]) -> tuple[str, str] | None:
    """Tokens of the completions, by whether the turn was right, and whether its budget ended it."""
    kinds = (("right", "right"), ("not right", "wrong"), ("cut off by its budget", "gone"))
    values: list[list[int]] = [[], [], []]
    for one in episodes:
        lengths = (one.turn_spans[:, 1] - one.turn_spans[:, 0]).tolist()
        for length, verdict, cut in zip(lengths, one.verdicts, one.turn_truncated, strict=True):
            values[0 if verdict.correct else 2 if cut else 1].append(length)
    return (histogram(values, kinds, "tokens", "turns"), "") if any(values) else None


def _confidence(episodes: Sequence[Episode], confidence: float) -> tuple[str, str] | None:
    """Accuracy of the turns in fifths of the mean log-prob of their tokens."""
    ids = {problem_id: i for i, problem_id in enumerate(dict.fromkeys(one.problem_id for one in episodes))}
    found = [
        (float(own.mean()), turn.verdict.correct, ids[one.problem_id])
        for one in episodes
        for turn in one.turns
        if (own := turn.logprobs).size and not np.isnan(own).any()
    ]
    if len(found) < 5 * _FIFTHS:
        return None
    found.sort(key=lambda row: row[0])
    rows = []
    for part in np.array_split(np.array(found), _FIFTHS):
        low, high = np.exp(part[[0, -1], 0])
        clusters = np.unique(part[:, 2], return_inverse=True)[1].reshape(-1).astype(np.int64)
        sums = cluster_sums(clusters, np.stack([part[:, 1], np.ones(len(part))], axis=1), int(clusters.max()) + 1)
        figure = ratio_estimate(sums[:, 0], sums[:, 1], (0.0, 1.0), units=len(part), confidence=confidence)
        rows.append((f"{low:.2f} to {high:.2f}", [figure]))
    words = (
        "All turns in five equal parts, the least sure on top: by the probability that the policy gave its tokens, as their"
        " geometric mean."
    )
    return ranges(rows, ["turns that are right"]), words
