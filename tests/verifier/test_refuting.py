"""Rows that were written to refute the verifier, and labelled before it saw them: no wrong one is accepted anywhere."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from mathturn_gym.verifier import Status, Verifier

# Sets in the order in which they were written, each after the mends of those before it.
ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in resources.files("mathturn_gym")
    .joinpath("assets", "verifier_classes.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
SETS = list(dict.fromkeys(row["set"] for row in ROWS))
SETTINGS: list[dict[str, Any]] = [
    {"extract": "boxed", "form": "evaluated"},
    {"extract": "boxed", "form": "equivalent"},
    {"extract": "marked", "form": "equivalent"},
]
BOX = "We get $\\boxed{", "}$."
STEP = 6
"""By default each setting gets a sixth of the rows; `make test-slow` has them all."""


def responses(row: dict[str, Any], extract: str) -> list[str]:
    """The answer in a box; and in a sentence, with and without a formula's delimiters; or the row's own response."""
    text = row["response"]
    if extract == "boxed" or not (text.startswith(BOX[0]) and text.endswith(BOX[1])):
        return [text]
    answer = text.removeprefix(BOX[0]).removesuffix(BOX[1])
    return [f"The answer is ${answer}$.", f"The answer is {answer}.", f"So.\n#### {answer}"]


def judged(rows: list[dict[str, Any]], extract: str, form: Any) -> list[tuple[dict[str, Any], str, bool]]:
    pairs = [(row, response) for row in rows for response in responses(row, extract)]
    with Verifier(form=form, extract=extract, timeout=1.0) as verifier:  # type: ignore[arg-type]
        verdicts = verifier.verify_batch([text for _, text in pairs], [row["gold"] for row, _ in pairs])
    return [(row, text, verdict.status is Status.RIGHT) for (row, text), verdict in zip(pairs, verdicts, strict=True)]


def check(rows: list[dict[str, Any]], setting: dict[str, Any]) -> None:
    found = judged(rows, **setting)
    assert not [(row["gold"], text) for row, text, right in found if right and not row["label"]]
    if setting == {"extract": "boxed", "form": "equivalent"}:
        told = [(row, right) for row, text, right in found if row["label"] and "\\boxed" in text]
        refused = [row for row, right in told if not right]
        assert len(refused) <= 0.1 * len(told), refused


@pytest.mark.parametrize("part", range(len(SETTINGS)))
def test_a_sixth_of_the_rows_in_each_setting(part: int) -> None:
    assert len(ROWS) >= 4_000
    check(ROWS[part::STEP], SETTINGS[part])


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SETS)
def test_nothing_wrong_is_accepted_and_little_that_is_right_refused(name: str, setting: dict[str, Any]) -> None:
    rows = [row for row in ROWS if row["set"] == name]
    assert sum(not row["label"] for row in rows) >= 200
    assert sum(row["label"] for row in rows) >= 80
    check(rows, setting)
