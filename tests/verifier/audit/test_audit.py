"""The audit: cases, figures, and verifiers that hang, crash or are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mathturn_gym.errors import InvalidValueError, ProblemFileError, VerifierError
from mathturn_gym.verifier.audit import Case, _run, audit_markdown, installed_verifiers, load_cases, run_audit
from mathturn_gym.verifier.audit._report import audit_html, wilson

CASES = [
    Case("1", "1", True, "answer"),
    Case("1", "2", False, "answer"),
    Case("46", "12+34", True, "answer"),
    Case("7", "7 \\text{ or } 8", False, "answer", "exploit"),
    Case("3", "We get \\boxed{3}.", True),
]

BAD_VERIFIER = """
import os, time

def check(response, gold):
    if "crash" in response:
        raise RuntimeError("no")
    if "die" in response:
        os._exit(3)
    if "write" in response:
        open(os.devnull, "w").close()
    if "start" in response:
        os.system("true")
    if "hang" in response:
        time.sleep(60)
    return 1.0 if gold in response else 0.0
"""


def test_our_verifier_under_audit() -> None:
    report = run_audit("mathturn", CASES, form="equivalent")
    assert report.found == [True, False, True, False, True]
    assert not report.wrong()
    figures = report.summary()
    assert figures["accuracy"]["share"] == 1.0
    assert figures["exploits"] == 1
    assert figures["exploits_accepted"] == figures["hangs"] == figures["crashes"] == 0
    assert 0 < figures["memory_mb"] < 300
    assert 0 < figures["ms"]["median"] <= figures["ms"]["p99"]


def test_math_verify_under_audit() -> None:
    assert run_audit("math-verify", CASES[:2]).found == [True, False]


def test_a_user_s_verifier_may_hang_crash_and_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad_verifier.py").write_text(BAD_VERIFIER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_run, "_HANG_SECONDS", 1.0)
    responses = ["it is 5", "crash", "hang", "die", "no", "5"]
    seen: list[None] = []
    report = run_audit(
        "bad_verifier:check", [Case("5", text, text != "no") for text in responses], progress=lambda: seen.append(None)
    )
    assert report.found == [True, None, None, None, False, True]
    assert (report.hangs, report.crashes, len(seen)) == (1, 2, 6)
    figures = report.summary()
    assert figures["false_negatives"]["count"] == 3
    assert figures["false_positives"]["count"] == 0


def test_what_a_verifier_does_to_the_machine_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doing_verifier.py").write_text(BAD_VERIFIER)
    monkeypatch.syspath_prepend(str(tmp_path))
    report = run_audit("doing_verifier:check", [Case("5", text, True) for text in ("5", "write 5", "start 5", "5")])
    assert report.found == [True] * 4
    assert report.executed == report.summary()["executed"] == 2


def test_policies_are_verifiers_of_their_own() -> None:
    case = Case("7", "It may be 7, or so.", True)
    found = {name: run_audit(name, [case]).found for name in ("mathturn-boxed", "mathturn", "mathturn-lenient")}
    assert found == {"mathturn-boxed": [False], "mathturn": [False], "mathturn-lenient": [True]}


def test_sources_apart_and_as_a_page() -> None:
    cases = [replace(case, group="a|<b>" if case.label else "c") for case in CASES]
    reports = [run_audit("mathturn", cases), run_audit("mathturn-boxed", cases)]
    parts = reports[0].by_group()
    assert {group: len(part.cases) for group, part in parts.items()} == {"a|<b>": 3, "c": 2}
    assert parts["c"].summary()["false_positives"]["of"] == 2
    markdown, page = audit_markdown(reports), audit_html(reports)
    assert "| | mathturn | mathturn-boxed |" in markdown
    assert "| accuracy | 1.0000 [0.5655, 1.0000] | 1.0000 [0.5655, 1.0000] |" in markdown
    assert "| a\\|<b> (3) | 1.0000 [0.4385, 1.0000], 0 false positives |" in markdown
    assert "a|&lt;b&gt; (3)" in page
    assert "<b>" not in page
    assert "http" not in page
    assert "By source" not in audit_markdown([run_audit("mathturn", CASES[:2])])


def test_what_is_installed_comes_ours_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_verifiers()[:2] == ["mathturn", "math-verify"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert installed_verifiers() == ["mathturn"]


def test_verifiers_that_are_not_there() -> None:
    with pytest.raises(InvalidValueError, match="did you mean 'math-verify'"):
        run_audit("math-verfy", CASES)
    with pytest.raises(VerifierError, match="does not start: ModuleNotFoundError"):
        run_audit("no_such_module:check", CASES)


def test_wilson_s_interval() -> None:
    low, high = wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)  # Wilson (1927), as in every table of it
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(1000, 1000)
    assert low == pytest.approx(0.99617, abs=1e-5)
    assert high == 1.0


def test_broken_rows_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    good = json.dumps({"gold": "1", "response": "1", "label": True, "cat": "hack"})
    for row, part in (
        ("{", "line 2: not JSON"),
        ("[]", "line 2: must be an object"),
        ('{"gold": 1, "response": "1", "label": true}', "line 2: gold must be a str"),
        ('{"gold": "1", "response": "1", "label": 1}', "line 2: label must be a bool"),
        ('{"gold": "1", "response": "1", "label": true, "kind": "x"}', "line 2: kind must be"),
    ):
        path.write_text(f"{good}\n{row}\n")
        with pytest.raises(ProblemFileError, match=part):
            load_cases(path)
    path.write_text(good + "\n\n")
    (case,) = load_cases(path)
    assert case.category == "hack"
    with pytest.raises(ProblemFileError, match="cannot be read"):
        load_cases(tmp_path / "missing.jsonl")
