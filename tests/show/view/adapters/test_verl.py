from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.neighbors.export import to_verl
from mathturn_gym.show.view.sources import read_sets
from mathturn_gym.types import Episode


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dump(step: int, score: float) -> dict[str, Any]:
    """A line as `RayPPOTrainer._write_generations` of verl 0.9.1 writes it."""
    return {
        "input": "user\n1+1?\nassistant\n",
        "output": f"It is {score}.",
        "gts": "2",
        "score": score,
        "step": step,
        "acc": score > 0,
        "request_id": f"r{step}",
    }


def test_dumps_of_all_steps_are_one_set_in_order(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        write_rows(tmp_path / f"{step}.jsonl", dump(step, 1.0), dump(step, 0.0))
    (found,) = read_sets(tmp_path, "run")
    assert found.format == "verl"
    assert [e.facts["step"] for e in found.episodes] == [3, 3, 20, 20, 100, 100]
    first = found.episodes[0]
    assert [(m.role, m.text) for m in first.messages] == [
        ("user", "user\n1+1?\nassistant\n"),
        ("assistant", "It is 1.0."),
    ]
    assert (first.reward, first.gold, len(first.ids)) == (1.0, ("2",), 0)
    assert first.facts == {"acc": True, "request_id": "r3", "step": 3}
    assert len({e.problem_id for e in found.episodes}) == 1
    assert len({e.group for e in found.episodes}) == 3


def test_outputs_of_agent_loops_keep_tokens_and_turn_scores(tmp_path: Path, before: list[Episode]) -> None:
    (found,) = read_sets(write_rows(tmp_path / "loops.jsonl", *to_verl(before)), "run")
    assert (found.format, found.left_out) == ("verl", [])
    for one, episode in zip(found.episodes, before, strict=True):
        assert one.ids.tolist() == episode.ids.tolist()
        assert one.mask.tolist() == episode.loss_mask.tolist()
        assert one.values["logprob"][one.mask].tolist() == episode.logprobs[episode.loss_mask].tolist()
        assert [m.reward for m in one.messages if m.role == "assistant"] == episode.rewards.tolist()
        assert one.reward == pytest.approx(episode.rewards.sum())


def test_lines_that_do_not_fit_are_named(tmp_path: Path) -> None:
    good: dict[str, Any] = {"prompt_ids": [1], "response_ids": [2, 3], "response_mask": [1, 1]}
    rows = [
        good,
        {**good, "response_mask": [1]},
        {**good, "response_ids": "ab"},
        {**good, "response_logprobs": ["x", 1]},
    ]
    (found,) = read_sets(write_rows(tmp_path / "loops.jsonl", *rows), "run")
    assert len(found.episodes) == 1
    assert [reason.partition(": ")[2] for reason in found.left_out] == [
        "the mask has 1 entries for 2 completion ids",
        "response_ids must be a list of integers, got ab",
        "response_logprobs must be a list of numbers, got ['x', 1]",
    ]
