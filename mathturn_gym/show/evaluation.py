"""`write_report`: what a set of episodes shows, as one page.

episodes ─► summarize ─► a sentence, cards, charts; tables by question, family and level are folded
         └─► facts    ─► charts: what a turn did with the feedback, verdicts, lengths, endings
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from markupsafe import Markup

from mathturn_gym.base.render import ENDINGS, STATUSES
from mathturn_gym.episodes.metrics import Estimate, summarize
from mathturn_gym.episodes.metrics.figures import MEANING, EpisodeFacts, facts
from mathturn_gym.episodes.metrics.intervals import cluster_sums, ratio_estimate
from mathturn_gym.episodes.metrics.report import Report
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.charts import Series, bars, histogram, lines, ranges
from mathturn_gym.show.pages import Chart, Section, write_report_page
from mathturn_gym.show.tables import Table
from mathturn_gym.types import Episode, Status, StopReason

Drawn: TypeAlias = "tuple[Markup, str]"
"""A chart, and how to read it."""

_GONE: Final = ("already ended", "gone")
_VERDICTS: Final = (*((style.words, status.value) for status, style in STATUSES.items()), _GONE)
_REPLIES: Final = (
    ("right", "right"),
    ("another wrong answer", "wrong"),
    ("an answer that had failed", "repeated"),
    ("no answer", "no_answer"),
    ("undecided", "undecided"),
)
_END_COLORS: Final = {StopReason.SOLVED: "right", StopReason.TURNS: "wrong"}
_FIFTHS: Final = 5
_MOST_ROWS: Final = 40
_SURPRISES: Final = {
    "cut_off": "of all turns: cut off by their budget",
    "no_answer": "of all turns: no answer found",
    "undecided": "of all turns: undecided",
    "verifier_errors": "of all turns: the verifier raised an error",
    "judged": "of all turns: decided by a judge",
}


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
        notes: What a reader must know before the numbers.
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
        ("Verdicts by turn", _verdicts(known, report.turns)),
        ("How episodes ended", _ends(report)),
        ("Tokens per turn", _lengths(episodes)),
        ("Is it right where it is sure?", _confidence(episodes, confidence)),
    ]
    sections = [
        Section(title="At a glance", charts=[Chart(name, *found) for name, found in charts if found]),
        Section(title="All metrics, by question", tables=_metric_tables(report), folded=True),
        *(_part_section(key, parts) for key, parts in report.by.items()),
    ]
    if settings is not None:
        text = json.dumps(settings, indent=1, ensure_ascii=False, default=str)
        sections.append(Section(title="Played with", text=text, folded=True))
    write_report_page(
        target,
        title=title,
        verdict=verdict_of(report),
        cards=[(value, words) for value, _, words in cards_of(report)],
        notes=notes,
        sections=sections,
    )
    return target


# ---- parts of the page


def verdict_of(report: Report) -> list[str]:
    """Returns what was found, in a sentence, and how much that rests on."""
    episodes, problems = (
        f"{count:,} {'different ' * (name == 'problem')}{name}{'s' * (count != 1)}"
        for count, name in ((report.episodes, "episode"), (report.problems, "problem"))
    )
    basis = f"{episodes} on {problems}; {report.confidence:.0%} intervals over problems."
    last = report.figures.get(f"acc@{report.turns}")
    if not report.turns or last is None or last.value is None:
        return ["No episode has a turn: the prompts did not fit.", basis]
    said = f"Solves {_percent(last)} of the episodes within {report.turns} turn{'s' * (report.turns != 1)}"
    if report.turns > 1:
        said += f", {_percent(report['acc@1'])} at the first"
        corrected = report.figures.get("corrected")
        if corrected is not None and corrected.value is not None:
            said += f"; of the wrong first turns, {_percent(corrected)} are corrected later"
    return [f"{said}.", basis]


def _percent(figure: Estimate) -> str:
    assert figure.value is not None
    ends = "" if figure.low is None or figure.high is None else f" [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"
    return f"{100 * figure.value:.1f} %{ends}"


def cards_of(report: Report) -> list[tuple[str, str, str]]:
    """Returns the numbers to see first, and what went wrong where anything did: value, interval and words of each."""
    first = {
        "acc@1": "right at the first turn",
        f"acc@{report.turns}": f"right within {report.turns} turns",
        "corrected": "of the episodes with a wrong first turn: solved later",
        "tokens": "tokens per episode",
        "tokens_per_solved": "tokens per solved episode",
    }
    cards = []
    for name, words in {**first, **_SURPRISES}.items():
        figure = report.figures.get(name)
        if figure is None or figure.value is None or (name in _SURPRISES and not figure.value):
            continue
        if name == "acc@1" and report.turns == 0:
            continue
        share = not name.startswith("tokens")
        scale = 100 if share else 1
        ends = [f"{scale * end:,.1f}" for end in (figure.low, figure.high) if end is not None]
        value = f"{scale * figure.value:,.1f}{' %' if share else ''}"
        cards.append((value, f"[{', '.join(ends)}]" if ends else "", words))
    return cards


def _metric_tables(report: Report) -> list[Table]:
    """Every metric below the question that it answers, with its meaning; what repeats another is left out."""
    tables = []
    repeats = repeats_of(report)
    for question, names in report.by_question().items():
        columns = ["metric", "value", f"{report.confidence:.0%} interval", "meaning"]
        table = Table(question, columns, words=[3])
        for name in names:
            meaning = f"the same as {repeats[name]}" if name in repeats else MEANING[re.sub("@.*", "@k", name)]
            table.rows.append([name, _value(report[name]), _interval(report[name]), meaning])
        tables.append(table)
    return tables


def repeats_of(report: Report) -> dict[str, str]:
    """Returns the metrics that repeat another one, by name, with the name of that other one.

    right@k is acc@k where episodes end when they are solved, pass@1 is acc@1.
    """
    seen: dict[tuple[str, Estimate], str] = {}
    repeats = {}
    for name in (name for names in report.by_question().values() for name in names):
        turn = name.partition("@")[2]
        first = seen.setdefault((turn, report[name]), name)
        # Metrics without a turn may be equal by chance; those of one turn are equal by definition.
        if turn and first != name:
            repeats[name] = first
    return repeats


def _part_section(key: str, parts: Mapping[str, Report]) -> Section:
    turns = max(part.turns for part in parts.values())
    names = list(dict.fromkeys(("acc@1", f"acc@{turns}", "corrected", "no_answer", "tokens")))
    table = Table("", [key, "episodes", "problems", *names], "A click on a heading sorts.")
    for value, part in parts.items():
        cells = [f"{_value(one)} {_interval(one)}".strip() for one in (_of(part, name) for name in names)]
        table.rows.append([value, f"{part.episodes:,}", f"{part.problems:,}", *cells])
    ends = list(dict.fromkeys(("acc@1", f"acc@{turns}")))
    rows = [(value, [_of(part, name) for name in ends]) for value, part in parts.items()]
    if not all(value.removeprefix("-").isdecimal() for value in parts):  # levels stay in their order
        rows.sort(key=lambda row: row[1][-1].value or 0.0, reverse=True)
    left = len(rows) - _MOST_ROWS
    words = f"The best {_MOST_ROWS}; the other {left} are in the table below." if left > 0 else ""
    chart = Chart(f"Accuracy by {key}", ranges(rows[:_MOST_ROWS], ends), words)
    return Section(title=f"By {key}", charts=[chart], tables=[table], folded=True)


def _of(report: Report, name: str) -> Estimate:
    """A metric of a part; a part whose episodes had fewer turns gives that of its last turn."""
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


# ---- charts with their words, or None where there is nothing to draw


def _by_turn(report: Report) -> Drawn | None:
    if not report.turns:
        return None

    def points(stem: str) -> list[tuple[int, Estimate]]:
        return [(k, report[name]) for k in range(1, report.turns + 1) if (name := f"{stem}@{k}") in report.figures]

    series = [Series("solved within k turns (acc@k)", points("acc"))]
    right = points("right")
    if any(figure.value != report[f"acc@{k}"].value for k, figure in right):
        series.append(Series("right after turn k (right@k)", right, dashed=True))
    fresh = points("pass") if report.turns > 1 else []  # pass@1 is acc@1
    if fresh:
        series.append(Series("k independent samples (pass@k)", fresh, dashed=True))
    words = (
        "Where turns are above independent samples, another turn is worth more than another sample." if fresh else ""
    )
    return lines(series, "turn"), words


def _feedback_use(known: Sequence[EpisodeFacts]) -> Drawn | None:
    """What each turn but the first did, by the verdict of the turn before."""
    counts: dict[Status, Counter[str]] = {status: Counter() for status in Status}
    for one in known:
        failed: set[str] = set()
        for k, (status, answer) in enumerate(zip(one.statuses, one.answers, strict=True)):
            if k:
                repeated = status is Status.WRONG and answer in failed
                counts[one.statuses[k - 1]]["repeated" if repeated else status.value] += 1
            if status is not Status.RIGHT and answer is not None:
                failed.add(answer)
    rows = [
        (f"after {STATUSES[status].words}", [found[kind] for _, kind in _REPLIES])
        for status, found in counts.items()
        if found
    ]
    words = (
        "A policy that uses its feedback leaves what was wrong and stays with what was right. The number behind each bar"
        " counts its turns."
    )
    return (bars(rows, _REPLIES, "turns"), words) if rows else None


def _verdicts(known: Sequence[EpisodeFacts], turns: int) -> Drawn | None:
    if not turns:
        return None
    rows = []
    for k in range(turns):
        found = Counter(one.statuses[k].value if k < len(one.statuses) else "gone" for one in known)
        rows.append((f"turn {k + 1}", [found[kind] for _, kind in _VERDICTS]))
    return bars(rows, _VERDICTS, "episodes"), ""


def _ends(report: Report) -> Drawn:
    kinds = [(words, _END_COLORS.get(reason, "no_answer")) for reason, words in ENDINGS.items()]
    counts = [report.stop_reasons.get(reason.value, 0) for reason in ENDINGS]
    kinds.append(("cut short", "gone"))
    return bars([("episodes", [*counts, report.stop_reasons.get("none", 0)])], kinds, "episodes"), ""


def _lengths(episodes: Sequence[Episode]) -> Drawn | None:
    """Tokens of the completions, by whether the turn was right, and whether its budget ended it."""
    kinds = (("right", "right"), ("not right", "wrong"), ("cut off by its budget", "gone"))
    values: list[list[int]] = [[], [], []]
    for one in episodes:
        lengths = (one.turn_spans[:, 1] - one.turn_spans[:, 0]).tolist()
        for length, verdict, cut in zip(lengths, one.verdicts, one.turn_truncated, strict=True):
            values[0 if verdict.correct else 2 if cut else 1].append(length)
    return (histogram(values, kinds, "tokens", "turns"), "") if any(values) else None


def _confidence(episodes: Sequence[Episode], confidence: float) -> Drawn | None:
    """Accuracy of the turns in fifths of the mean log-prob of their tokens."""
    ids = {problem_id: i for i, problem_id in enumerate(dict.fromkeys(one.problem_id for one in episodes))}
    found = [
        (float(own.mean()), turn.verdict.correct, ids[one.problem_id])
        for one in episodes
        for turn in one.turns
        # Chat APIs give no log-probs.
        if (own := turn.logprobs).size and not np.isnan(own).any()
    ]
    # Fewer than five turns in a part: its interval would be all of the axis.
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
