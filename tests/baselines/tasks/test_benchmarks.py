"""The tasks that evaluate on public data sets: what they ask, of which rows, and how they are played offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli._runs import Start, problems_of, start_of
from mathturn_gym.cli.app import app
from mathturn_gym.env.config import EnvConfig

QUESTION, ANSWER = "How many?", "3"
ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    # The public columns of each data set, and its splits.
    "gsm8k": {
        "train": [{"question": f"{QUESTION} {i}", "answer": "1+2=<<1+2=3>>3\n#### 3"} for i in range(40)],
        "test": [{"question": QUESTION, "answer": "1+2=<<1+2=3>>3\n#### 3"}],
    },
    "math500": {
        "test": [
            {
                "problem": QUESTION,
                "solution": r"It is $\boxed{3}$.",
                "answer": ANSWER,
                "subject": "Algebra",
                "level": 2,
                "unique_id": "test/1.json",
            }
        ]
    },
    "aime24": {
        "train": [{"id": 60, "problem": QUESTION, "solution": "…", "answer": ANSWER, "url": "u", "year": "2024"}]
    },
    "aime25": {"test": [{"problem": QUESTION, "answer": ANSWER, "id": "0"}]},
    "amc23": {"test": [{"id": 0, "question": QUESTION, "answer": ANSWER, "url": "u"}]},
    "olympiadbench": {"train": [{"id": 1, "question": QUESTION, "solution": ["…"], "final_answer": [ANSWER]}]},
}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_rows_of_the_data_sets_become_problems(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[str] = []

    def load(path: str, config: str | None = None, *, split: str | None = None) -> Any:
        asked.append(f"hf:{path}" + (f":{config}" if config else ""))
        parts = {key: datasets.Dataset.from_list(rows) for key, rows in ROWS[name].items()}
        return datasets.DatasetDict(parts) if split is None else parts[split]

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = load_task(name)
    source: Any = task.env.problems("test")
    problem = source[0]
    assert (source.size, problem.prompt, tuple(problem.gold)) == (1, QUESTION, (ANSWER,))
    assert asked[0] == task.env.value("problems")
    if name == "gsm8k":
        assert (task.env.problems("train").size, task.env.problems("validation").size) == (36, 4)


def started(policy: str | None, task: str) -> Start:
    return start_of(policy, task, max_completion_tokens=64, given={}, own_code=False)


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [
        ("gsm8k", "gsm8k_test", 1319),
        ("math500", "math500_test", 500),
        ("aime24", "aime24_test", 30),
        ("amc23", "amc23_test", 40),
    ],
)
def test_offline_a_file_takes_the_place_of_the_data_set(name: str, file: str, size: int, shared: Path) -> None:
    start = started("builtin", name)
    config = start.env.replace(problems=str(shared / "data" / f"{file}.jsonl"))
    source = problems_of(config, None, named=True)
    assert source.size == size
    env: Any = config.make("test", problems=source)
    shown = env.unwrapped.dialogue.decode(env.reset(seed=0)[0])
    env.close()
    assert "put the final answer within \\boxed{}." in shown


def test_a_task_says_how_it_is_sampled() -> None:
    start = started("smollm2", "aime24")
    assert (start.policy.temperature, start.policy.top_p, start.samples) == (0.6, 0.95, 16)
    assert started("smollm2", "gsm8k").policy.temperature == 0.0
    assert started("my_module:policy", "gsm8k").policy.temperature is None
    assert started(None, "gsm8k").policy.model == "smollm2"


def test_the_command_reports_both_accuracies_and_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS["gsm8k"]["train"][:4]))
    (tmp_path / "policies_of_a_user.py").write_text(
        "from mathturn_gym.env.dialogue import Dialogue\n"
        "from mathturn_gym.testing import ScriptedPolicy\n"
        "def says_three():\n"
        "    return ScriptedPolicy(['I think it is 3.'], Dialogue('builtin'))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    args = ["eval", "--task", "gsm8k", "--policy", "policies_of_a_user:says_three", "--data", str(file), "--out"]
    done = CliRunner().invoke(app, [*args, str(tmp_path / "out")], catch_exceptions=False)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["episodes"] == 4
    assert report["figures"]["acc@1"]["value"] == 0.0
    assert report["lenient"]["acc@1"]["value"] == 1.0
    assert "acc@1 with unmarked answers too: 1.000" in done.output
    (warning,) = report["warnings"]
    assert "100% of 4 turns ended by themselves and have no answer that is marked" in warning
    assert "this policy does not know the form" in done.output.replace("\n", " ")


def test_answers_that_a_function_judges_are_not_read_again() -> None:
    from mathturn_gym.cli.evaluate import looks_for_marks

    assert looks_for_marks(EnvConfig())
    assert looks_for_marks(EnvConfig(verifier="boxed"))
    assert not looks_for_marks(EnvConfig(verifier="lenient"))
    assert not looks_for_marks(EnvConfig(verifier="my_module:judge"))
