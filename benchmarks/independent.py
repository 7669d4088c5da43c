r"""Labels of other projects: our three policies beside math-verify, Inspect's scorer and others, per source.

    python benchmarks/independent.py [--cases ../shared/cases/independent/cases.jsonl] [--out runs/benchmarks/independent.json]

Rows whose label is wrong, or is that project's policy rather than the truth of an equality, are named with the reason in
`independent_labels.json`, and left out; `--all` keeps them. Verifiers that are not installed are left out. `--path` adds folders
in which some are, which are asked last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mathturn_gym.verifier.audit import AuditReport, Case, audit_markdown, installed_verifiers, load_cases, run_audit

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1] / "shared" / "cases" / "independent" / "cases.jsonl"
POLICIES = ["mathturn-lenient", "mathturn", "mathturn-boxed"]


def key_of(case: Case) -> str:
    """What a row is called in the list of labels: rows of other projects are not copied."""
    return hashlib.sha256("\0".join((case.group, case.gold, case.response)).encode()).hexdigest()[:12]


def left_out() -> dict[str, dict[str, str]]:
    """Reason by row."""
    rows: list[dict[str, str]] = json.loads((HERE / "independent_labels.json").read_text(encoding="utf-8"))
    return {row["key"]: row for row in rows}


def figures(report: AuditReport) -> dict[str, Any]:
    """All rows, and each source."""
    parts = {group: part.summary() for group, part in report.by_group().items()}
    return report.summary() | {"sources": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=SHARED)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--verifier", nargs="*")
    parser.add_argument("--path", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/independent.json"))
    arguments = parser.parse_args()
    sys.path += arguments.path
    wrong = {} if arguments.all else left_out()
    cases = [case for case in load_cases(arguments.cases) if key_of(case) not in wrong]
    cases = [replace(case, group=case.group.partition(":")[0]) for case in cases]
    names = arguments.verifier or [*POLICIES, *(name for name in installed_verifiers() if name != "mathturn")]
    reports = [run_audit(name, cases) for name in names]
    print(audit_markdown(reports))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps([figures(report) for report in reports], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
