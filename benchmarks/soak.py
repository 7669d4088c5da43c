"""Eight environments and the trainer for an hour: does memory grow, and is anything left when they are closed?

    python benchmarks/soak.py [--minutes 60] [--cycles 20] [--out docs/benchmarks/soak.json]

training     `train` plays all built-in families in eight environments with the built-in policy and learns from every batch
             of eight episodes, with an evaluation, kept episodes and a checkpoint now and then, until the time is up.
             Every `--every` iterations the process and its children are looked at. The slope of memory is that of a line
             through the second half of the episodes, in MB per 100,000 of them, with its standard error; in the first
             half caches fill up to their limits.
endings      An environment with workers of its own is made, played, and given up, `--cycles` times each: closed; closed
             after its feedback has raised; forgotten without `close`; closed as eight processes of `AsyncVectorEnv`.
             Processes, threads, open files and semaphores are counted before the first cycle and after the last.

Exit code 1 where memory rises by more than 1 MB per 100,000 episodes (by more than two standard errors above it), or where
an ending has left something.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np

from mathturn_gym import collect
from mathturn_gym.baselines import Budget, ClippedREINFORCE, EnvConfig, Evaluation, Optimization, RunConfig, train
from mathturn_gym.env.verification import get_verifier
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.types import Problem, TurnContext
from mathturn_gym.verifier import Verifier

ENVS: Final = 8
LIMIT: Final = 1.0
"""MB per 100,000 episodes."""
WARM_UP: Final = 1 / 2


def descendants(pid: int | None = None) -> list[int]:
    """Process ids of all processes below one (Linux); this one where none is named."""
    pid = os.getpid() if pid is None else pid
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = [int(word) for word in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):  # ended in the meantime
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def give_back() -> None:
    """What was freed goes back to the system, where the C library can: what remains is held."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def anonymous_mb(pid: int) -> float:
    """Memory of a process that is its own, not that of files it has mapped; 0 for one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("RssAnon")), 0.0)


@dataclass(frozen=True)
class Held:
    """What this process holds that has to be given back.

    Args:
        processes: Below this one, zombies included.
        threads: Of this process.
        handles: Open files, sockets and pipes.
        semaphores: Named ones and shared memory that are mapped, and System V's that this process made.
    """

    processes: int
    threads: int
    handles: int
    semaphores: int

    @classmethod
    def now(cls) -> Held:
        """After a garbage collection."""
        gc.collect()
        own = Path("/proc/self")
        return cls(
            processes=len(descendants()),
            threads=len(list((own / "task").iterdir())),
            handles=len(os.listdir(own / "fd")) - 1,  # noqa: PTH208  the one that lists them
            semaphores=(own / "maps").read_text().count("/dev/shm/") + _system_v(),
        )

    def since(self, before: Held) -> dict[str, int]:
        """What there is more of than before; empty where nothing was left."""
        now, then = asdict(self), asdict(before)
        return {name: now[name] - then[name] for name in now if now[name] > then[name]}


def _system_v() -> int:
    """Segments of shared memory that this process made."""
    table = Path("/proc/sysvipc/shm")
    rows = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return sum(row[rows[0].index("cpid")] == str(os.getpid()) for row in rows[1:])


# ---- training


def config(seed: int) -> RunConfig:
    """The run: small batches, so that an hour has many of everything."""
    return RunConfig(
        env=EnvConfig(problems="families", num_turns=2, max_completion_tokens=6, feedback="graded"),
        algorithm=ClippedREINFORCE(),
        budget=Budget(episodes=10_000_000),
        optimization=Optimization(batch_episodes=ENVS, minibatches=1, learning_rate=1e-5, schedule="constant"),
        evaluation=Evaluation(every=500, episodes=ENVS, test_episodes=0),
        save_every=500,
        seed=seed,
    )


def soak(run_dir: Path, seconds: float, every: int, seed: int) -> list[dict[str, float]]:
    """Trains until the time is up, and returns what was seen of the process on the way."""
    samples: list[dict[str, float]] = []
    began = time.monotonic()

    def look(metrics: Mapping[str, float]) -> None:
        if metrics["iteration"] % every == 0:
            held = Held.now()
            give_back()
            samples.append(
                {
                    "seconds": round(time.monotonic() - began, 1),
                    "episodes": metrics["episodes"],
                    "mb": round(anonymous_mb(os.getpid()), 3),
                    "workers_mb": round(sum(map(anonymous_mb, descendants())), 3),
                    **asdict(held),
                }
            )
        if time.monotonic() - began > seconds:
            signal.raise_signal(signal.SIGINT)  # as a user ends a run: with a checkpoint

    result = train(config(seed), run_dir=run_dir, on_progress=look, overwrite=True)
    assert result.status == "interrupted", result
    return samples


def slope(samples: Sequence[Mapping[str, float]], name: str = "mb") -> dict[str, float]:
    """MB per 100,000 episodes after the warm-up, by least squares, with the standard error."""
    after = [one for one in samples if one["episodes"] >= WARM_UP * samples[-1]["episodes"]]
    x = np.array([one["episodes"] for one in after]) / 1e5
    y = np.array([one[name] for one in after])
    x, y = x - x.mean(), y - y.mean()
    value = float(x @ y / (x @ x))
    rest = y - value * x
    return {"value": value, "standard_error": float(np.sqrt(rest @ rest / max(1, len(x) - 2) / (x @ x)))}


# ---- endings


SUMS: Final = [{"question": f"Compute sum number {n}.", "answer": f"\\sum_{{k=1}}^{{{n}}} k"} for n in range(3, 11)]
"""Golds that symbolic workers have to look at."""


def _environment(**options: Any) -> Any:
    # A limit that no other verifier of the process has, so that the workers are this environment's own.
    return gym.make_vec("MathMultiTurn-v0", num_envs=ENVS, problems=SUMS, verifier=Verifier(timeout=7.5), **options)


def _play(env: Any) -> None:
    collect(env, ScriptedPolicy(["\\boxed{x+1}", "\\boxed{6}"], env.envs[0].dialogue), ENVS)


def closed() -> None:
    """An environment that is closed."""
    env = _environment()
    _play(env)
    env.close()


def raised() -> None:
    """One whose feedback raises in the middle of an episode."""

    def feedback(context: Any) -> str:
        if context.turn == 2:
            raise RuntimeError("the user's feedback has failed")
        return "Again."

    env = _environment(feedback=feedback)
    try:
        _play(env)
    except RuntimeError:
        env.close()
        return
    raise AssertionError("the feedback did not raise")


def forgotten() -> None:
    """One that is not closed, and garbage soon, in a cycle of references."""
    env = _environment()
    env.myself = env
    _play(env)


def processes() -> None:
    """One in eight processes, each with workers of its own."""
    env = _environment(vectorization_mode="async")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()


ENDINGS: Final[Mapping[str, Callable[[], None]]] = {
    "closed": closed,
    "raised": raised,
    "forgotten": forgotten,
    "processes": processes,
}


def left_by(ending: Callable[[], None], cycles: int) -> dict[str, int]:
    """What an ending leaves after some cycles; one before them loads what is loaded once."""
    ending()
    before = Held.now()
    for _ in range(cycles):
        ending()
    deadline = time.monotonic() + 10.0
    while (left := Held.now().since(before)) and time.monotonic() < deadline:
        time.sleep(0.1)  # processes that were told to end do so soon
    return left


def _table(found: Mapping[str, Any]) -> str:
    """JSON with a sample to a line."""
    samples = ",\n  ".join(json.dumps(one) for one in found["samples"])
    return (
        json.dumps({**found, "samples": []}, indent=1).replace('"samples": []', f'"samples": [\n  {samples}\n ]') + "\n"
    )


def main() -> int:
    """Runs both parts, prints and writes the figures; 1 where something grows or is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=int, default=100, help="iterations between two looks")
    parser.add_argument("--cycles", type=int, default=20, help="of each ending")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/soak.json"))
    options = parser.parse_args()
    endings = {name: left_by(ending, options.cycles) for name, ending in ENDINGS.items()}
    print(json.dumps(endings), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # What is loaded once, and the workers of the process' own verifier, which stay.
        train(config(options.seed), budget=Budget(episodes=ENVS), run_dir=Path(folder) / "first")
        problem = Problem("sum", "Add up 1, 2 and 3.", "\\sum_{k=1}^{3} k")
        get_verifier(None).verify_turns([TurnContext(problem, 0, 1, "\\boxed{6}")])
        before = Held.now()
        samples = soak(Path(folder) / "run", 60 * options.minutes, options.every, options.seed)
        left = Held.now().since(before)
    found = {
        "minutes": options.minutes,
        "python": platform.python_version(),
        "episodes": samples[-1]["episodes"],
        "mb_per_100000_episodes": slope(samples),
        "workers_mb_per_100000_episodes": slope(samples, "workers_mb"),
        "left_by_training": left,
        "endings": {"cycles": options.cycles, "left": endings},
        "samples": samples,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(_table(found))
    print(json.dumps({name: value for name, value in found.items() if name != "samples"}, indent=1))
    grows = found["mb_per_100000_episodes"]
    return int(grows["value"] - 2 * grows["standard_error"] > LIMIT or bool(left) or any(endings.values()))


if __name__ == "__main__":
    raise SystemExit(main())
