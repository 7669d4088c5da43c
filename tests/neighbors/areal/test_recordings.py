"""The compat agent, and the environment with its feedback, against recordings of the original agent."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from areal_replay import collect_episodes, main, record, replay, replay_env, tokenizers_beside

from mathturn_gym.errors import InvalidValueError

HERE = Path(__file__).parent
GOLDEN = HERE.parents[3] / "shared" / "golden"
OWN = sorted((HERE / "data").glob("*.json"))
THEIRS = sorted((GOLDEN / "dev").glob("*.json")) + sorted((GOLDEN / "real" / "dev").glob("*.json"))
BY_NAME = [pytest.param(path, id=path.stem) for path in (*OWN, *THEIRS)]


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def test_a_recording_runs_nothing_and_leaves_its_folder_nowhere(tmp_path: Path) -> None:
    """Recordings come from others: the name of an exception is no function to call, a query id no path to write to."""
    witness = tmp_path / "witness"
    recording = own("own_env_raises")
    raised = {"type": "exec", "message": f"open({str(witness)!r}, 'w')"}
    for one in (*recording["inputs"]["episodes"], *recording["outputs"]["episodes"]):
        for turn in one.get("turns", one.get("env_calls", [])):
            if "raise" in turn:
                turn["raise"] = raised
    path = tmp_path / "r.json"
    path.write_text(json.dumps(recording))
    assert main([str(path)]) == 1
    assert not witness.exists()
    for qid, version in ((f"{'../' * 20}{witness}", 0), (str(witness), 0), ("q", str(witness.parent))):
        recording = own("own_two_turns")
        for episode in recording["inputs"]["episodes"]:
            episode["qid"] = qid
            for turn in episode["turns"]:
                turn["version_start"] = version
        path.write_text(json.dumps(recording))
        with pytest.raises(InvalidValueError, match=r"r\.json cannot be played: .* would be a log file at"):
            main([str(path)])
    assert [one.name for one in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("path", BY_NAME)
def test_the_agent_gives_what_was_recorded(path: Path) -> None:
    assert replay(load(path), tokenizers_beside(path)) == []


@pytest.mark.parametrize("path", BY_NAME)
def test_the_environment_gives_what_was_recorded(path: Path) -> None:
    assert replay_env(load(path), tokenizers_beside(path)) == []


def test_all_forty_eight_recordings_are_there(shared: Path) -> None:
    assert len(THEIRS) == 48
    assert all((shared / "golden").is_relative_to(shared) and path.exists() for path in THEIRS)


def test_recordings_without_an_exception_give_an_episode_each(golden_path: Callable[[str], Path]) -> None:
    """Guards `replay_env` against comparing nothing: 46 of the 48 have samples, 53 in all."""
    episodes = 0
    for path in THEIRS:
        recording = load(path)
        pairs = list(zip(recording["inputs"]["episodes"], recording["outputs"]["episodes"], strict=True))
        kept = [(one, outputs) for one, outputs in pairs if outputs["exception"] is None]
        inputs = {**recording["inputs"], "episodes": [one for one, _ in kept]}
        made = collect_episodes(inputs, tokenizers_beside(path), [outputs["env_calls"] for _, outputs in kept])
        assert [episode.num_turns for episode in made] == [len(one["turns"]) for one, _ in kept]
        episodes += len(made)
    assert episodes == sum(len(load(path)["inputs"]["episodes"]) for path in THEIRS) - 3


# ---- our own recordings, checked by hand


def own(name: str) -> dict[str, Any]:
    return load(HERE / "data" / f"{name}.json")


def test_own_two_turns_by_hand() -> None:
    """Wrong, then right: rewards -1 and 1, returns -1 + 0.5 * 1 and 1; one file pair per version."""
    outputs = own("own_two_turns")["outputs"]
    (sample,) = outputs["episodes"][0]["samples"]
    assert sample["data"]["rewards"] == [-0.5, 1.0]
    assert sample["data"]["birth_time"] == [1_700_000_000_250]
    assert sample["data"]["task_ids"] == [2]
    assert sample["data"]["version_start"] == [3, 4]
    prompt, first, feedback, second = 15, 4, 8, 4
    assert sample["seqlens"]["packed_input_ids"] == [[prompt + first, prompt + first + feedback + second]]
    assert sample["data"]["prompt_mask"] == [True] * 15 + [False] * 4 + [True] * 27 + [False] * 4
    assert sample["data"]["packed_logprobs"][14:18] == [-0.125, -0.25, -0.375, -0.5]
    assert sorted(outputs["log_files"]) == [
        "3/own/1@idx:0-0.jsonl",
        "3/own/1@idx:0-0.txt",
        "4/own/1@idx:0-0.jsonl",
        "4/own/1@idx:0-0.txt",
    ]
    assert outputs["log_files"]["3/own/1@idx:0-0.jsonl"] == (
        '{"version_start": 3, "version_end": 3, "success": true, "prompt_len": 15, "answer_len": 4}\n'
    )
    assert outputs["log_files"]["4/own/1@idx:0-0.jsonl"] == (
        '{"version_start": 4, "version_end": 4, "success": true, "prompt_len": 15, "answer_len": 16}\n'
    )


def test_own_partial_score_by_hand() -> None:
    """A quarter of a point is congratulated, and worth ((0.25 - 0.5) * 2) * 2 = -1; the cut-off turn is not closed."""
    from mathturn_gym.env.dialogue import Dialogue

    outputs = own("own_partial_score")["outputs"]["episodes"][0]
    (sample,) = outputs["samples"]
    assert sample["data"]["rewards"] == [-3.0, -2.0]
    assert sample["data"]["seq_no_eos_mask"] == [True, False]
    text = Dialogue("builtin").tokenizer.decode(outputs["obs"][1]["token_ids"])
    assert text.endswith(
        "\\boxed{4\n<|im_start|>user\nCongratulations! You are correct!<|im_end|>\n<|im_start|>assistant\n"
    )


def test_own_env_raises_by_hand() -> None:
    """An exception of the verification loses the trajectory, and nothing was logged."""
    outputs = own("own_env_raises")["outputs"]
    assert outputs["episodes"][0]["exception"] == {"type": "OSError", "message": "disk full"}
    assert outputs["episodes"][0]["samples"] is None
    assert outputs["log_files"] == {}


# ---- a comparison that finds nothing must be able to find something

MUTATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an observed id": lambda o: o["episodes"][0]["obs"][1]["token_ids"].__setitem__(3, 7),
    "the number of completions asked for": lambda o: o["episodes"][0]["obs"][0]["gconfig"].update(n=4),
    "an answer": lambda o: o["episodes"][0]["env_calls"][1]["answers"].__setitem__(0, "\\boxed{5} "),
    "a sampled id": lambda o: o["episodes"][0]["samples"][0]["data"]["packed_input_ids"].__setitem__(-1, 5),
    "the last digit of a log-prob": lambda o: o["episodes"][0]["samples"][0]["data"]["packed_logprobs"].__setitem__(
        14, -0.12500001490116119
    ),
    "a reward": lambda o: o["episodes"][0]["samples"][0]["data"]["rewards"].__setitem__(0, -0.5000001),
    "a mask": lambda o: o["episodes"][0]["samples"][0]["data"]["prompt_mask"].__setitem__(0, 1),
    "a key": lambda o: o["episodes"][0]["samples"][0]["keys"].remove("task_ids"),
    "a dtype": lambda o: o["episodes"][0]["samples"][0]["dtypes"].update(rewards="torch.float64"),
    "a tensor's dtype": lambda o: o["episodes"][0]["samples"][0]["tensor_dtypes"].update(rewards="torch.float64"),
    "a length": lambda o: o["episodes"][0]["samples"][0]["seqlens"].update(rewards=[[2]]),
    "a log line": lambda o: o["log_files"].update({"3/own/1@idx:0-0.jsonl": "{}\n"}),
    "a log file": lambda o: o["log_files"].pop("3/own/1@idx:0-0.txt"),
    "an exception": lambda o: o["episodes"][0].update(exception={"type": "IndexError", "message": ""}, samples=None),
    "a file elsewhere": lambda o: o["files_outside_log_root"].append("up.txt"),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_replay_sees_a_difference(what: str) -> None:
    path = HERE / "data" / "own_two_turns.json"
    recording = copy.deepcopy(load(path))
    MUTATIONS[what](recording["outputs"])
    assert replay(recording, tokenizers_beside(path)) != []


@pytest.mark.parametrize(
    "what", ["an observed id", "an answer", "a sampled id", "the last digit of a log-prob", "a reward"]
)
def test_replay_env_sees_a_difference(what: str) -> None:
    path = HERE / "data" / "own_two_turns.json"
    recording = copy.deepcopy(load(path))
    MUTATIONS[what](recording["outputs"])
    assert replay_env(recording, tokenizers_beside(path)) != []


def test_the_command_counts_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(HERE / "data")]) == 0
    assert capsys.readouterr().out.endswith("3 of 3 recordings agree\n")
    recording = own("own_two_turns")
    MUTATIONS["a reward"](recording["outputs"])
    (tmp_path / "bad.json").write_text(json.dumps(recording))
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "0 of 1 recordings agree" in out
    assert "agent: episodes[0].samples[0].data.rewards[0]: ours -0.5, theirs -0.5000001" in out
    assert main([str(tmp_path / "nothing")]) == 1


@pytest.mark.parametrize("path", BY_NAME)
def test_problems_as_text_are_shown_as_recorded(path: Path) -> None:
    """Where the recording has the prompt's text, the environment makes the recorded first observation of it."""
    import gymnasium as gym

    from mathturn_gym.types import Problem

    inputs = load(path)["inputs"]
    for episode in inputs["episodes"]:
        if episode["prompt_messages"] is None:
            continue
        (message,) = episode["prompt_messages"]
        env = gym.make(
            "MathMultiTurn-v0",
            problems=Problem(str(episode["qid"]), message["content"], "none"),
            tokenizer=tokenizers_beside(path)(inputs["tokenizer"]),
            feedback="areal-v0.3",
        )
        observation, _ = env.reset(seed=0)
        assert observation.tolist() == episode["prompt_token_ids"]


def test_versions_that_run_backwards_are_recorded_and_replayed() -> None:
    """Servers get new weights at different times; a sample takes that, an `Episode` does not."""
    inputs = copy.deepcopy(own("own_two_turns")["inputs"])
    for turn, version in zip(inputs["episodes"][0]["turns"], (4, 3), strict=True):
        turn.update(version_start=version, version_end=version)
    made = record(inputs, str, "backwards")
    assert made["outputs"]["episodes"][0]["samples"][0]["data"]["version_start"] == [4, 3]
    assert replay(made, str) == []
    assert replay_env(made, str) == []
