"""verifiers' traces (the row in data/ was written by verifiers 0.4.0) and results."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.show.view.sources import read_sets

TRACE = Path(__file__).parent / "data" / "verifiers_0_4_trace.jsonl"


def read(tmp_path: Path, *rows: Any) -> Any:
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = read_sets(path, "run")
    return found


@pytest.fixture
def row() -> Any:
    return json.loads(TRACE.read_text())


def test_a_trace_is_its_messages_with_the_tokens_of_each() -> None:
    (found,) = read_sets(TRACE, "run")
    assert (found.format, found.left_out) == ("verifiers", [])
    (episode,) = found.episodes
    assert episode.ids.tolist() == [1, 2, 3, 9, 5, 6, 7, 8, 4]
    assert episode.mask.astype(int).tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1]
    # The generation prompt (9, 8) is shown with what was asked.
    assert [(m.role, m.text, m.start, m.end) for m in episode.messages] == [
        ("user", "1+1?", 0, 4),
        ("assistant", "2", 4, 6),
        ("user", "again", 6, 8),
        ("assistant", "3", 8, 9),
    ]
    nan = np.float32("nan")
    np.testing.assert_array_equal(
        episode.values["logprob"], np.array([nan, nan, nan, nan, -0.1, -0.2, nan, nan, -0.5], np.float32)
    )
    np.testing.assert_allclose(episode.values["mismatch"][4:6], [-0.05, 0.0], atol=1e-6)
    assert np.isnan(episode.values["trainer_logprob"][8])
    assert set(episode.values) == {"logprob", "trainer_logprob", "mismatch", "entropy", "advantage"}
    assert (episode.problem_id, episode.gold, episode.reward, episode.stop_reason) == ("k/1", ("2",), 0.5, "done")
    assert episode.facts == {"reward right": 0.5, "len": 3.0, "agent": "agent"}


def test_branches_are_episodes_of_their_own_and_say_their_version(tmp_path: Path, row: Any) -> None:
    nodes = row["traces"][0]["nodes"]
    other = copy.deepcopy(nodes[3])
    other["token_ids"], other["parent"] = [8, 44], 2
    nodes.append(other)
    row["run"] = {"type": "train", "id": "r", "work": {"type": "train", "step": 4, "policy": {"start": 2, "end": 3}}}
    row["group"] = {"id": "g1"}
    first, second = read(tmp_path, row).episodes
    assert (first.ids[-1], second.ids[-1]) == (4, 44)
    assert first.versions.tolist() == [-1, -1, -1, -1, 3, 3, -1, -1, 3]
    assert first.group == second.group == "g1"


def test_a_trace_without_tokens_shows_its_dialogue(tmp_path: Path, row: Any) -> None:
    for node in row["traces"][0]["nodes"]:
        node["token_ids"], node["mask"], node["logprobs"] = [], [], []
        for name in ("advantages", "trainer_logprobs", "entropies"):
            node.pop(name, None)
    (episode,) = read(tmp_path, row["traces"][0]).episodes  # a bare trace, as 0.3 wrote them
    assert [m.text for m in episode.messages] == ["1+1?", "2", "again", "3"]
    assert len(episode.ids) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda nodes: nodes[1].update(parent=5), "node 1 has parent 5, which is no node before it"),
        (lambda nodes: nodes[1].update(mask=[True]), "mask must be 3 flags, as many as token_ids, got 1"),
        (lambda nodes: nodes[1].update(logprobs=[0.0]), "logprobs has 1 numbers for 2 sampled tokens"),
        (lambda nodes: nodes[1].update(token_ids=["a", "b", "c"]), "token_ids must be a list of integers"),
        (lambda nodes: nodes.append("x"), "a trace must have nodes"),
        (lambda nodes: nodes[1].update(message=3), "a message must be an object, got int"),
    ],
)
def test_broken_traces_are_named(tmp_path: Path, row: Any, change: Any, message: str) -> None:
    good = copy.deepcopy(row)
    change(row["traces"][0]["nodes"])
    found = read(tmp_path, good, row)
    assert len(found.episodes) == 1
    assert found.left_out[0].startswith("traces.jsonl, line 2: ")
    assert message in found.left_out[0]


RESULT = {
    "example_id": 4,
    "task": "sums",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "completion": [
        {"role": "assistant", "content": [{"type": "text", "text": "3"}]},
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "2", "reasoning_content": "hm"},
    ],
    "answer": "2",
    "reward": 1.0,
    "correct": 1.0,
}


def step(prompt: list[int], completion: list[int]) -> dict[str, Any]:
    logprobs = [-0.5] * len(completion)
    return {"tokens": {"prompt_ids": prompt, "completion_ids": completion, "completion_logprobs": logprobs}}


def test_results_keep_their_turns_and_where_there_is_a_trajectory_their_tokens(tmp_path: Path) -> None:
    grown = {**RESULT, "trajectory": [step([1, 2], [3]), step([1, 2, 3, 9, 9], [4, 5])]}
    rewritten = {**RESULT, "trajectory": [step([1, 2], [3]), step([1, 9, 9], [4])]}
    plain, whole, lost = read(tmp_path, RESULT, grown, rewritten).episodes
    assert [m.text for m in plain.messages] == ["1+1?", "3", "no", "hm\n\n2"]
    assert (plain.problem_id, plain.gold, plain.reward, len(plain.ids)) == ("sums/4", ("2",), 1.0, 0)
    assert plain.facts == {"correct": 1.0}
    assert whole.ids.tolist() == [1, 2, 3, 9, 9, 4, 5]
    assert [(m.text, m.start, m.end) for m in whole.messages] == [
        ("1+1?", 0, 2),
        ("3", 2, 3),
        ("no", 3, 5),
        ("hm\n\n2", 5, 7),
    ]
    assert whole.values["logprob"][whole.mask].tolist() == [-0.5] * 3
    assert len(lost.ids) == 0  # a history that was rewritten is no stream of tokens
