"""The short way to a verdict: the same object as the long way makes, and nothing where it may be mistaken."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from mathturn_gym.types import Status, Verdict
from mathturn_gym.verifier._fast_path import quick_integer, quick_verdict


@pytest.mark.parametrize("status", [Status.RIGHT, Status.WRONG, Status.UNDECIDED])
def test_a_quick_verdict_is_a_verdict(status: Status) -> None:
    quick = quick_verdict(status, "equal", "7", (3, 4), "07", "rational", "box", 0.5)
    plain = Verdict(status, "equal", answer="7", span=(3, 4), gold="07", tier="rational", rule="box", seconds=0.5)
    assert type(quick) is Verdict
    assert [getattr(quick, field.name) for field in dataclasses.fields(quick)] == [
        getattr(plain, field.name) for field in dataclasses.fields(plain)
    ]
    assert quick == plain
    assert hash(quick) == hash(plain)
    assert (quick.value, quick.correct) == (plain.value, plain.correct)
    assert pickle.loads(pickle.dumps(quick)) == copy.copy(quick) == dataclasses.replace(quick) == plain
    with pytest.raises(dataclasses.FrozenInstanceError):
        quick.reason = "different"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("response", "gold", "found"),
    [
        ("So \\boxed{1,234}.", "1234", ("right", "rational")),
        ("So \\boxed{1234}.", ("1234",), ("right", "exact")),
        ("So \\boxed{1235}.", "1234", ("wrong", "rational")),
        ("#### 12", "12", ("right", "exact")),
        ("So \\boxed{1,2}.", "12", None),
        ("So \\boxed{12}.", ("12", "13"), None),
        ("So \\boxed{12}.", (12,), None),
        ("So \\boxed{12}.", 12, None),
        (12, "12", None),
        ("So \\boxed{x}.", "12", None),
        ("So \\boxed{12}.", "x", None),
        ("So \\boxed{12", "12", None),
        ("\\boxed{1}, \\boxed{12}", "12", None),
        ("\\boxed{12} and \\fbox{13}", "12", None),
        ("\\fbox{13} #### 12", "12", None),
        ("<think>\\boxed{12}", "12", None),
        ("no answer", "12", None),
    ],
)
def test_what_it_answers_and_what_it_leaves(response: object, gold: object, found: tuple[str, str] | None) -> None:
    verdict = quick_integer(response, gold, True, 0.0)
    assert found == (None if verdict is None else (verdict.status.value, verdict.tier))


def test_hashes_count_only_where_they_may() -> None:
    assert quick_integer("#### 12", "12", False, 0.0) is None
    assert quick_integer("So \\boxed{12}.", "12", False, 0.0) is not None
