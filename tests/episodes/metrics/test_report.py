import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mathturn_gym.cli.report import report_tables
from mathturn_gym.episodes.metrics import Estimate, summarize
from mathturn_gym.episodes.metrics.figures import MEANING
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Episode, Status, StopReason, Verdict


def episode(
    problem_id: str,
    marks: Sequence[str],
    *,
    stop: StopReason | None = None,
    lengths: Sequence[int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    returns: Sequence[float] | None = None,
) -> Episode:
    """An episode whose turns are given as marks: "4+" right with answer 4, "5-" wrong, "_" no answer, "?" undecided."""
    lengths = lengths or [2] * len(marks)
    spans, at = [], 3
    for length in lengths:
        spans.append((at, at + length))
        at += length + 1
    mask = np.zeros(at, np.bool_)
    for start, end in spans:
        mask[start:end] = True
    kinds = {"+": Status.RIGHT, "-": Status.WRONG, "_": Status.NO_ANSWER, "?": Status.UNDECIDED}
    verdicts = tuple(Verdict(kinds[mark[-1]], answer=mark[:-1] or None) for mark in marks)
    values = [1.0 if v.correct else -1.0 for v in verdicts]
    return Episode(
        problem_id=problem_id,
        ids=np.zeros(at, np.int64),
        loss_mask=mask,
        logprobs=np.zeros(at, np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn_spans=np.array(spans, np.int64).reshape(-1, 2),
        rewards=np.array(values, np.float64),
        verdicts=verdicts,
        feedbacks=("",) * len(marks),
        turn_truncated=tuple(mark == "_" for mark in marks),
        terminated=stop is not StopReason.CONTEXT,
        truncated=stop is StopReason.CONTEXT,
        stop_reason=stop,
        returns=None if returns is None else np.array(returns, np.float32),
        metadata=metadata or {},
    )


SOLVED, TURNS = StopReason.SOLVED, StopReason.TURNS
# Three problems with two episodes each, until-correct, at most 3 turns.
HAND = [
    episode("p", ["4+"], stop=SOLVED, lengths=[5]),
    episode("p", ["5-", "4+"], stop=SOLVED, lengths=[1, 3]),
    episode("q", ["1-", "1-", "2-"], stop=TURNS),
    episode("q", ["_", "1-", "7+"], stop=SOLVED),
    episode("r", ["9?", "8-", "9-"], stop=TURNS),
    episode("r", [], stop=StopReason.CONTEXT),
]


def value(name: str, episodes: Sequence[Episode] = HAND) -> float:
    found = summarize(episodes)[name].value
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "acc@1": 1 / 6,
        "acc@2": 2 / 6,
        "acc@3": 3 / 6,
        "right@1": 1 / 6,
        "right@2": 2 / 6,
        "right@3": 3 / 6,
        "delta_1_2": 1 / 6,
        "wrong_to_right": 2 / 7,  # turns not right with a successor: 1 + 2 + 2 + 2
        "corrected": 2 / 4,  # the episode without a turn has no first turn to correct
        "turns": 12 / 6,
        "turns_to_success": (1 + 2 + 3) / 3,
        "tokens": (5 + 4 + 6 + 6 + 6) / 6,
        "tokens_to_success": (5 + 4 + 6) / 3,
        "tokens_per_solved": 27 / 3,
        "return": (1 + 0 - 3 - 1 - 3 + 0) / 6,
        "no_answer": 1 / 12,
        "undecided": 1 / 12,
        "judged": 0.0,
        "verifier_errors": 0.0,
        "cut_off": 1 / 12,
        "repeated_answer": 2 / 7,  # q: 1 again; r: 9 again
        "distinct_answers": (1 + 2 + 2 + 2 + 2) / 5,
        "right_if_answered": 1 / 4,
        "siblings_if_answered": (0 + 1) / 2,  # only p has two first turns that answered
        "siblings_if_silent": (0 + 0) / 2,  # q's other episode, r's other episode: both wrong
        "pass@1": 1 / 6,
        "pass@2": 1 / 3,
        "majority@2": 0.5 / 3,  # p ties between 4 and 5
        "retry_gain@2": (1 + 0 + 0 - 1) / 3,
    }.items(),
)
def test_figures_match_the_hand_computed_ones(name: str, expected: float) -> None:
    assert math.isclose(value(name), expected)


def test_turns_whose_verifier_raised_are_counted() -> None:
    errors = [
        replace(one, verdicts=(*one.verdicts[:-1], Verdict(Status.UNDECIDED, "the verifier raised", tier="error")))
        for one in (episode("p", ["4+", "?"]), episode("q", ["?"]))
    ]
    found = [*errors, episode("r", ["5-", "?"])]
    assert math.isclose(value("verifier_errors", found), 2 / 5)
    assert math.isclose(value("undecided", found), 3 / 5)
    shown = Console(file=io.StringIO(), width=200)
    shown.print(report_tables(summarize(found)))
    assert "verifier_errors" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_figures_that_nothing_defines_are_none() -> None:
    report = summarize(HAND)
    assert report["right_to_wrong"].value is None  # until-correct: no right turn has a successor
    assert summarize([])["turns"].value is None
    assert "pass@4" not in report.figures


def test_right_to_wrong_needs_turns_after_a_right_one() -> None:
    fixed = [episode("p", ["4+", "5-", "4+"], stop=TURNS), episode("q", ["4+", "4+", "4+"], stop=TURNS)]
    assert math.isclose(value("right_to_wrong", fixed), 1 / 3)
    assert value("right@2", fixed) == 0.5
    assert value("acc@2", fixed) == 1.0
    assert value("delta_1_2", fixed) == -0.5
    # 4 comes back after 5 was wrong: it is no repetition of an answer that was not right.
    assert value("repeated_answer", fixed) == 0.0


def test_the_return_is_the_discounted_one_where_the_episode_carries_it() -> None:
    assert value("return", [episode("p", ["1-", "4+"], returns=[-0.5, 1.0])]) == -0.5


def test_counts_of_stop_reasons_and_verdicts() -> None:
    report = summarize([*HAND, episode("s", ["1-"])])
    assert report.stop_reasons == {"solved": 3, "turns": 2, "context": 1, "none": 1}
    assert report.verdicts == {"right": 3, "wrong": 8, "no_answer": 1, "undecided": 1}
    assert (report.episodes, report.problems, report.turns) == (7, 4, 3)


def test_reports_by_family_and_level_hold_the_same_figures_of_their_part() -> None:
    parts = [
        episode(f"p{i}", ["4+" if i < 2 else "5-"], metadata={"family": "ab"[i % 2], "level": 1}) for i in range(8)
    ]
    report = summarize(parts)
    assert set(report.by) == {"family"}  # all have level 1: nothing to tell apart
    assert report.by["family"]["a"]["acc@1"].value == 0.25
    assert report.by["family"]["a"].to_dict() == summarize(parts[::2]).to_dict()


def test_a_report_is_json_and_nothing_in_it_is_drawn_by_lot() -> None:
    first, again = (json.dumps(summarize(HAND).to_dict()) for _ in range(2))
    assert first == again
    assert json.loads(first)["figures"]["acc@3"]["value"] == 0.5


def test_intervals_are_made_of_different_problems() -> None:
    """64 episodes on 64 problems tell more than 64 on four."""
    marks = ["4+", "5-"]
    many = summarize([episode(f"p{i}", [marks[i % 2]]) for i in range(64)])["acc@1"]
    few = summarize([episode(f"p{i % 4}", [marks[i % 2]]) for i in range(64)])["acc@1"]
    assert many.value == few.value == 0.5
    assert width(few) > 3 * width(many)


def width(estimate: Estimate) -> float:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.high - estimate.low


def test_what_is_the_same_on_every_problem_is_not_certain() -> None:
    report = summarize([episode(f"p{i}", ["4+"], stop=SOLVED) for i in range(30)])
    assert report["acc@1"].high == 1.0
    assert report["acc@1"].low == pytest.approx(0.025 ** (1 / 30))
    assert report["tokens"].low is None  # nothing is known of how tokens vary
    turns = summarize([episode(f"p{i}", ["5-", "5-"], stop=TURNS) for i in range(30)])["turns"]
    assert (turns.value, turns.high) == (2.0, 2.0)
    assert turns.low == pytest.approx(2 - (1 - 0.025 ** (1 / 30)))


def test_every_figure_is_explained() -> None:
    fixed = [episode(p, ["4+", "5-", "_"], stop=TURNS) for p in "pq" for _ in range(4)]
    named = {re.sub(r"@\d+", "@k", name) for name in summarize(fixed).figures}
    assert named == set(MEANING)


@pytest.mark.parametrize("bad", [1.0, 0, 95, float("nan")])
def test_a_confidence_that_cannot_be_is_named(bad: float) -> None:
    with pytest.raises(InvalidValueError, match="confidence must be"):
        summarize(HAND, confidence=bad)
