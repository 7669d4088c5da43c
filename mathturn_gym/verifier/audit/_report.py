"""An audit as a page: one table over all cases and one for each source, in Markdown or as one HTML file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from mathturn_gym.verifier.audit._figures import AuditReport

__all__ = ["audit_html", "audit_markdown", "audit_rows"]

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
