"""Rows that were written to refute the verifier, and labelled before it saw them: no wrong one is accepted anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.verifier import Status, Verifier

HERE = Path(__file__).resolve().parent
SETTINGS: list[dict[str, Any]] = [
    {"extract": "boxed", "form": "evaluated"},
    {"extract": "boxed", "form": "equivalent"},
    {"extract": "marked", "form": "equivalent"},
]


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def responses(row: dict[str, Any], extract: str) -> list[str]:
    """The answer in a box; and in a sentence, with and without a formula's delimiters; or the row's own response."""
    if "response" in row:
        return [row["response"]]
    answer = row["answer"]
    if extract == "boxed":
        return [f"We get $\\boxed{{{answer}}}$."]
    return [f"The answer is ${answer}$.", f"The answer is {answer}.", f"So.\n#### {answer}"]


def judged(rows: list[dict[str, Any]], extract: str, form: Any) -> list[tuple[dict[str, Any], str, bool]]:
    pairs = [(row, response) for row in rows for response in responses(row, extract)]
    with Verifier(form=form, extract=extract, timeout=1.0) as verifier:  # type: ignore[arg-type]
        verdicts = verifier.verify_batch([text for _, text in pairs], [row["gold"] for row, _ in pairs])
    return [(row, text, verdict.status is Status.RIGHT) for (row, text), verdict in zip(pairs, verdicts, strict=True)]


# The later sets are long: by default they run in one setting.
RUNS = [
    pytest.param(name, setting, marks=[pytest.mark.slow] if long and setting != SETTINGS[1] else [])
    for name, long in [
        ("first", False),
        ("second", False),
        ("third", True),
        ("fourth", True),
        ("fifth", True),
        ("sixth", True),
    ]
    for setting in SETTINGS
]


@pytest.mark.parametrize(("name", "setting"), RUNS)
def test_nothing_wrong_is_accepted_and_little_that_is_right_refused(name: str, setting: dict[str, Any]) -> None:
    rows = rows_of(f"refuting_{name}")
    assert sum(not row["label"] for row in rows) >= 200
    assert sum(row["label"] for row in rows) >= 80
    found = judged(rows, **setting)
    assert not [(row["gold"], text) for row, text, right in found if right and not row["label"]]
    if setting == {"extract": "boxed", "form": "equivalent"}:
        told = [(row, right) for row, _, right in found if row["label"] and "answer" in row]
        refused = [row for row, right in told if not right]
        assert len(refused) <= 0.1 * len(told), refused
