"""Episodes as Inspect's logs, and back to the bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mathturn_gym.base.text import TokenTexts
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.neighbors.export import from_inspect, to_inspect
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

pytest.importorskip("inspect_ai", reason="Inspect's logs need inspect_ai: make test-inspect")

pytestmark = pytest.mark.filterwarnings("ignore")  # inspect_ai and its libraries warn of things of their own


def some() -> list[Episode]:
    spoken = dataclasses.replace(
        synthetic_episode(0, 0, [3, 2], group="g", max_version=4, vocab_size=400),
        prompt="1+1? <b>",
        responses=("3", ""),
        gold=("2", "two"),
        budgets=(9, 9),
        turn_truncated=(True, False),
        metadata={"level": 2},
        token_values={"entropy": np.linspace(0, 1, 17, dtype=np.float32)},
    )
    silent = synthetic_episode(0, 1, [2], logprobs=False, vocab_size=400)
    again = dataclasses.replace(spoken, index=2)
    nothing = synthetic_episode(0, 3, [])
    return [spoken, silent, again, nothing]


def assert_same(left: Episode, right: Episode) -> None:
    for field in dataclasses.fields(Episode):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray):
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), field.name
        elif field.name == "token_values":
            assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}
        else:
            assert a == b, field.name


@pytest.mark.parametrize("suffix", ["eval", "json"])
def test_a_round_trip_keeps_every_bit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    log = to_inspect(some(), path)
    for found in (from_inspect(path), from_inspect(log)):
        for before, after in zip(some(), found, strict=True):
            assert_same(before, after)


def test_turns_are_messages_model_calls_and_scores(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    episodes = some()
    tokenizer = load_tokenizer("builtin")
    to_inspect(episodes, tmp_path / "run.eval", model="m/1", task="sums", tokenizer=tokenizer)
    log = read_eval_log(str(tmp_path / "run.eval"))
    assert (log.status, log.eval.model, log.eval.task) == ("success", "m/1", "sums")
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(np.mean([e.solved for e in episodes]))
    samples = {(one.id, one.epoch): one for one in log.samples or []}
    assert set(samples) == {("synthetic/g", 1), ("synthetic/1", 1), ("synthetic/g", 2), ("synthetic/3", 1)}
    sample = samples["synthetic/g", 1]
    first = episodes[0]
    assert [message.role for message in sample.messages] == ["user", "assistant", "user", "assistant"]
    assert [message.text for message in sample.messages] == ["1+1? <b>", "3", "again", ""]
    assert [message.metadata["ids"] for message in sample.messages if message.metadata] == [
        first.prompt_ids.tolist(),
        first.turns[0].ids.tolist(),
        first.turns[0].feedback_ids.tolist(),
        first.turns[1].ids.tolist(),
    ]
    models = [event for event in sample.events if event.event == "model"]
    assert [len(event.input) for event in models] == [1, 3]
    choice = models[0].output.choices[0]
    assert choice.stop_reason == "max_tokens"
    assert choice.logprobs is not None
    assert [one.logprob for one in choice.logprobs.content] == first.turns[0].logprobs.tolist()
    assert [one.token for one in choice.logprobs.content] == [
        TokenTexts(tokenizer)(token) for token in first.turns[0].ids.tolist()
    ]
    assert models[0].config.max_tokens == 9
    scores = [event for event in sample.events if event.event == "score"]
    assert [event.intermediate for event in scores] == [True, True]
    assert [event.score.value for event in scores] == [verdict.value for verdict in first.verdicts]
    assert scores[0].target == ["2", "two"]
    silent = [event for event in samples["synthetic/1", 1].events if event.event == "model"]
    assert silent[0].output.choices[0].logprobs is None


def test_other_logs_and_edited_samples_are_refused(tmp_path: Path) -> None:
    log = to_inspect(some())
    assert log.samples is not None
    assert log.samples[0].messages[1].metadata is not None
    log.samples[0].messages[1].metadata["ids"] = [1]
    with pytest.raises(InvalidEpisodeError, match=r"sample 'synthetic/g', epoch 1: .*of shape"):
        from_inspect(log)
    log.samples[0].messages[1].metadata = None
    with pytest.raises(InvalidEpisodeError, match="a message's metadata has no ids"):
        from_inspect(log)
    log.eval.metadata = None
    with pytest.raises(InvalidValueError, match="was not made by to_inspect"):
        from_inspect(log)
    with pytest.raises(InvalidValueError, match=r"must end in .eval or .json"):
        to_inspect(some(), tmp_path / "x.log")
