"""The labelled suite of the package, and the cases that are shared with it: every verdict as it should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.verifier import Status, Verifier
from mathturn_gym.verifier.audit import load_cases

SUITE = Path(__file__).resolve().parents[2] / "mathturn_gym" / "assets" / "verifier_suite.jsonl"
LEFT_OUT = {"adversarial", "policy", "gsm8k_ref", "mathverify_tests_nobox"}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def judged(rows: list[dict[str, Any]], **keywords: Any) -> list[tuple[dict[str, Any], Status]]:
    """Rows with their statuses; all of one kind at a time."""
    found: list[tuple[dict[str, Any], Status]] = []
    with Verifier(**keywords) as verifier:
        for kind in ("answer", "response"):
            part = [row for row in rows if row["kind"] == kind]
            verdicts = verifier.verify_batch(
                [row["response"] for row in part], [row["gold"] for row in part], kind=kind
            )
            found.extend(zip(part, (verdict.status for verdict in verdicts), strict=True))
    return found


def test_the_suite_is_large_and_has_every_category() -> None:
    cases = load_cases()
    assert len(cases) >= 1500
    categories = {name: sum(case.category == name for case in cases) for name in {case.category for case in cases}}
    assert set(categories) == {"positive", "negative", "exploit", "pathological"}
    assert min(categories.values()) >= 40


@pytest.mark.parametrize("form", ["equivalent", "evaluated"])
def test_every_row_of_the_suite(form: str) -> None:
    # Half a second: what needs symbolic work is never right here, and undecided is not right either.
    found = judged(rows_of(SUITE), form=form, timeout=0.5)
    wanted = [row.get("evaluated", row["label"]) if form == "evaluated" else row["label"] for row, _ in found]
    wrong = [
        (row["gold"][:60], row["response"][:60], status)
        for (row, status), want in zip(found, wanted, strict=True)
        if (status is Status.RIGHT) != want
    ]
    assert not wrong


def test_shared_cases_are_judged_as_labelled(shared: Path) -> None:
    rows = [
        row for path in sorted((shared / "cases").glob("*.jsonl")) if path.stem not in LEFT_OUT for row in rows_of(path)
    ]
    found = judged(rows, form="equivalent")
    positives = sum(row["label"] for row, _ in found)
    false_positives = sum(status is Status.RIGHT and not row["label"] for row, status in found)
    false_negatives = sum(status is not Status.RIGHT and row["label"] for row, status in found)
    assert 1 - (false_positives + false_negatives) / len(found) >= 0.997
    assert false_positives / (len(found) - positives) <= 0.0006
    assert false_negatives / positives <= 0.005


def test_shared_policy_cases_in_both_forms(shared: Path) -> None:
    rows = rows_of(shared / "cases" / "policy.jsonl")
    for row, status in judged(rows, form="equivalent"):
        assert (status is Status.RIGHT) == row["label"], row
    for row, status in judged(rows, form="evaluated"):
        # Perturbed rows have arithmetic left to do; the others are the same in both forms.
        assert (status is Status.RIGHT) == (row["label"] and "pert" not in row), row


def test_shared_adversarial_cases(shared: Path, tmp_path: Path) -> None:
    marker = tmp_path / "made"
    rows = rows_of(shared / "cases" / "adversarial.jsonl")
    for row in rows:
        row["response"] = row["response"].replace("{T}", str(marker))
    for row, status in judged(rows, form="equivalent", timeout=1.0):
        assert (status is Status.RIGHT) == row["label"], row["name"]
    assert not marker.exists()
