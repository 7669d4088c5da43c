from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mathturn_gym.base.files import locked
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli._runs import policy_settings
from mathturn_gym.cli.app import app
from mathturn_gym.cli.evaluate import missing_ranges
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.errors import CheckpointError, InvalidValueError, LockedError, ProblemFileError, StorageError
from mathturn_gym.policies import BUILTIN_PATH, PolicyConfig
from mathturn_gym.problems.files import ProblemFile
from mathturn_gym.wrappers import load_policy

RUNNER = CliRunner()


def evaluate(*args: str) -> Any:
    return RUNNER.invoke(app, ["eval", *args], catch_exceptions=False)


def test_report_and_episodes(tmp_path: Path) -> None:
    done = evaluate("--policy", "builtin", "--episodes", "40", "--num-envs", "16", "--out", str(tmp_path / "a"))
    assert done.exit_code == 0
    said = done.output[done.output.index("Solves ") :]
    assert len(said.splitlines()) <= 25
    assert "right within 4 turns" in said
    assert "acc@1" not in said, "every metric is for --full"
    report = json.loads((tmp_path / "a" / "report.json").read_text())
    assert report["episodes"] == 40
    assert report["settings"]["policy"] == "builtin"
    assert report["settings"]["temperature"] == 1.0, "not null: what was used"
    for name in ("acc@1", "acc@4", "turns", "corrected", "tokens"):
        figure = report["figures"][name]
        assert figure["low"] <= figure["value"] <= figure["high"]
    assert sum(report["stop_reasons"].values()) == 40
    episodes = list(read_episodes(tmp_path / "a" / "episodes.jsonl"))
    assert sorted(e.index for e in episodes) == list(range(40))
    accuracy = sum(bool(e.verdicts[0].correct) for e in episodes) / 40
    assert report["figures"]["acc@1"]["value"] == pytest.approx(accuracy)
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "builtin on lins" in page
    assert f"{report['figures']['acc@1']['value']:.3f}" in page


def test_full_prints_every_metric_once(tmp_path: Path) -> None:
    done = evaluate("--policy", "random", "--episodes", "4", "--out", str(tmp_path), "--full")
    for name in ("acc@1", "acc@4", "no_answer"):
        assert done.output.count(f"  {name} ") == 1


def test_settings_say_what_was_sampled_with(tmp_path: Path) -> None:
    """Issue 37: "temperature": null said that nothing was given, not what was used."""
    folder = tmp_path / "model"
    shutil.copytree(BUILTIN_PATH, folder)
    (folder / "policy.json").write_text(json.dumps({"temperature": 0.7, "grammar": "boxed-integer"}))

    def recorded(out: str, *args: str) -> dict[str, Any]:
        evaluate(*args, "--episodes", "2", "--out", str(tmp_path / out))
        settings = json.loads((tmp_path / out / "settings.json").read_text())
        return {name: settings[name] for name in ("temperature", "top_p", "top_k", "min_p", "grammar")}

    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "grammar": "none"}
    assert recorded("a") == plain
    assert recorded("b", "--policy", str(folder)) == {**plain, "temperature": 0.7, "grammar": "boxed-integer"}
    given = recorded("c", "--policy", str(folder), "--temperature", "0.2", "--grammar", "none")
    assert given == {**plain, "temperature": 0.2}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--policy", "./nofolder"], r"unknown policy './nofolder': there is no such folder in '.*' \(a run's or"),
        (["--device", "gpu"], r"unknown device 'gpu': did you mean 'cuda'\?"),
        (["--history", "strip"], "unknown history 'strip': did you mean 'strip-thinking'"),
        (["--env-set", 'reward_terms=["format"]'], r"reward_terms must be weights .* --reward-term format=1.0"),
        (["--env-set", "num_turn=2"], "did you mean 'num_turns'"),
    ],
)
def test_wrong_usages_are_answered_with_what_was_meant(tmp_path: Path, args: list[str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        evaluate(*args, "--episodes", "2", "--out", str(tmp_path / "out"))


def test_a_model_is_no_name_of_a_policy() -> None:
    with pytest.raises(InvalidValueError, match=r"got a Linear; of a model .* CausalLMPolicy\(model, tokenizer\)"):
        load_policy(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_an_interrupted_evaluation_resumes_to_the_same_report(tmp_path: Path) -> None:
    args = ["--policy", "random", "--episodes", "30", "--num-envs", "8"]
    evaluate(*args, "--out", str(tmp_path / "whole"))
    evaluate(*args, "--out", str(tmp_path / "cut"))
    file = tmp_path / "cut" / "episodes.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:5] + lines[9:20]) + lines[25][:40])  # holes, and half a line at the end
    assert evaluate(*args, "--out", str(tmp_path / "cut"), "--resume").exit_code == 0
    whole, cut = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("whole", "cut"))
    assert whole == cut


def test_ctrl_c_loses_no_finished_episode(tmp_path: Path) -> None:
    args = ["eval", "--policy", "builtin", "--episodes", "3000", "--num-envs", "2", "--out", str(tmp_path)]
    # Shells start background jobs with SIGINT ignored, and children inherit that: the tests may be such a job.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    code += "from mathturn_gym.cli.app import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *args])
    file = tmp_path / "episodes.jsonl"
    deadline = time.monotonic() + 600
    while not (file.exists() and file.stat().st_size > 2000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=600) == 130
    kept = list(read_episodes(file, strict=True))
    assert kept
    assert evaluate(*args[1:3], "--episodes", "12", *args[5:], "--resume").exit_code == 0
    assert json.loads((tmp_path / "report.json").read_text())["episodes"] == 12


def test_folders_are_never_mixed_up(tmp_path: Path) -> None:
    args = ["--policy", "random", "--episodes", "2", "--out", str(tmp_path)]
    evaluate(*args)
    with pytest.raises(InvalidValueError, match="holds an evaluation already: --resume goes on"):
        evaluate(*args)
    with pytest.raises(InvalidValueError, match=r"env.num_turns was 4 and is now 2"):
        evaluate(*args, "--num-turns", "2", "--resume")
    assert evaluate(*args, "--num-turns", "2", "--overwrite").exit_code == 0


def test_one_process_evaluates_in_a_folder_at_a_time(tmp_path: Path) -> None:
    args = ("--policy", "random", "--episodes", "4", "--out", str(tmp_path))
    for choice in (["--resume"], ["--overwrite"], []):
        with locked(tmp_path / ".lock"), pytest.raises(LockedError, match="another process works in"):
            evaluate(*args, *choice)
        assert [one.name for one in tmp_path.iterdir()] == [".lock"]
    assert evaluate(*args).exit_code == 0
    assert evaluate(*args, "--resume").exit_code == 0, "it was given back"


def test_a_file_is_played_once_through_and_bad_rows_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"question": f"{i}+1?", "answer": f"so #### {i + 1}"} for i in range(5)]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n{broken\n", encoding="utf-8")
    args = ["--policy", "random", "--problems", str(file), "--samples", "2", "--num-turns", "1"]
    with pytest.raises(ProblemFileError, match="line 6"):
        evaluate(*args, "--out", str(tmp_path / "a"))
    done = evaluate(*args, "--out", str(tmp_path / "a"), "--skip-bad-rows")
    assert done.exit_code == 0
    assert "1 rows left out (line 6" in caplog.text
    episodes = list(read_episodes(tmp_path / "a" / "episodes.jsonl"))
    assert sorted(e.problem_id for e in episodes) == sorted(
        [problem.id for problem in ProblemFile(file, skip_bad_rows=True)] * 2
    )


def test_replaced_weights_are_another_policy(tmp_path: Path) -> None:
    from tiny import make_tiny_model

    from mathturn_gym.wrappers import load_policy

    policy = load_policy("builtin", device="cpu")
    policy.save_pretrained(tmp_path / "model")
    args = ["--policy", str(tmp_path / "model"), "--out", str(tmp_path / "e")]
    evaluate(*args, "--episodes", "2")
    assert evaluate(*args, "--episodes", "3", "--resume").exit_code == 0
    make_tiny_model(policy.tokenizer, seed=1).save_pretrained(tmp_path / "model")
    with pytest.raises(InvalidValueError, match=r"--resume: weights was 'model.safetensors:.* and is now 'model"):
        evaluate(*args, "--episodes", "4", "--resume")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--seed", "-1"], "--seed must be an integer >= 0, got -1"),
        (["--episodes", "-3"], "--episodes must be an integer >= 1, got -3"),
        (["--samples", "0"], "--samples must be"),
        (["--num-envs", "0"], "--num-envs must be"),
        (["--env", "nope"], "unknown environment 'nope'"),
        (["--device", "bogus"], "device 'bogus' cannot be used here"),
        (["--dtype", "float31"], "unknown dtype 'float31': did you mean 'float32'"),
        (["--grammar", "boxed-intger"], "did you mean 'boxed-integer'"),
        (["--split", "tset"], "--split must be train, validation, test or all"),
        (["--feedback", "plian"], "did you mean 'plain'"),
        (["--verifier", "nowhere:x"], "verifier 'nowhere:x' cannot be imported"),
        (["--reward-term", "overlong"], "--reward-term must be NAME=WEIGHT"),
        (["--reward-term", "overlng=1"], "did you mean 'overlong'"),
        (["--question-column", "q"], "--question-column needs --answer-column"),
        (["--task", "linz"], "unknown task 'linz': did you mean 'lins'"),
        (["--policy", "biltin"], "did you mean 'builtin'"),
    ],
)
def test_mistakes_in_options_are_named(tmp_path: Path, args: list[str], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        evaluate(*args, "--out", str(tmp_path / "e"))


def test_a_file_is_no_folder_to_write(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InvalidValueError, match="--out must be a folder, got the file"):
        evaluate("--episodes", "1", "--out", str(tmp_path / "mine.txt"))
    with pytest.raises(StorageError, match=r"mine\.txt/e cannot be written: Not a directory"):
        evaluate("--episodes", "1", "--out", str(tmp_path / "mine.txt" / "e"))
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("text", ["[1]", "{", "\xff"])
def test_broken_settings_are_named(tmp_path: Path, text: str) -> None:
    args = ["--policy", "random", "--episodes", "2", "--out", str(tmp_path)]
    evaluate(*args)
    (tmp_path / "settings.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match="--overwrite starts over"):
        evaluate(*args, "--resume")


def test_splits(tmp_path: Path) -> None:
    """Without a word the test split is played; a name that chooses its split, and `--split`, play that one."""
    for number, (args, name) in enumerate(
        [
            ([], "lins:test"),
            (["--problems", "add1"], "add1:test"),
            (["--problems", "add1:train"], "add1:train"),
            (["--problems", "add1", "--split", "validation"], "add1:validation"),
            (["--problems", "add1", "--split", "all"], "add1:all"),
            (["--task", "guess8"], "guess8:test"),
        ]
    ):
        out = tmp_path / str(number)
        done = evaluate("--policy", "random", "--episodes", "2", "--out", str(out), *args)
        assert f"on {name} (" in " ".join(done.output.split()), args
        settings = json.loads((out / "settings.json").read_text())
        assert settings["split"] == name.partition(":")[2]


def test_columns_and_parts_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_parts.py").write_text(
        "def generous(response, gold): return True\ndef bonus(context): return 0.5\ndef louder(context): return 'AGAIN'\n"
    )
    (tmp_path / "mine.csv").write_text("q,a\nWhat is 1+1?,2\nWhat is 2+2?,4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    parts = ["--verifier", "my_parts:generous", "--feedback", "my_parts:louder", "--reward-term", "mine=my_parts:bonus"]
    columns = ["--problems", "mine.csv", "--question-column", "q", "--answer-column", "a"]
    done = evaluate("--policy", "random", *columns, *parts, "--no-stop-on-success", "--num-turns", "2", "--out", "e")
    assert done.exit_code == 0
    episodes = list(read_episodes(tmp_path / "e" / "episodes.jsonl"))
    assert len(episodes) == 2
    assert [episode.rewards.tolist() for episode in episodes] == [[1.5, 1.5]] * 2
    assert episodes[0].feedbacks[0] == "AGAIN"


def test_a_runs_config_does_not_choose_what_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that came with somebody's weights: its verifier is whatever it says, and gets the model's text."""
    (tmp_path / "witness_code.py").write_text(
        "from pathlib import Path\nPath('witness').touch()\ndef judge(response, gold): return True\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    run = tmp_path / "run"
    (run / "checkpoint").mkdir(parents=True)
    for file in BUILTIN_PATH.iterdir():
        (run / "checkpoint" / file.name).write_bytes(file.read_bytes())
    (run / "metrics.jsonl").touch()
    for part, changes in {
        "env": {"verifier": "witness_code:judge"},
        "terms": {"reward_terms": {"mine": "witness_code:judge"}},
        "id": {"id": "witness_code:Env-v0"},
        "algorithm": {},
    }.items():
        config = load_task("lins").config("grpo").to_json()
        config["env"] |= changes
        config["algorithm"]["name"] = "witness_code:judge" if part == "algorithm" else "grpo"
        (run / "config.json").write_text(json.dumps(config))
        for command in (
            ["eval", "--policy", "run"],
            ["play", "--watch", "run"],
            ["train", "--run-dir", "run", "--resume"],
        ):
            with pytest.raises(CheckpointError, match=r"'?run'? names code.*witness_code:.*--own-code"):
                RUNNER.invoke(app, command, catch_exceptions=False)
        assert not (tmp_path / "witness").exists()
    config = load_task("lins").config("grpo").to_json()
    config["env"]["verifier"] = "witness_code:judge"
    (run / "config.json").write_text(json.dumps(config))
    for asked in (["--own-code"], ["--verifier", "witness_code:judge"]):
        done = evaluate("--policy", "run", "--episodes", "2", "--out", f"e{len(asked)}", *asked)
        assert done.exit_code == 0
    assert (tmp_path / "witness").exists()


def test_missing_ranges() -> None:
    assert list(missing_ranges([], 3)) == [(0, 3)]
    assert list(missing_ranges([0, 1, 2], 3)) == []
    assert list(missing_ranges([1], 3)) == [(0, 1), (2, 1)]


def test_gsm8k_from_its_real_file(shared: Path, tmp_path: Path) -> None:
    file = shared / "data" / "gsm8k_test.jsonl"
    done = evaluate("--problems", str(file), "--episodes", "24", "--num-turns", "2", "--out", str(tmp_path / "g"))
    assert done.exit_code == 0
    report = json.loads((tmp_path / "g" / "report.json").read_text())
    assert report["problems"] == 24
    assert sum(report["stop_reasons"].values()) == 24


@pytest.mark.parametrize("task", [None, "lins"])
def test_a_server_takes_the_tokenizer_of_the_environment(task: str | None) -> None:
    """`--policy http://… --tokenizer X` ended in "needs tokenizer=" although one was given."""
    from mathturn_gym.cli._runs import start_of

    start = start_of(
        "http://127.0.0.1:9", task, max_completion_tokens=8, given={"tokenizer": "builtin"}, own_code=False
    )
    assert start.config().tokenizer == "builtin"
    assert start.load().tokenizer.get_vocab()
    local = start_of("builtin", task, max_completion_tokens=8, given={"tokenizer": "builtin"}, own_code=False)
    assert local.config().tokenizer is None


def test_policy_options_by_the_command_line() -> None:
    policy = PolicyConfig("builtin", options={"cache_bytes": 5})
    found = policy_settings(policy, ["max_batch_size=64", "gpu_memory_utilization=.8", "tensor_parallel_size=2"])
    assert found == {
        "max_batch_size": 64,
        "options": {"cache_bytes": 5, "gpu_memory_utilization": 0.8, "tensor_parallel_size": 2},
    }
    assert policy_settings(policy, []) == {}
    with pytest.raises(InvalidValueError, match="give --policy"):
        policy_settings(policy, ["model=x"])
