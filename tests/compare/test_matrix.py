from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.compare import Matrix, load_matrix
from mathturn_gym.compare import matrix as module
from mathturn_gym.compare.matrix import Cell, check_cells
from mathturn_gym.errors import InvalidValueError


def example() -> str:
    """The file that the module's docstring explains."""
    assert module.__doc__ is not None
    return textwrap.dedent("\n".join(line for line in module.__doc__.splitlines() if line.startswith("    ")))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "matrix.toml"
    path.write_text(text)
    return path


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    matrix = load_matrix(write(tmp_path, example()))
    cells = {cell.key: cell for cell in matrix.cells()}
    assert len(cells) == 3 * 2 * 5
    assert matrix.jobs == 2
    one = cells["one_turn/lins/seed-0"]
    assert (one.algorithm, one.tokens, one.cpu_seconds) == ("clipped_reinforce", 300_000, 120.0)
    assert one.settings == {"evaluation.every": 10, "num_turns": 1}, "the algorithm's table wins over the task's"
    assert cells["grpo/lins/seed-4"].settings == {"evaluation.every": 10, "num_turns": 3, "group_size": 8}
    assert cells["grpo/add1/seed-4"].settings == {"evaluation.every": 10}
    assert cells["grpo/add1/seed-4"].tokens == 200_000


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, example())
    matrix = load_matrix(path, seeds=[7], tokens=None, cpu_seconds=5.0, settings={"discount": 1.0})
    assert {cell.seed for cell in matrix.cells()} == {7}
    assert matrix.settings == {"evaluation.every": 10, "discount": 1.0}
    assert matrix.tokens == 200_000
    assert matrix.cpu_seconds == 5.0


def test_a_part_of_the_rows_takes_what_the_file_says_of_them(tmp_path: Path) -> None:
    matrix = load_matrix(write(tmp_path, example()), algorithms=["one_turn"], tasks=["add1"])
    assert {cell.key for cell in matrix.cells()} == {f"one_turn/add1/seed-{seed}" for seed in range(5)}
    one_task = load_matrix(write(tmp_path, example()), algorithms=["grpo"], tasks=["add1"])
    assert [cell.settings for cell in one_task.cells()] == [{"evaluation.every": 10}] * 5, (
        "its table for lins is left out"
    )
    with pytest.raises(InvalidValueError, match=r"unknown \[algorithm.grpo.task\] table 'linz'"):
        load_matrix(write(tmp_path, example() + "\n[algorithm.grpo.task.linz]\n"), tasks=["add1"])
    with pytest.raises(InvalidValueError, match=r"unknown \[algorithm\] table 'two_turn'"):
        load_matrix(write(tmp_path, example() + "\n[algorithm.two_turn]\n"), algorithms=["one_turn"])


def test_the_row_that_others_are_held_against_is_one_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, example())
    assert load_matrix(path).against == "grpo"
    assert load_matrix(path, against="ppo").against == "ppo"
    assert load_matrix(path, algorithms=["ppo"]).against is None, "the file's row is not among those that are added"
    with pytest.raises(InvalidValueError, match="unknown against 'grpo'"):
        load_matrix(path, algorithms=["ppo"], against="grpo")


def test_the_repositorys_comparisons_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "experiments"
    files = sorted(folder.glob("*.toml"))
    assert len(files) >= 5
    monkeypatch.chdir(folder.parent)  # tasks of their own are named from there
    for file in files:
        check_cells(load_matrix(file, seeds=1).cells())


def test_after_each_seed_there_is_something_of_everything() -> None:
    cells = Matrix(algorithms=["a", "b"], tasks=["s", "t"], seeds=2, tokens=1).cells()
    assert {(cell.label, cell.task) for cell in cells[:4]} == {("a", "s"), ("b", "s"), ("a", "t"), ("b", "t")}
    assert {cell.seed for cell in cells[:4]} == {0}


def test_cells_come_back_from_json() -> None:
    for cell in Matrix(algorithms=["m:f"], tasks=["t"], seeds=1, tokens=5, settings={"a": [1, 2.5]}).cells():
        assert Cell.from_json(cell.to_json()) == cell
    data = cell.to_json()
    for change, message in (
        ({"sed": 1}, "unknown cell field 'sed': did you mean 'seed'"),
        ({"seed": -1}, "cell seed must be an integer >= 0"),
        ({"task": 3}, "cell task must be a non-empty text"),
        ({"settings": 3}, "cell settings must be a table"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            Cell.from_json({**data, **change})
    with pytest.raises(InvalidValueError, match="lacks label"):
        Cell.from_json({k: v for k, v in data.items() if k != "label"})


def test_cells_of_before_total_tokens_are_the_same_cells() -> None:
    cell = Matrix(algorithms=["a"], tasks=["t"], seeds=1, tokens=5).cells()[0]
    assert Cell.from_json({name: value for name, value in cell.to_json().items() if name != "total_tokens"}) == cell
    only = Matrix(algorithms=["a"], tasks=["t", "u"], total_tokens=7, task={"u": {"total_tokens": 9}}, seeds=1)
    assert [one.total_tokens for one in only.cells()] == [7, 9]
    with pytest.raises(InvalidValueError, match="total_tokens must be an integer >= 1"):
        Matrix(algorithms=["a"], tasks=["t"], total_tokens=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algoritms = ['a']", "unknown key 'algoritms': did you mean 'algorithms'"),
        ("algorithms = ['a']\ntokens = 5", "tasks must be given: in the configuration file, or as --tasks"),
        ("algorithms = 'a'\ntasks = ['t']\ntokens = 5", "algorithms must be a list of at least one name, got 'a'"),
        ("algorithms = []\ntasks = ['t']\ntokens = 5", "algorithms must be a list"),
        ("algorithms = ['a', 'a']\ntasks = ['t']\ntokens = 5", "algorithms must differ, got a more than once"),
        ("algorithms = ['a:b', 'a-b']\ntasks = ['t']\ntokens = 5", "differ in more than punctuation"),
        ("algorithms = ['a', 3]\ntasks = ['t']\ntokens = 5", "algorithms must be a non-empty text, got 3"),
        ("algorithms = ['a']\ntasks = ['t']", "tokens or cpu_seconds must be given"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 0", "tokens must be an integer >= 1, got 0"),
        ("algorithms = ['a']\ntasks = ['t']\ncpu_seconds = 0", "cpu_seconds must be above 0"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\njobs = 0", "jobs must be an integer >= 1"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nseeds = [1, 1]", "seeds must differ"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nseeds = []", "seeds must be how many"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nseeds = true", "seeds must be how many"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nseeds = [-1]", "seeds must be an integer >= 0"),
        ("algorithms = ['a']\ntasks = ['lins']\ntokens = 5\n[task.lin]", r"unknown \[task\] table 'lin': did you mean"),
        (
            "algorithms = ['a']\ntasks = ['t']\ntokens = 5\n[task.t]\ntoken = 5",
            "unknown key of .task.t. 'token': did you",
        ),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\n[task.t]\ntokens = 'x'", "task.t.tokens must be an integer"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\ntask = 3", "task must be a table of tables"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\n[algorithm]\na = 3", "algorithm.a must be a table"),
        (
            "algorithms = ['a']\ntasks = ['t']\ntokens = 5\n[algorithm.a]\nrun = 3",
            "algorithm.a.run must be a non-empty",
        ),
        (
            "algorithms = ['a']\ntasks = ['t']\ntokens = 5\n[algorithm.a.task.u]",
            r"unknown \[algorithm.a.task\] table 'u'",
        ),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nsettings = 3", "settings must be a table of FIELD = VALUE"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nsettings = {x = 1979-05-27}", "plain numbers, texts"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nsettings = {x = nan}", "plain numbers, texts"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nagainst = 'b'", "unknown against 'b'"),
        ("algorithms = ['a']\ntasks = ['t']\ntokens = 5\nagainst = 3", "unknown against 3"),
        ("algorithms = [", "is no TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        load_matrix(write(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"config '.*none.toml' cannot be read"):
        load_matrix(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match="cannot be read"):
        load_matrix(tmp_path / "binary.toml")


def test_folders_stay_inside_the_comparison() -> None:
    def key(**changes: Any) -> str:
        names: dict[str, Any] = {"algorithms": ["a"], "tasks": ["t"], "seeds": 1, "tokens": 1}
        return Matrix(**{**names, **changes}).cells()[0].key

    assert key(algorithms=["../../x"]) == "-..-x/t/seed-0"
    assert key(tasks=[".."]) == "a/-/seed-0"
    assert key(algorithms=["my.module:run"]) == "my.module-run/t/seed-0"


def test_the_documents_file_is_read(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "compare.md"
    blocks = re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (text,) = [block for block in blocks if block.startswith("# matrix.toml")]
    cells = {cell.key: cell for cell in load_matrix(write(tmp_path, text)).cells()}
    assert len(cells) == 4 * 2 * 5
    check_cells(cells.values())
    assert cells["grpo/lins/seed-0"].settings == {"evaluation.every": 10, "group_size": 8}
    assert cells["eager/add1/seed-0"].algorithm == "clipped_reinforce"
