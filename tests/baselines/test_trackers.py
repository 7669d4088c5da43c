"""Trackers: what they are told, that a slow or broken one costs a run nothing, and real ones where they are installed."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathturn_gym.baselines import RunConfig, train
from mathturn_gym.baselines import trackers as module
from mathturn_gym.baselines.run_folder import read_config
from mathturn_gym.baselines.trackers import check_tracker, open_tracker
from mathturn_gym.errors import InvalidValueError, MissingDependencyError


class FakeWandb:
    """Keeps what Weights & Biases is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.started: dict[str, Any] = {}

    def init(self, **settings: Any) -> Any:
        self.started = settings
        return SimpleNamespace(
            log=lambda row, step: self.seen.append((step, row)), finish=lambda: self.seen.append(None)
        )

    @staticmethod
    def Table(columns: list[str], data: list[list[Any]]) -> list[dict[str, Any]]:  # noqa: N802
        return [dict(zip(columns, row, strict=True)) for row in data]


def test_a_run_tells_its_metrics_and_some_episodes(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(settings={"tracker": "wandb:team/sums", "evaluation.kept": 6}, episodes=8)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependencyError, match=r"tracker='wandb:team/sums' needs wandb: .*\[wandb\]"):
        train(config, run_dir=tmp_path / "run")
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    done = train(config, run_dir=tmp_path / "run", overwrite=True)
    assert wandb.started["project"] == "team/sums"
    assert wandb.started["config"]["algorithm"]["name"] == "clipped_reinforce"
    assert wandb.seen.pop() is None
    rows = [(step, row) for step, row in wandb.seen if "iteration" in row]
    assert [row for _, row in rows] == done.history
    assert [step for step, _ in rows] == [0, 1]
    (_, first), *_ = [(step, row["episodes/validation"]) for step, row in wandb.seen if "episodes/validation" in row]
    assert len({one["problem"] for one in first}) == 4, "a few, not all that the folder keeps"
    assert [one["role"] for one in first[:2]] == ["user", "assistant"]
    assert first[0]["text"]


def test_a_slow_tracker_is_not_waited_for_and_a_broken_one_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate, told = threading.Event(), []

    class Slow:
        def __init__(self, *_: Any) -> None: ...

        def log(self, metrics: Mapping[str, float], iteration: int) -> None:
            gate.wait()
            told.append(iteration)
            if iteration % 2:
                raise OSError("no route")

        def close(self) -> None:
            told.append(-1)

    monkeypatch.setattr(module, "TRACKERS", {"json": Slow})
    monkeypatch.setattr(module, "_WAITING", 3)
    tracker = open_tracker("json:x", tmp_path, {})
    with caplog.at_level(logging.WARNING, logger="mathturn_gym"):
        for iteration in range(100):
            tracker.log({"iteration": iteration}, iteration)
        gate.set()
        tracker.close()
    assert told == [*sorted(told[:-1]), -1]
    assert 3 <= len(told) - 1 <= 4, "one under way, three that wait"
    said = [record.message for record in caplog.records]
    assert said[0] == "json: OSError: no route (the run goes on; said once)"
    assert said[1:] == [f"json fell behind: {101 - len(told)} of its calls were dropped"]


@pytest.mark.parametrize(
    "text", ["", "wandb", "wandb:", "comet:x", "mlflow:http://evil/x", "wandb:a/b/c", "wandb:a\n", 3]
)
def test_a_tracker_is_a_name_and_a_project(text: object) -> None:
    with pytest.raises(InvalidValueError, match='tracker must be "NAME:PROJECT" with a name of wandb, trackio, mlflow'):
        check_tracker(text)


def test_a_run_goes_on_with_another_tracker_and_older_configs_load(
    tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    train(small(episodes=8), run_dir=tmp_path / "run")
    train(small(settings={"tracker": "wandb:later"}, episodes=16), run_dir=tmp_path / "run", resume=True)
    assert read_config(tmp_path / "run").tracker == "wandb:later"
    older = {name: value for name, value in small().to_json().items() if name != "tracker"}
    assert RunConfig.from_json({**older, "wandb_project": None}).tracker is None
    assert RunConfig.from_json({**older, "wandb_project": "mine"}).tracker == "wandb:mine"


def test_trackio_shows_the_traces(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # is read when the module loads
    pytest.importorskip("trackio", reason="trackio is not installed: make test-trackers")
    train(small(settings={"tracker": "trackio:sums"}, episodes=8), run_dir=tmp_path / "run")
    assert (tmp_path / "trackio" / "sums.db").exists()
    traces = list((tmp_path / "trackio" / "traces").rglob("*validation*.jsonl"))
    assert traces
    assert all('"assistant"' in one.read_text() for one in traces)


def test_mlflow_has_metrics_and_texts(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed: make test-trackers")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = train(small(settings={"tracker": "mlflow:sums"}, episodes=8), run_dir=tmp_path / "run")
    (metric,) = (one for one in (tmp_path / "mlruns").rglob("acc_at_1") if one.parent.name == "validation")
    assert [float(line.split()[1]) for line in metric.read_text().splitlines()] == [
        row["validation/acc@1"] for row in done.history if "validation/acc@1" in row
    ]
    assert list((tmp_path / "mlruns").rglob("episodes/validation/*.txt"))
