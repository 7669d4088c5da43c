from __future__ import annotations

import dataclasses
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mathturn_gym import errors
from mathturn_gym.errors import EpisodeStateError, InvalidEpisodeError, InvalidValueError, check_float, check_int
from mathturn_gym.seeding import derive_seed, uniforms
from mathturn_gym.types import (
    NO_VERSION,
    Completion,
    Episode,
    Policy,
    Problem,
    Status,
    StopReason,
    TurnContext,
    Verdict,
)
from mathturn_gym.verifier import Verifier


def make_episode(**changes: Any) -> Episode:
    """Prompt 1 2, completion 3 4, feedback 5, completion 6."""
    fields: dict[str, Any] = {
        "problem_id": "p/1",
        "ids": np.array([1, 2, 3, 4, 5, 6]),
        "loss_mask": np.array([0, 0, 1, 1, 0, 1], np.bool_),
        "logprobs": np.array([0, 0, -1, -2, 0, -3], np.float32),
        "versions": np.array([-1, -1, 0, 0, -1, 2], np.int32),
        "turn_spans": np.array([[2, 4], [5, 6]]),
        "rewards": np.array([-1.0, 1.0]),
        "verdicts": (Verdict(Status.WRONG), Verdict(Status.RIGHT)),
        "feedbacks": ("no", ""),
        "turn_truncated": (True, False),
        "terminated": True,
        "truncated": False,
        "stop_reason": StopReason.SOLVED,
        **changes,
    }
    return Episode(**fields)


def test_turns_are_views_of_the_episode() -> None:
    episode = make_episode()
    first, second = episode.turns
    assert (first.context.tolist(), first.ids.tolist(), first.feedback_ids.tolist()) == ([1, 2], [3, 4], [5])
    assert (second.context.tolist(), second.ids.tolist(), second.feedback_ids.tolist()) == ([1, 2, 3, 4, 5], [6], [])
    assert (first.truncated, first.feedback, first.reward, first.verdict.correct) == (True, "no", -1.0, False)
    assert second.versions.tolist() == [2]
    assert np.shares_memory(first.ids, episode.ids)
    assert (episode.num_turns, episode.prompt_length, episode.solved) == (2, 2, True)
    assert pickle.loads(pickle.dumps(episode)).ids.tolist() == episode.ids.tolist()


def test_segments_are_the_sequences_that_the_policy_saw() -> None:
    """Prompt 1 2, completion 3 4; written anew: 5, completion 6."""
    episode = make_episode(segment_starts=np.array([0, 4]))
    first, second = episode.turns
    assert (episode.num_segments, [one.tolist() for one in episode.segments]) == (2, [[1, 2, 3, 4], [5, 6]])
    assert episode.turn_segments.tolist() == [0, 1]
    assert (first.context.tolist(), first.feedback_ids.tolist()) == ([1, 2], [])
    assert (second.context.tolist(), second.ids.tolist()) == ([5], [6])
    assert repr(episode).endswith("6 tokens in 2 segments)")


def test_a_completion_without_an_id_belongs_to_the_segment_that_ends_there() -> None:
    episode = make_episode(
        ids=np.arange(6),
        loss_mask=np.array([0, 0, 0, 0, 0, 1], np.bool_),
        logprobs=np.array([0, 0, 0, 0, 0, -1], np.float32),
        versions=np.array([-1, -1, -1, -1, -1, 0], np.int32),
        turn_spans=np.array([[4, 4], [5, 6]]),
        segment_starts=np.array([0, 4]),
    )
    assert episode.turn_segments.tolist() == [0, 1]
    assert episode.turns[0].context.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"segment_starts": np.array([1, 4])}, "segment_starts must be int64 numbers from 0 on"),
        ({"segment_starts": np.array([0.0, 4.0])}, "segment_starts must be int64"),
        ({"segment_starts": np.zeros(0, np.int64)}, "segment_starts must be int64"),
        ({"segment_starts": np.array([0, 4, 4])}, "segment_starts must increase"),
        ({"segment_starts": np.array([0, 6])}, "segment_starts must increase and lie before the end"),
        ({"segment_starts": np.array([0, 3])}, "turn 0 crosses into segment 1, which begins at 3"),
        ({"segment_starts": np.array([0, 5])}, "segment 0 must end with a completion, at 5"),
        ({"loss_mask": np.array([0, 1, 1, 1, 0, 1], np.bool_)}, "loss_mask is not True exactly on turn_spans"),
        ({"logprobs": np.zeros(5, np.float32)}, r"logprobs must be float32 of shape \(6,\)"),
        ({"logprobs": np.array([0, 0, -1, 0.5, 0, -3], np.float32)}, r"logprobs\[3\] must be a finite number <= 0"),
        ({"logprobs": np.array([0, 0, -1, -np.inf, 0, -3], np.float32)}, r"logprobs\[3\] must be a finite"),
        ({"logprobs": np.array([-1, 0, -1, -1, 0, -3], np.float32)}, "log-probs must be 0"),
        ({"versions": np.array([-1, -1, 2, 2, -1, 1], np.int32)}, "versions run backwards"),
        ({"versions": np.array([0, -1, 0, 0, -1, 1], np.int32)}, f"versions {NO_VERSION} off the loss mask"),
        ({"ids": np.array([1, 2, 3, 4, 5, 6], np.int32)}, "ids must be int64"),
        ({"responses": ("a",)}, r"responses has 1 entries for 2 turns \(none at all is allowed\)"),
        ({"budgets": (1, 2, 3)}, "budgets has 3 entries for 2 turns"),
        (
            {"token_values": {"entropy": np.zeros(6)}},
            r"token_values\['entropy'\] must be float32 of shape \(6,\), got float64",
        ),
        ({"turn_spans": np.array([[2, 4], [3, 6]])}, r"turn 1 spans \[3, 6\) after 4"),
        ({"turn_spans": np.array([[2, 4], [5, 7]])}, r"turn 1 spans \[5, 7\) after 4, of 6 ids"),
        ({"rewards": np.array([1.0])}, "turn_spans"),
        ({"rewards": np.array([1.0, np.nan])}, "rewards must be finite"),
        ({"verdicts": (Verdict(Status.RIGHT),)}, "verdicts has 1 entries for 2 turns"),
        ({"returns": np.zeros(2)}, "returns must be float32"),
    ],
)
def test_broken_episodes_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidEpisodeError, match=message) as caught:
        make_episode(index=7, **changes)
    assert "episode 7 on 'p/1'" in str(caught.value)


def test_completions() -> None:
    plain = Completion(np.array([1, 2]))
    assert np.isnan(plain.logprobs).all()
    assert (len(plain), plain.version_start, plain.version_end, plain.versions.tolist()) == (2, 0, 0, [0, 0])
    mixed = Completion(np.array([1, 2]), np.array([-1, -2]), version_start=3, version_end=4, versions=np.array([3, 4]))
    assert mixed.logprobs.dtype == np.float32
    assert mixed.versions.dtype == np.int32
    for bad, message in [
        ({"ids": np.array([0.5])}, "1-D array of integers"),
        ({"logprobs": np.zeros(3, np.float32)}, "has shape"),
        ({"logprobs": np.array([0.1, 0], np.float32)}, "must be a finite number <= 0"),
        ({"versions": np.array([1])}, "has 1 entries for 2 ids"),
        ({"version_start": 2, "version_end": 1}, "run backwards"),
    ]:
        fields: dict[str, Any] = {"ids": np.array([1, 2]), **bad}  # type: ignore[dict-item]
        with pytest.raises(InvalidEpisodeError, match=message):
            Completion(**fields)


def test_problems_and_verdicts_check_themselves() -> None:
    assert Problem("a", "b", ["1", "2"]).gold == ("1", "2")
    for fields in (("", "b", "c"), ("a", " ", "c"), ("a", "b", ""), ("a", "b", ())):
        with pytest.raises(InvalidValueError, match=r"Problem\.(id|prompt|gold) must"):
            Problem(*fields)
    assert Verdict(Status.RIGHT).value == 1.0
    assert Verdict(Status.UNDECIDED).value == 0.0
    assert not Verdict(Status.UNDECIDED).correct
    assert Verdict(Status.WRONG, seconds=1.0) == Verdict(Status.WRONG, seconds=2.0)
    with pytest.raises(InvalidValueError, match=r"score must be in \[0, 1\], got 2"):
        Verdict(Status.WRONG, score=2.0)
    with pytest.raises(ValueError, match="maybe"):
        Verdict("maybe")  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Verdict(Status.RIGHT).reason = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("gold", "texts"),
    [
        (42, ("42",)),
        (-7, ("-7",)),
        (np.int32(3), ("3",)),
        (0.5, ("0.5",)),
        (3.0, ("3",)),
        (1e-7, ("0.0000001",)),
        (1e22, ("1" + "0" * 22,)),
        (np.float32(0.1), ("0.1",)),
        (Fraction(1, 3), ("1/3",)),
        (Decimal("1E+3"), ("1000",)),
        (["1/2", 0.5, Fraction(2, 4)], ("1/2", "0.5", "1/2")),
        (np.array([1, 2]), ("1", "2")),
    ],
)
def test_numbers_become_their_text(gold: Any, texts: tuple[str, ...]) -> None:
    problem = Problem("a", "b", gold)
    assert problem.gold == texts
    verdicts = [Verifier().verify(f"\\boxed{{{text}}}", problem.gold) for text in texts]
    assert all(verdict.correct for verdict in verdicts), "the verifier reads it as that number"
    assert dataclasses.replace(problem, prompt="c").gold == texts
    assert pickle.loads(pickle.dumps(problem)) == problem  # made here, a line above


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        (True, "got True; write the text that is the answer"),
        (np.False_, "write the text that is the answer"),
        (float("nan"), "finite numbers, got nan"),
        (float("inf"), "finite numbers, got inf"),
        (Decimal("NaN"), "finite numbers"),
        (None, "got None"),
        ([], "one or more"),
        ([1, None], "got None"),
        pytest.param(10**5000, "too long to write", id="huge"),
        ({"a": 1}, "non-empty texts or finite numbers"),
        (b"42", "non-empty texts or finite numbers"),
        (1j, "non-empty texts or finite numbers"),
    ],
)
def test_what_is_no_answer_is_refused(gold: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=f"Problem.gold .*{message}"):
        Problem("a", "b", gold)


def test_a_turn_knows_its_verdict_once_it_is_judged() -> None:
    turn = TurnContext(Problem("p/1", "1+1?", 2), 1, 5, "2", ids=np.array([1, 2]), max_tokens=9)
    with pytest.raises(EpisodeStateError, match="turn 1 of problem 'p/1' is still being judged"):
        turn.judged  # noqa: B018
    judged = turn.with_verdict(Verdict(Status.RIGHT))
    assert judged.judged.correct
    for field in dataclasses.fields(TurnContext):
        if field.name != "verdict":
            assert getattr(judged, field.name) is getattr(turn, field.name)


def test_episodes_with_returns_beyond_float32_are_refused() -> None:
    with pytest.raises(InvalidEpisodeError, match="returns must be finite"):
        make_episode(returns=np.array([-np.inf, 1.0], np.float32))


def test_the_exception_tree() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.MathTurnError)
        assert name in str(errors.__doc__)
        if kind is not errors.MathTurnError:
            assert issubclass(kind, (ValueError, RuntimeError, ImportError, OSError))
        assert pickle.loads(pickle.dumps(kind("why"))).args == ("why",)


@pytest.mark.parametrize("value", [0, 2.0, "3", None, True, np.float32(2)])
def test_check_int_refuses(value: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"n must be an integer in \[1, 9\], got"):
        check_int("n", value, low=1, high=9)


def test_checks_accept_numpy_numbers() -> None:
    assert check_int("n", np.int32(4), low=1) == 4
    assert check_float("x", np.float32(0.5), low=0, high=1) == 0.5
    for value in (np.nan, np.inf, "1", None, True, 1.5):
        with pytest.raises(InvalidValueError, match=r"x must be a finite number in \[0, 1\], got"):
            check_float("x", value, low=0, high=1)


def test_seeds_do_not_collide_and_do_not_change() -> None:
    seeds = {derive_seed(a, b, c) for a in range(12) for b in range(12) for c in range(12)}
    assert len(seeds) == 12**3
    assert derive_seed(1, "23") != derive_seed(12, "3") != derive_seed("1", 23)
    assert derive_seed(0, 1, 2) == 4216901078605280141  # pinned: recorded runs depend on it
    assert uniforms(7, 2).tolist() == pytest.approx([0.8720735, 0.2953654], abs=1e-6)


def test_policy_is_a_protocol() -> None:
    from mathturn_gym.testing import RandomPolicy

    assert isinstance(RandomPolicy(5), Policy)
    assert not isinstance(object(), Policy)
