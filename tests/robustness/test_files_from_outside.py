"""Every reader, on files that nobody meant to be read: a documented error that names the file, or something that loads.

A good file of each kind is written once; then its bytes are cut, changed and repeated, and (where it is JSON or TOML) its
values are replaced by what no writer writes: numbers without end, texts that are no Unicode, nesting without end.
`MATHTURN_OUTSIDE` is how many changes are tried a kind (25 in the suite).
"""

from __future__ import annotations

import copy
import functools
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import areal_replay as replay
import pytest
from gguf_files import write_gguf

from mathturn_gym.base.files import parse_json
from mathturn_gym.baselines.run_folder import load_checkpoint, read_config, read_metrics, verify_checkpoint
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.cli._rescore import read_answers
from mathturn_gym.cli.verify import _rows
from mathturn_gym.compare import load_matrix, make_report, open_matrix
from mathturn_gym.compare.cells import CellFolder
from mathturn_gym.compare.runner import read_cells
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.episodes.packing import pack, unpack
from mathturn_gym.episodes.trajectories import load_batch, read_episodes, save_batch, write_episodes
from mathturn_gym.errors import CheckpointError, InvalidEpisodeError, InvalidValueError, MathTurnError, ProblemFileError
from mathturn_gym.neighbors.export import from_inspect, to_inspect, to_trl, to_verl
from mathturn_gym.policies import BUILTIN_PATH, PolicyConfig
from mathturn_gym.policies.named_models import convert_gguf
from mathturn_gym.problems import load_problems
from mathturn_gym.show.view import write_view
from mathturn_gym.show.view.sources import read_curves
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.verifier.audit import load_cases
from mathturn_gym.wrappers import load_policy

CHANGES = int(os.environ.get("MATHTURN_OUTSIDE", "25"))
RECORDING = Path(__file__).parents[1] / "neighbors" / "areal" / "data" / "own_two_turns.json"
TRACE = Path(__file__).parents[1] / "show" / "view" / "adapters" / "data" / "verifiers_0_4_trace.jsonl"
EPISODES = [
    synthetic_episode(0, i, row, prompt=3, group="g", metadata={"level": i}) for i, row in enumerate([[2, 0, 3], [1]])
]


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Args:
        file: Name of the file that is changed.
        write: Writes a good one, and what lies beside it, to its path.
        read: Reads all of it.
        errors: What it may raise.
        form: What it is made of: "json", "lines" (of JSON), "toml", or "bytes".
        share: How many of `CHANGES` are tried; slow readers get fewer.
    """

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]
    errors: tuple[type[MathTurnError], ...]
    form: str = "bytes"
    share: float = 1.0


def lines(*rows: Any) -> Callable[[Path], object]:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return lambda path: path.write_text(text)


def document(value: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(value))


PROBLEMS: list[dict[str, Any]] = [
    {"id": "a", "question": "1+1?", "answer": "2", "level": 3},
    {"id": "b", "question": "2+2?", "answer": "4"},
]


def write_parquet(path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([{**PROBLEMS[1], "level": 1}, PROBLEMS[0]]), path)


def read_problems(path: Path) -> None:
    """Strictly, and leaving bad rows out."""
    for skip in (True, False):
        source = load_problems(path, skip_bad_rows=skip)
        for at in range(min(len(source), 5)):  # type: ignore[arg-type]
            source[at]  # type: ignore[index]


def read_all_episodes(path: Path) -> None:
    for _ in read_episodes(path):
        pass
    for _ in read_episodes(path, strict=True):
        pass


@functools.cache
def checkpoint() -> Path:
    """A small checkpoint, written by a trainer."""
    import tempfile

    from mathturn_gym.baselines import train

    folder = Path(tempfile.mkdtemp(prefix="mathturn-outside-")) / "run"
    config = load_task("add1").config(
        "reinforce", {"policy.model": str(BUILTIN_PATH), "optimization.batch_episodes": 2, "evaluation.episodes": 2},
        budget={"episodes": 2},
    )  # fmt: skip
    train(config, run_dir=folder)
    return folder


@functools.cache
def classic_run() -> Path:
    """A small run of a classic algorithm."""
    import tempfile

    from mathturn_gym.baselines import train

    folder = Path(tempfile.mkdtemp(prefix="mathturn-outside-")) / "run"
    settings = {"n_envs": 1, "n_steps": 4, "layers": 1, "width": 8, "feedforward": 8, "heads": 1, "evaluation.episodes": 0, "evaluation.test_episodes": 0}  # fmt: skip
    train(load_task("add1").config("sb3_a2c", settings, budget={"tokens": 4}), run_dir=folder)
    return folder


def resume(path: Path) -> None:
    """What going on with a finished run reads."""
    from mathturn_gym.baselines import train

    train(read_config(path.parent), run_dir=path.parent, resume=True)


def load_classic_run(path: Path) -> None:
    from mathturn_gym.baselines.classic import load_classic

    load_classic(path.parent)


def part_of_run(inside: str, made: Callable[[], Path] = checkpoint) -> Callable[[Path], object]:
    """Copies the run around the file; `path` is below the new run as `inside` is below the old one."""

    def write(path: Path) -> None:
        run = path.parents[len(Path(inside).parts) - 1]
        shutil.copytree(made(), run, dirs_exist_ok=True)

    return write


def write_comparison(path: Path) -> None:
    """A comparison with one cell, whose run is finished."""
    out = path.parent
    while out.name != "comparison":
        out = out.parent
    open_matrix(load_matrix(algorithms=["reinforce"], tasks=["add1"], seeds=1, tokens=100, out=str(out)), command="x")
    folder = CellFolder(out, read_cells(out)[0])
    shutil.copytree(checkpoint(), folder.run, dirs_exist_ok=True)


COMPARED = "comparison/cells/reinforce/add1/0/run"


def comparison_of(path: Path) -> None:
    out = path.parent
    while out.name != "comparison":
        out = out.parent
    for cell in read_cells(out):
        CellFolder(out, cell).outcome()
        CellFolder(out, cell).progress()


def from_json(kind: Any) -> Callable[[Path], object]:
    """What a program does that keeps a config in a file of its own: the document is its business, the values are ours."""

    def read(path: Path) -> None:
        try:
            value = parse_json(path.read_bytes())
        except ValueError:
            return
        kind.from_json(value)

    return read


def read_view(path: Path) -> None:
    write_view(path.parent / "page.html", [path])


def write_inspect(path: Path) -> None:
    pytest.importorskip("inspect_ai", reason="Inspect's logs need inspect_ai: make test-inspect")
    to_inspect(EPISODES, path)


BATCH = pack(EPISODES, "turns")
CASE = {"gold": "2", "response": "\\boxed{2}", "label": True, "kind": "response"}
DUMP = {"input": "1+1?", "output": "2", "gts": "2", "score": 1.0, "step": 3, "acc": True}
SAMPLE = json.loads(TRACE.with_name("trl_asynchronous_sample.json").read_text())
HISTORY = {"log_history": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]}
RESULT = {
    "task": "add1",
    "seed": 0,
    "status": "finished",
    "test": {"acc@1": 0.5},
    "tokens": 1,
    "cpu_s": 1,
    "episodes": 1,
}
TASK = (
    'about = "x"\nalgorithm = "reinforce"\n[env]\nproblems = "add1"\nnum_turns = 2\n[policy]\nmodel = "builtin"\n'
    "[budget]\nepisodes = 4\n[optimization]\nlearning_rate = 1e-3\n[evaluation]\nepisodes = 4\n"
)
MATRIX = 'algorithms = ["reinforce"]\ntasks = ["add1"]\nseeds = 2\ntokens = 1000\n[settings]\noptimization.batch_episodes = 4\n'

PROBLEM, VALUE, CHECK = (ProblemFileError, InvalidValueError), (InvalidValueError,), (CheckpointError,)
EPISODE = (InvalidValueError, InvalidEpisodeError)
CHECK_OR_MASK = (
    CheckpointError,
    InvalidValueError,
)  # the latter where a tokenizer has other ids than the grammar needs
READERS = {
    "problems-jsonl": Reader("p.jsonl", lines(*PROBLEMS), read_problems, PROBLEM, "lines"),
    "problems-json": Reader("p.json", document(PROBLEMS), read_problems, PROBLEM, "json"),
    "problems-json-object": Reader("p.json", document({"a": 1, "rows": PROBLEMS}), read_problems, PROBLEM, "json"),
    "problems-csv": Reader("p.csv", lambda p: p.write_text('id,question,answer\na,1+1?,2\nb,"2+\n2?",4\n'), read_problems, PROBLEM),
    "problems-gz": Reader("p.jsonl.gz", lambda p: p.write_bytes(gzip.compress(b'{"question": "1", "answer": "2"}\n')), read_problems, PROBLEM),
    "problems-parquet": Reader("p.parquet", write_parquet, read_problems, PROBLEM),
    "episodes-jsonl": Reader("e.jsonl", lambda p: write_episodes(p, EPISODES), read_all_episodes, EPISODE, "lines"),
    "episodes-gz": Reader("e.jsonl.gz", lambda p: write_episodes(p, EPISODES), read_all_episodes, EPISODE),
    "episodes-parquet": Reader("e.parquet", lambda p: write_episodes(p, EPISODES), read_all_episodes, EPISODE),
    "batch": Reader("b.safetensors", lambda p: save_batch(p, BATCH), lambda p: unpack(load_batch(p)), VALUE),
    "run-config": Reader("config.json", part_of_run("config.json"), lambda p: read_config(p.parent), CHECK, "json"),
    "run-metrics": Reader("metrics.jsonl", part_of_run("metrics.jsonl"), lambda p: read_metrics(p.parent), CHECK, "lines"),
    "checksums": Reader("checkpoint/checksums.json", part_of_run("checkpoint/checksums.json"), lambda p: verify_checkpoint(p.parent), CHECK, "json"),
    "trainer-json": Reader("checkpoint/trainer.json", part_of_run("checkpoint/trainer.json"), lambda p: load_checkpoint(p.parent), CHECK, "json"),
    "trainer-tensors": Reader("checkpoint/trainer.safetensors", part_of_run("checkpoint/trainer.safetensors"), lambda p: load_checkpoint(p.parent), CHECK),
    "policy-json": Reader("checkpoint/policy.json", part_of_run("checkpoint/policy.json"), lambda p: load_policy(str(p.parent)), CHECK, "json", 0.4),
    "model-config": Reader("checkpoint/config.json", part_of_run("checkpoint/config.json"), lambda p: load_policy(str(p.parent)), CHECK, "json", 0.4),
    "model-weights": Reader("checkpoint/model.safetensors", part_of_run("checkpoint/model.safetensors"), lambda p: load_policy(str(p.parent)), CHECK, "bytes", 0.4),
    "tokenizer": Reader("checkpoint/tokenizer.json", part_of_run("checkpoint/tokenizer.json"), lambda p: load_policy(str(p.parent)), CHECK_OR_MASK, "json", 0.4),
    "tokenizer-config": Reader("checkpoint/tokenizer_config.json", part_of_run("checkpoint/tokenizer_config.json"), lambda p: load_policy(str(p.parent)), CHECK_OR_MASK, "json", 0.4),
    "gguf": Reader("m.gguf", write_gguf, lambda p: convert_gguf(p, p.parent / "converted", overwrite=True), CHECK, "bytes", 0.1),
    "classic-config": Reader("config.json", part_of_run("config.json", classic_run), load_classic_run, CHECK, "json", 0.2),
    "classic-weights": Reader("policy.safetensors", part_of_run("policy.safetensors", classic_run), load_classic_run, CHECK, "bytes", 0.2),
    "classic-result": Reader("result.json", part_of_run("result.json", classic_run), resume, CHECK, "json", 0.2),
    "recording": Reader("r.json", lambda p: p.write_bytes(RECORDING.read_bytes()), lambda p: replay.main([str(p)]), VALUE, "json"),
    "inspect-eval": Reader("l.eval", write_inspect, from_inspect, EPISODE),
    "inspect-json": Reader("l.json", write_inspect, from_inspect, EPISODE, "json"),
    "view-inspect": Reader("l.eval", write_inspect, read_view, VALUE),
    "view-inspect-json": Reader("l.json", write_inspect, read_view, VALUE, "json"),
    "env-config": Reader("c.json", document(EnvConfig(problems="add1", num_turns=2, reward_terms={"overlong": 1.0}).to_json()), from_json(EnvConfig), VALUE, "json"),
    "policy-config": Reader("c.json", document({"model": "builtin", "temperature": 0.5, "top_k": 3, "lora": {"r": 4}}), from_json(PolicyConfig), VALUE, "json"),
    "task": Reader("t.toml", lambda p: p.write_text(TASK), lambda p: load_task(str(p)).config(budget={"episodes": 1}), VALUE, "toml"),
    "matrix": Reader("m.toml", lambda p: p.write_text(MATRIX), lambda p: load_matrix(p).cells(), VALUE, "toml"),
    "comparison": Reader("comparison/matrix.json", write_comparison, comparison_of, CHECK, "json"),
    "comparison-page": Reader("comparison/matrix.json", write_comparison, lambda p: make_report(p.parent), (CheckpointError, InvalidValueError), "json", 0.1),
    "answers": Reader("a.jsonl", lines(CASE, CASE), lambda p: _rows(p, "response"), PROBLEM, "lines"),
    "answers-log": Reader("e.jsonl", lambda p: write_episodes(p, EPISODES), read_answers, (ProblemFileError, InvalidValueError), "lines"),
    "cases": Reader("c.jsonl", lines(CASE, CASE), load_cases, PROBLEM, "lines"),
    "view-ours": Reader("e.jsonl", lambda p: write_episodes(p, EPISODES), read_view, VALUE, "lines"),
    "view-gz": Reader("e.jsonl.gz", lambda p: write_episodes(p, EPISODES), read_view, VALUE),
    "view-parquet": Reader("e.parquet", lambda p: write_episodes(p, EPISODES), read_view, VALUE),
    "view-verifiers": Reader("t.jsonl", lambda p: p.write_bytes(TRACE.read_bytes()), read_view, VALUE, "lines"),
    "view-verl-dump": Reader("3.jsonl", lines(DUMP, DUMP), read_view, VALUE, "lines"),
    "view-verl": Reader("v.jsonl", lines(*to_verl(EPISODES)), read_view, VALUE, "lines"),
    "view-trl": Reader("s.jsonl", lines(SAMPLE, SAMPLE), read_view, VALUE, "lines"),
    "view-trl-rows": Reader("r.jsonl", lambda p: lines(*(dict(zip(to_trl(EPISODES), row, strict=True)) for row in zip(*to_trl(EPISODES).values(), strict=True)))(p), read_view, VALUE, "lines"),
    "curves": Reader("metrics.jsonl", lines({"iteration": 1, "loss": 0.5}, {"iteration": 2, "loss": 0.25}), lambda p: read_curves(p.parent, "x"), VALUE, "lines"),
    "curves-hf": Reader("trainer_state.json", document(HISTORY), lambda p: read_curves(p.parent, "x"), VALUE, "json"),
}  # fmt: skip


NAMELESS = ("env-config", "policy-config")
"""Read from values, which no file holds."""


@functools.cache
def good(name: str) -> bytes:
    """The bytes of a good file; reading it raises nothing."""
    import tempfile

    reader = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, reader.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        reader.write(path)
        if name == "answers-log":  # these episodes were kept without their texts
            with pytest.raises(ProblemFileError, match="no answer that can be judged"):
                reader.read(path)
        else:
            reader.read(path)
        return path.read_bytes()


HUGE = "@huge@"
"""Stands in a document for a number of 5,000 digits, which Python's writer refuses to write."""
DEEP = "@deep@"
VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 10**400, -(10**19), 2**63, 1e308, float("inf"), float("nan"), "", "x", "\ud800", "\x00", "\x1b[2J\u202e",
    [], {}, [[]], {"a": 1}, [None], ["x"] * 3, HUGE, DEEP,
]  # fmt: skip
PIECES = [
    b"\x00", b"\xff", b"\xed\xa0\x80", b"9" * 5000, b"1e999", b"-Infinity", b"NaN", b"null", b"[" * 3000, b'{"a":' * 3000, b'"', b"\n", b"\r", b",",
    b"{}", b"\xef\xbb\xbf", b"\\ud800", b"[[[]]]", b"]", b"}", b"PAR1", b"\x1f\x8b", b" " * 100,
]  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document."""
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:20]):
            yield from places(inner, (*at, index))


def with_value(value: Any, at: tuple[Any, ...], new: Any, gone: bool) -> Any:
    """The document with the value at a place replaced, or taken out."""
    if not at:
        return new
    value = copy.deepcopy(value)
    inner = value
    for step in at[:-1]:
        inner = inner[step]
    if gone:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return value


def written(value: Any) -> bytes:
    text = json.dumps(value)
    return text.replace(f'"{HUGE}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 3000 + "]" * 3000).encode()


def as_toml(text: str, rng: random.Random) -> bytes:
    """A value of a TOML file replaced."""
    rows = text.splitlines()
    at = rng.choice([index for index, row in enumerate(rows) if "=" in row])
    values = ["9" * 5000, "1e999", "nan", "inf", "-1", '""', '"\\u0000"', "[]", "{}", "true", "[" * 3000 + "]" * 3000, "1979-05-27", '"x"', "10000000000000000000000", "{a={b=1}}"]  # fmt: skip
    rows[at] = f"{rows[at].partition('=')[0]}= {rng.choice(values)}"
    return "\n".join(rows).encode()


def change(name: str, rng: random.Random) -> bytes:
    """A good file, changed."""
    data, form = good(name), READERS[name].form
    kind = rng.randrange(10)
    if form == "json" and kind < 6:
        value = json.loads(data)
        return written(with_value(value, rng.choice(list(places(value))), rng.choice(VALUES), rng.random() < 0.15))
    if form == "lines" and kind < 6:
        rows = data.splitlines()
        at = rng.randrange(len(rows))
        value = json.loads(rows[at])
        rows[at] = written(with_value(value, rng.choice(list(places(value))), rng.choice(VALUES), rng.random() < 0.15))
        return b"\n".join(rows) + b"\n"
    if form == "toml" and kind < 6:
        return as_toml(data.decode(), rng)
    at = rng.randrange(len(data) + 1)
    if kind == 6:
        return data[:at]
    if kind == 7:
        return data[:at] + rng.choice(PIECES) + data[at:]
    if kind == 8:
        return rng.randbytes(rng.randrange(200))
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def hold(name: str, data: bytes, folder: Path) -> None:
    """Reads a changed file: it loads, or a documented error names it."""
    reader = READERS[name]
    path = folder / reader.file
    path.write_bytes(data)
    try:
        reader.read(path)
    except reader.errors as error:
        message = str(error)
        assert path.name in message or path.parent.name in message or name in NAMELESS, f"no file is named: {message}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_any_bytes_load_or_are_a_documented_error(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    (tmp_path / reader.file).parent.mkdir(parents=True, exist_ok=True)
    good(name)
    reader.write(tmp_path / reader.file)
    for seed in range(max(4, int(CHANGES * reader.share))):
        data = change(name, random.Random(seed))
        try:
            hold(name, data, tmp_path)
        except Exception as error:
            pytest.fail(f"{name}, change {seed}: {type(error).__name__}: {str(error)[:300]}; the file: {data[:300]!r}")
