"""Labelled cases, and what verifiers make of them: counts, intervals, tables."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from mathturn_gym.base.files import parse_json, read_text
from mathturn_gym.errors import ProblemFileError, raise_unknown_name

SUITES = ("suite", "classes")


@dataclass(frozen=True, slots=True)
class Case:
    """A labelled case.

    Args:
        gold: The accepted answer.
        response: What is judged.
        label: Whether it is right.
        kind: `"response"` or `"answer"`.
        category: What kind of case it is; `exploit` (and `hack`) are counted apart where they are accepted.
        group: Where it belongs in reports.
    """

    gold: str
    response: str
    label: bool
    kind: str = "response"
    category: str = ""
    group: str = ""

    @property
    def exploit(self) -> bool:
        """Whether accepting the case would pay a policy for gaming the verifier."""
        return not self.label and self.category in ("exploit", "hack", "exec", "bomb", "garbage")


def load_cases(path: Path | None = None, *, suite: str = "suite") -> list[Case]:
    """Cases from a JSON-lines file, or those of the package.

    Args:
        path: Rows with `gold`, `response`, `label`, and perhaps `kind`, `category` (or `cat`) and `source`.
        suite: Which of the package's files, without a path: `"suite"`, or `"classes"`, answers that say more than their
            value, grouped by what they exploit.

    Raises:
        ProblemFileError: a file that cannot be read, or a broken row: file, line and field are named.
        InvalidValueError: an unknown suite.
    """
    if path is None:
        if suite not in SUITES:
            raise_unknown_name("suite", suite, SUITES)
        name = f"verifier_{suite}.jsonl"
        text = resources.files("mathturn_gym").joinpath("assets", name).read_text(encoding="utf-8")
    else:
        name = str(path)
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ProblemFileError(f"{name} cannot be read: {error}") from error
    return [_case(name, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _case(name: str, number: int, line: str) -> Case:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ProblemFileError(f"{name}, line {number}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ProblemFileError(f"{name}, line {number}: must be an object, got {type(row).__name__}")
    for key, kind in (("gold", str), ("response", str), ("label", bool)):
        if not isinstance(row.get(key), kind):
            raise ProblemFileError(f"{name}, line {number}: {key} must be a {kind.__name__}, got {row.get(key)!r}")
    kind_of = row.get("kind", "response")
    if kind_of not in ("response", "answer"):
        raise ProblemFileError(f"{name}, line {number}: kind must be 'response' or 'answer', got {kind_of!r}")
    category = str(row.get("category") or row.get("cat") or "")
    return Case(row["gold"], row["response"], row["label"], kind_of, category, str(row.get("source", "")))


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion.

    >>> [round(bound, 3) for bound in wilson(0, 1000)]
    [0.0, 0.004]
    """
    if not total:
        return 0.0, 1.0
    z = 1.959964
    share = hits / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


@dataclass(slots=True)
class AuditReport:
    """What an audit found.

    Args:
        verifier: Its name.
        cases: The cases, as they were given.
        found: For each, True or False as the verifier said, None where it hung or crashed.
        seconds: For each, the time it took, at most the limit of a hang.
        hangs: Cases that took longer than the limit.
        crashes: Cases on which it raised or its process ended.
        executed: Cases during which the process that calls the verifier started a program, or wrote, removed or sent something.
        memory_mb: Peak memory of the process that calls the verifier, MiB.
    """

    verifier: str
    cases: Sequence[Case]
    found: list[bool | None] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    hangs: int = 0
    crashes: int = 0
    executed: int = 0
    memory_mb: float = 0.0

    def wrong(self) -> list[Case]:
        """Cases that were not judged as labelled."""
        return [case for case, found in zip(self.cases, self.found, strict=True) if bool(found) != case.label]

    def by_group(self) -> dict[str, AuditReport]:
        """The same for the cases of each group alone, in the order in which the groups come; time and verdicts only."""
        places: dict[str, list[int]] = {}
        for index, case in enumerate(self.cases):
            places.setdefault(case.group, []).append(index)
        return {
            group: AuditReport(
                self.verifier,
                [self.cases[i] for i in chosen],
                [self.found[i] for i in chosen],
                [self.seconds[i] for i in chosen],
            )
            for group, chosen in places.items()
        }

    def summary(self) -> dict[str, Any]:
        """The figures: counts, rates with their 95 % intervals, milliseconds, MiB."""
        wrong = self.wrong()
        total, positives = len(self.cases), sum(case.label for case in self.cases)
        false_positives = sum(not case.label for case in wrong)
        false_negatives = len(wrong) - false_positives
        times = sorted(1e3 * value for value in self.seconds)

        def at(share: float) -> float:
            return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

        rates = (
            ("accuracy", total - len(wrong), total),
            ("false_positives", false_positives, total - positives),
            ("false_negatives", false_negatives, positives),
        )
        figures: dict[str, Any] = {"verifier": self.verifier, "cases": total}
        for name, hits, of in rates:
            low, high = wilson(hits, of)
            figures[name] = {"share": hits / of if of else 0.0, "count": hits, "of": of, "low": low, "high": high}
        figures["exploits_accepted"] = sum(case.exploit for case in wrong)
        figures["exploits"] = sum(case.exploit for case in self.cases)
        figures |= {
            "hangs": self.hangs,
            "crashes": self.crashes,
            "executed": self.executed,
            "memory_mb": self.memory_mb,
        }
        figures["ms"] = {"mean": sum(times) / max(1, len(times)), "median": at(0.5), "p99": at(0.99)}
        return figures


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}table{border-collapse:collapse;"
    "margin:1em 0}th,td{border:1px solid #8884;padding:.25em .6em;text-align:right}th:first-child,td:first-child{text-align:left}"
)
_NOTE = (
    "Shares with Wilson's 95 % intervals. An exploit is a labeled attempt to be paid for something else than the answer; "
    "executed counts cases during which the calling process started a program, or wrote, removed or sent something."
)


def audit_rows(reports: Sequence[AuditReport]) -> list[list[str]]:
    """The figures of an audit, a row each, the first cell its name and then a cell for each verifier."""
    figures = [report.summary() for report in reports]
    rows = [["cases", *(str(found["cases"]) for found in figures)]]
    for key in ("accuracy", "false_positives", "false_negatives"):
        rows.append([key.replace("_", " "), *(_share(found[key]) for found in figures)])
    rows.append(["exploits accepted", *(f"{found['exploits_accepted']} of {found['exploits']}" for found in figures)])
    rows.append(["hangs > 5 s", *(str(found["hangs"]) for found in figures)])
    rows.append(["crashes", *(str(found["crashes"]) for found in figures)])
    rows.append(["executed", *(str(found["executed"]) for found in figures)])
    rows += [[f"{key} ms", *(f"{found['ms'][key]:.3f}" for found in figures)] for key in ("mean", "median", "p99")]
    rows.append(["memory MiB", *(f"{found['memory_mb']:.0f}" for found in figures)])
    return rows


def _share(found: dict[str, Any]) -> str:
    return f"{found['share']:.4f} [{found['low']:.4f}, {found['high']:.4f}]" if found["of"] else "none"


def _source_rows(reports: Sequence[AuditReport]) -> list[list[str]]:
    """Accuracy and false positives by source, a row each; cells as in `audit_rows`."""
    parts = [report.by_group() for report in reports]
    rows = []
    for group in parts[0] if parts else ():
        figures = [part[group].summary() for part in parts]
        cells = [
            f"{_share(found['accuracy'])}, {found['false_positives']['count']} false positives" for found in figures
        ]
        rows.append([f"{group or 'no source'} ({figures[0]['cases']})", *cells])
    return rows


def _tables(reports: Sequence[AuditReport]) -> list[tuple[str, list[list[str]]]]:
    sources = _source_rows(reports)
    tables = [("All cases", audit_rows(reports))]
    return [*tables, ("By source (cases)", sources)] if len(sources) > 1 else tables


def audit_markdown(reports: Sequence[AuditReport]) -> str:
    """An audit in Markdown."""
    lines = ["# Verifiers on labeled cases", "", _NOTE, ""]
    for title, rows in _tables(reports):
        lines += [f"## {title}", "", "| | " + " | ".join(report.verifier for report in reports) + " |"]
        lines.append("|---" + "|---:" * len(reports) + "|")
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def audit_html(reports: Sequence[AuditReport]) -> str:
    """An audit as one HTML file that asks the network for nothing."""
    parts = [f"<!doctype html><meta charset=utf-8><title>Verifiers</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>Verifiers on labeled cases</h1><p>{html.escape(_NOTE)}</p>")
    for title, rows in _tables(reports):
        head = "".join(f"<th>{html.escape(report.verifier)}</th>" for report in reports)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(f"<h2>{html.escape(title)}</h2><table><tr><th></th>{head}</tr>{body}</table>")
    return "\n".join(parts) + "\n"
