"""Inspect's logs: ours, and those of anybody who asked for log-probs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.neighbors.export import to_inspect
from mathturn_gym.show.view.sources import read_sets
from mathturn_gym.types import Episode, Status

log_module = pytest.importorskip("inspect_ai.log", reason="Inspect's logs need inspect_ai: make test-inspect")

pytestmark = pytest.mark.filterwarnings("ignore")  # inspect_ai and its libraries warn of things of their own


def test_logs_of_ours_are_shown_whole(tmp_path: Path, before: list[Episode]) -> None:
    to_inspect(before, tmp_path / "run.eval")
    (found,) = read_sets(tmp_path, "run")
    assert found.format == "Inspect"
    for one, episode in zip(found.episodes, before, strict=True):
        assert one.ids.tolist() == episode.ids.tolist()
        assert one.values["logprob"][one.mask].tolist() == episode.logprobs[episode.loss_mask].tolist()
        assert [m.verdict for m in one.messages if m.role == "assistant"] == list(episode.verdicts)


def test_logs_of_others_are_shown_with_the_tokens_of_their_log_probs(tmp_path: Path) -> None:
    from inspect_ai.event import ModelEvent, ScoreEvent
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageUser,
        ContentReasoning,
        ContentText,
        GenerateConfig,
        Logprob,
        Logprobs,
        ModelOutput,
    )
    from inspect_ai.scorer import Score

    said: Any = ChatMessageAssistant(content=[ContentReasoning(reasoning="hm"), ContentText(text="2")], model="m")
    tokens = Logprobs(content=[Logprob(token=" 2", logprob=-0.25), Logprob(token="<end>", logprob=-0.5)])
    output = ModelOutput(model="m", choices=[ChatCompletionChoice(message=said, logprobs=tokens)])
    asked: list[Any] = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="1+1?")]
    event = ModelEvent(model="m", input=asked, tools=[], tool_choice="none", config=GenerateConfig(), output=output)
    score = ScoreEvent(score=Score(value="I", answer="2", explanation="too short"), intermediate=True)
    sample = EvalSample(
        id=7,
        epoch=2,
        input="1+1?",
        target="2",
        messages=[*asked, said],
        events=[event, score],
        scores={"match": Score(value="C"), "length": Score(value=3), "note": Score(value="long")},
    )
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00", task="t", model="m", dataset=EvalDataset(), config=EvalConfig()
    )
    write_eval_log(EvalLog(status="success", eval=spec, samples=[sample]), str(tmp_path / "other.eval"))
    (found,) = read_sets(tmp_path / "other.eval", "run")
    (episode,) = found.episodes
    assert [(m.role, m.text, m.start, m.end) for m in episode.messages] == [
        ("system", "Be brief.", 0, 0),
        ("user", "1+1?", 0, 0),
        ("assistant", "<think>hm</think>\n2", 0, 2),
    ]
    assert episode.token_texts == (" 2", "<end>")
    assert episode.values["logprob"].tolist() == [-0.25, -0.5]
    assert episode.ids.tolist() == [-1, -1]
    assert (episode.problem_id, episode.reward, episode.solved, episode.gold) == ("7", 1.0, True, ("2",))
    assert episode.facts == {"epoch": 2, "score match": 1.0, "score length": 3.0}
    verdict = episode.messages[2].verdict
    assert verdict is not None
    assert (verdict.status, verdict.answer, verdict.reason) == (Status.WRONG, "2", "too short")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.eval").write_bytes(b"not a zip")
    with pytest.raises(InvalidValueError, match="is no log of Inspect"):
        read_sets(tmp_path / "x.eval", "run")


def test_without_inspect_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.eval").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[inspect\]'"):
        read_sets(tmp_path / "x.eval", "run")
