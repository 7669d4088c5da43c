"""Training on Ray: asynchronous against synchronous at equal episodes, and a run whose actors are killed.

    PYTHONPATH=.ray python benchmarks/ray_training.py --parts asynchronous [--seeds 0 1 2] [--staleness 2]
    PYTHONPATH=.ray python benchmarks/ray_training.py --parts kills --episodes 5120 [--kills 50]

Both write runs/benchmarks/ray_training.json (`--out`).

Needs Ray (`make test-engines` installs it into .ray). Task `lins` with the built-in model, from its warm start. One rollout
actor plays and this process learns, so asynchronous training has two cores to use at once, and synchronous training uses
one after the other. A seed that the file has already is not run again.

* asynchronous: the same run with `max_staleness` 0 and with `--staleness`. Throughput is episodes per second from the
  end of the first iteration to the end of the last; staleness is the share of trained tokens of each age; accuracy is on
  1,024 test episodes, with its interval over problems.
* kills: the same run with three rollout actors, `max_staleness` 0, and one of them killed `--kills` times at random
  moments, or as often as `--kill-seconds` allow. Every episode is to be there once, and the curve and the accuracy those
  of the run that nobody disturbs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray

from mathturn_gym import collect
from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.neighbors.engines.ray import RaySettings, RayTraining
from mathturn_gym.seeding import derive_seed

PARTS = ("asynchronous", "kills")
TEST_EPISODES = 1024


class Killing(RayTraining):
    """Kills rollout actors at random moments of a training run."""

    def prepare(self, config: RunConfig, policy: Any = None) -> Any:
        """Begins to kill; as the session ends, so does the thread that does it."""
        session: Any = super().prepare(config, policy)
        threading.Thread(target=self.kill, args=(session, random.Random(config.seed)), daemon=True).start()
        return session

    def kill(self, session: Any, rng: random.Random) -> None:
        """Somebody after some episodes, so often that all are killed in about half of the run."""
        engine, next_at, began = session._engine, 0, time.monotonic()
        while not engine._closed:
            time.sleep(0.05)
            self._note(session)
            if engine.deaths >= KILLS or time.monotonic() > began + KILL_SECONDS:
                continue
            finished = session._stream.work_queue.finished if session._stream is not None else 0
            if finished >= next_at:
                engine.kill(rng.randrange(ACTORS))
                next_at = finished + rng.randrange(EPISODES // KILLS)

    def _note(self, session: Any) -> None:
        if session._stream is not None:
            work_queue = session._stream.work_queue
            LAST.update(deaths=session._engine.deaths, replayed=work_queue.replayed, dropped=work_queue.dropped)


LAST: dict[str, int] = {}
ACTORS, KILLS, KILL_SECONDS, EPISODES = 3, 50, 240.0, 15_000


def run(seed: int, engine: RayTraining | None) -> dict[str, Any]:
    """One training run, and what its policy can do."""
    settings = {"evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0, "seed": seed}
    config = load_task("lins").config(settings=settings, budget={"episodes": EPISODES})
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            config,
            run_dir=Path(folder) / "run",
            on_progress=lambda _: times.append(time.perf_counter()),
            engine=engine,
        )
        env: Any = config.env.make("test", 128)
        episodes = collect(env, result.policy, TEST_EPISODES, seed=derive_seed("test", seed))
        env.close()
    report, rows = summarize(episodes, by=()), result.history[1:]
    ages = [
        {name.removeprefix("train/staleness_"): row[name] for name in row if name.startswith("train/staleness_")}
        for row in rows
    ]
    numbers = sorted({int(age) for row in ages for age in row if age.isdigit()})
    return {
        "status": result.status,
        "episodes": rows[-1]["episodes"],
        "seconds": times[-1] - times[1],
        "episodes_per_s": (rows[-1]["episodes"] - rows[0]["episodes"]) / (times[-1] - times[1]),
        "rollout_s": sum(row["time/rollout_s"] for row in rows[1:]),
        "update_s": sum(row["time/update_s"] for row in rows[1:]),
        "staleness": {age: statistics.mean(row.get(str(age), 0.0) for row in ages) for age in numbers},
        **{name: [report[name].value, report[name].low, report[name].high] for name in ("acc@1", "acc@4")},
        "curve": [[row["train/acc@1"], row["train/loss"]] for row in rows],
    }


def engine(staleness: int, actors: int = 1, kind: type[RayTraining] = RayTraining) -> RayTraining:
    """Actors with models of their own, each with half a batch at a time where there is one."""
    share = 64 if actors == 1 else 16
    settings = RaySettings(rollout_actors=actors, share=share, cpus=0.5, max_deaths=10_000)
    return kind(settings=settings, max_staleness=staleness)


def asynchronous(seed: int, staleness: int) -> dict[str, Any]:
    """Both runs of a seed, one after the other."""
    found = {"synchronous": run(seed, engine(0)), "asynchronous": run(seed, engine(staleness))}
    for one in found.values():
        del one["curve"]
    ratio = found["asynchronous"]["episodes_per_s"] / found["synchronous"]["episodes_per_s"]
    return {**found, "throughput_ratio": ratio, "load_after": os.getloadavg()[0]}


def kills(seed: int) -> dict[str, Any]:
    """A run whose actors die, beside one of this process alone."""
    LAST.clear()
    killed, undisturbed = run(seed, engine(0, ACTORS, Killing)), run(seed, None)
    pairs = [
        abs(one - other)
        for mine, theirs in zip(killed.pop("curve"), undisturbed.pop("curve"), strict=True)
        for one, other in zip(mine, theirs, strict=True)
    ]
    low, high = undisturbed["acc@1"][1:]
    return {
        "killed": killed,
        "undisturbed": undisturbed,
        **LAST,
        "curve_distance": max(pairs),
        "within_interval": low <= killed["acc@1"][0] <= high,
    }


def main() -> None:
    """See the module."""
    global EPISODES, KILLS, KILL_SECONDS
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--kills", type=int, default=KILLS, help="in the run of the first seed")
    parser.add_argument(
        "--kill-seconds", type=float, default=KILL_SECONDS, help="after which nobody is killed any more"
    )
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/ray_training.json"))
    args = parser.parse_args()
    EPISODES, KILLS, KILL_SECONDS = args.episodes, args.kills, args.kill_seconds
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}

    def keep(part: str, name: str, found: dict[str, Any]) -> None:
        results.setdefault(part, {})[name] = found
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        print(json.dumps({part: {name: found}}, indent=2), flush=True)

    for seed in args.seeds if "asynchronous" in args.parts else ():
        if f"seed {seed}" not in results.get("asynchronous", {}):
            keep("asynchronous", f"seed {seed}", asynchronous(seed, args.staleness))
    if "kills" in args.parts:
        keep("kills", f"seed {args.seeds[0]}", kills(args.seeds[0]))
    ray.shutdown()


if __name__ == "__main__":
    main()
