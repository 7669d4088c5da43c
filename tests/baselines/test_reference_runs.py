"""Small runs whose figures were recorded before the trainers were taken apart and put together again.

On the machine that recorded them they are the same to the last digit, and so are the weights. Elsewhere, sums come out
otherwise in their last digits: there, what was sampled first has to be the same, and the first iteration's figures nearly.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from mathturn_gym.baselines import train
from mathturn_gym.baselines.tasks import load_task

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "reference_runs.json").read_text())


def this_machine() -> dict[str, str]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "cpu": names[0] if names else platform.machine(), "capability": capability}


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        found.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(
    "run", RECORDED["runs"], ids=lambda run: "-".join([run["algorithm"], run["task"], *run["settings"]])
)
def test_a_recorded_run_is_made_again(tmp_path: Path, run: dict[str, Any]) -> None:
    settings = {**RECORDED["settings"], **run["settings"]}
    config = load_task(run["task"]).config(run["algorithm"], settings, budget={"episodes": RECORDED["episodes"]})
    done = train(config, run_dir=tmp_path / "run")
    rows = [{name.removeprefix("train/"): value for name, value in row.items()} for row in done.history]
    found = [{name: row[name] for name in recorded} for recorded, row in zip(run["lines"], rows, strict=True)]
    if this_machine() == RECORDED["made with"]:
        assert found == run["lines"]
        assert digest(done.policy.model) == run["weights"]
        return
    assert found[0] == run["lines"][0]
    assert found[1] == pytest.approx(run["lines"][1], rel=2e-2, abs=1e-3)
