"""Runs that train nothing: what the comparison sees of a run, in milliseconds. Loaded by name in the runs' processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def run(
    algorithm: str,
    task: str,
    run_dir: Path,
    *,
    seed: int,
    tokens: int | None,
    cpu_seconds: float | None,
    resume: bool,
    overwrite: bool,
    settings: Mapping[str, Any],
    on_progress: Any,
) -> None:
    """Climbs from 0.2 to `level`, an evaluation every tenth of the tokens, or does what a setting says."""
    assert not overwrite
    assert on_progress is None
    level = float(settings.get("level", 0.8)) + 0.02 * float(np.random.default_rng(seed).random())
    total = int(settings.get("use_tokens", tokens or 1000))
    run_dir.mkdir(exist_ok=True)
    begin = json.loads((run_dir / "checkpoint").read_text())["iteration"] + 1 if resume else 0
    print(
        f"begin at {begin}, threads {os.environ['OMP_NUM_THREADS']}, kept {sorted(p.name for p in run_dir.iterdir())}"
    )
    for iteration in range(begin, 11):
        used = total * iteration // 10
        accuracy = 0.2 + (level - 0.2) * iteration / 10
        metrics = {"iteration": iteration, "episodes": used // 10, "tokens": used, "cpu_s": used / 100}
        metrics |= {"validation/acc@1": accuracy / 2, "validation/acc@4": accuracy}
        with (run_dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")
        if iteration == 5:
            halfway(run_dir, settings, resume)
    if settings.get("no_result"):
        return
    diverged = bool(settings.get("diverge"))
    result = {
        "algorithm": algorithm,
        "task": task,
        "seed": seed,
        "status": "diverged" if diverged else "finished",
        "message": "the loss is nan" if diverged else "",
        "episodes": total // 10,
        "tokens": total,
        "cpu_s": total / 100,
        "budget_tokens": tokens,
        "budget_cpu_s": cpu_seconds,
        "test": None if diverged else {"acc@1": level / 2, "acc@4": level, "episodes": 64},
    }
    (run_dir / "result.json").write_text(json.dumps(result))


def halfway(run_dir: Path, settings: Mapping[str, Any], resume: bool) -> None:
    """What may go wrong in the middle."""
    (run_dir / "checkpoint").write_text(json.dumps({"iteration": 5}))
    if settings.get("fail"):
        raise ValueError(settings["fail"])
    if settings.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if settings.get("exit"):
        raise SystemExit(7)
    if settings.get("wait") and not resume:
        (run_dir / "waiting").touch()
        time.sleep(60)  # until Ctrl-C


not_a_function = 3
