"""What an engine costs, what it loses when workers die, and what it would need on larger machines (`docs/engines.md`).

    PYTHONPATH=.ray python benchmarks/scale.py [--parts actors policies kills costs plan simulate] [--out runs/benchmarks/scale.json]

Needs Ray (`make test-engines` installs it into .ray). Policies are `SimulatedPolicy`: they sleep and draw a digit, so what
is measured is the engine. Every ratio is of two measurements of this run, one after the other, taken `--repeats` times in
turn; the median is given, with the lowest and the highest.

* actors: a policy in each rollout actor that takes .25 s per batch of 16, one actor and two, and plain `collect` with the
  same batches. `speedup` is two against one, `overhead` one against `collect`.
* policies: 64 simulated policies of .2 s with 64 episodes at once, and with 128: the part that the policies take of the time
  of all 64, from the first request to the last episode, and the CPU time of a turn in each process. From that, how many
  cores leave 95 % to the policies.
* kills: actors are killed at random while episodes are played, `--kills` times within `--kill-seconds`; every episode is
  there once and equal to the undisturbed one.
* costs: seconds of one verdict, one step of the environment, packing and unpacking, bytes per token through the object store.
* plan: from costs, what 1, 8, 64 and 1,024 GPUs need.
* simulate: episodes per second of long-tailed policies (log-normal, spread 1), 8 to 256 of them, beside what the plan
  predicts from `costs`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from mathturn_gym import collect
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.neighbors.engines._wire import PackedEpisodes
from mathturn_gym.neighbors.engines.ray import RayEngine, RaySettings
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.types import Episode
from mathturn_gym.verifier import Verifier
from mathturn_gym.wrappers import load_policy

ENV = EnvConfig("MathMultiTurn-v0", problems="lins", num_turns=3, max_completion_tokens=32)
TURNS, SHARE = 3, 16
PARTS = ("actors", "policies", "kills", "costs", "plan", "simulate")


def simulated(**options: Any) -> PolicyConfig:
    return PolicyConfig("simulated:SimulatedPolicy", options=options)


def seconds_of(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def actors(repeats: int) -> dict[str, Any]:
    policy, episodes = simulated(seconds=0.25, scheduler="batched"), 12 * SHARE
    player = load_policy(policy)
    env: Any = ENV.make("train", SHARE, policy=player)

    def plain() -> None:
        for first in range(0, episodes, SHARE):
            collect(env, player, SHARE, first_index=first)

    times: dict[str, list[float]] = {"plain": [], "one": [], "two": []}
    settings = {
        name: RaySettings(rollout_actors=count, share=SHARE, cpus=0.5) for name, count in (("one", 1), ("two", 2))
    }
    with RayEngine(ENV, policy, settings["one"]) as one, RayEngine(ENV, policy, settings["two"]) as two:
        for engine in (one, two):
            engine.collect(2 * SHARE)  # environments are made with the first share
        plain()
        for _ in range(repeats):
            times["plain"].append(seconds_of(plain))
            times["one"].append(seconds_of(lambda: one.collect(episodes)))
            times["two"].append(seconds_of(lambda: two.collect(episodes)))
    pairs = list(zip(times["plain"], times["one"], times["two"], strict=True))
    return {
        "seconds": times,
        "speedup": spread([first / second for _, first, second in pairs]),
        "overhead": spread([first / alone - 1 for alone, first, _ in pairs]),
    }


def policies(repeats: int, count: int = 64, seconds: float = 0.2) -> dict[str, Any]:
    """Each policy has one request at a time; asked by the rollout actor itself, or in an actor of their own.

    With as many episodes as policies, a policy is idle while its episode is stepped. With twice as many, it has another
    episode's request by then, and what a turn costs shows only where the cores are full.
    """
    episodes = 24 * count
    found: dict[str, Any] = {"policies": count, "seconds_of_a_policy": seconds, "episodes": episodes}
    for name, policy_actors in (("asked_directly", 0), ("policy_actor", 1)):
        # Two rollout actors with half of the policies each, or one policy actor with all.
        policy = simulated(seconds=seconds, replicas=count if policy_actors else count // 2)
        for at_once in (count, 2 * count):
            settings = RaySettings(
                rollout_actors=2, policy_actors=policy_actors, num_envs=at_once // 2, share=8, cpus=0.5
            )
            with RayEngine(ENV, policy, settings) as engine:
                engine.collect(at_once)
                before = cpu_seconds(engine)
                took = [seconds_of(partial(engine.collect, episodes)) for _ in range(repeats)]
                after = cpu_seconds(engine)
            turns = repeats * episodes * TURNS
            used = {kind: 1e3 * (after[kind] - before[kind]) / turns for kind in after}
            found[f"{name}, {at_once} at once"] = {
                **spread([episodes * TURNS * seconds / (count * one) for one in took]),
                "cpu_ms_per_turn": {**used, "all": sum(used.values())},
                "cores_for_95_percent": sum(used.values()) / 1e3 * 0.95 * count / seconds,
            }
    return found


def same(one: Episode, other: Episode) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "logprobs", "rewards"))


def kills(wanted: int, seed: int, seconds: float) -> dict[str, Any]:
    rng, seen, count = random.Random(seed), 0, 3
    settings = RaySettings(rollout_actors=count, num_envs=16, share=4, cpus=0.3, max_deaths=wanted)
    policy = simulated(seconds=0.1, spread=1.0)
    episodes: dict[int, int] = {}
    found: dict[int, Episode] = {}
    began = time.monotonic()
    with RayEngine(ENV, policy, settings) as engine:
        collection = engine.begin(ENV.problems("train"), None, seed=seed, limit=1_000_000)
        for episode in collection:
            seen += 1
            episodes[episode.index] = episodes.get(episode.index, 0) + 1
            found[episode.index] = episode
            # Several deaths between two deliveries, and deaths while others start.
            if seen % 4 == 0 and engine.deaths < wanted:
                engine.kill(rng.randrange(count))
            if (engine.deaths >= wanted and seen % 64 == 0) or time.monotonic() > began + seconds:
                break
        collection.allow(0)
        took = time.monotonic() - began
        deaths, replayed, dropped = engine.deaths, collection.work_queue.replayed, collection.work_queue.dropped
        last = max(found) + 1
        missing = engine.begin(ENV.problems("train"), last, seed=seed, done=list(found))
        for episode in missing:
            found[episode.index] = episode
    quick = simulated(seconds=0.0)
    player = load_policy(quick)
    env: Any = ENV.make("train", 64, policy=player)
    undisturbed = collect(env, player, last, seed=seed)
    return {
        "kills": deaths,
        "seconds": took,
        "episodes": last,
        "replayed": replayed,
        "dropped_as_second": dropped,
        "counted_twice": sum(times > 1 for times in episodes.values()),
        "missing": last - len(found),
        "equal_to_undisturbed": all(same(found[index], undisturbed[index]) for index in range(last)),
    }


def costs() -> dict[str, Any]:
    """CPU seconds in one process, without an engine."""
    player = load_policy(simulated(seconds=0.0, scheduler="batched"))
    env: Any = ENV.make("train", 64, policy=player)
    collect(env, player, 64)
    began = time.process_time()
    episodes = collect(env, player, 1024, seed=1)
    step = (time.process_time() - began) / (1024 * TURNS)
    verifier, texts = Verifier(), [rf"It is \boxed{{{number}}}." for number in range(1000)]
    began = time.process_time()
    verifier.verify_batch(texts, [(str(number + 1),) for number in range(1000)])
    verify = (time.process_time() - began) / 1000
    began = time.process_time()
    packed = PackedEpisodes.of(episodes)
    pack = (time.process_time() - began) / len(episodes)
    began = time.process_time()
    packed.episodes()
    unpack = (time.process_time() - began) / len(episodes)
    tokens = sum(len(episode.ids) for episode in episodes)
    return {
        "step_s": step,
        "verify_s": verify,
        "pack_s_per_episode": pack,
        "unpack_s_per_episode": unpack,
        "bytes_per_token": packed.nbytes / tokens,
        "tokens_per_episode": tokens / len(episodes),
    }


def simulate(counts: Sequence[int], seconds: float, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Throughput of long-tailed policies, and what the plan says."""
    rows = []
    for count in counts:
        per_actor = 64
        rollout = max(1, min(2, count // per_actor))
        # Twice as many episodes as policies: an episode that is stepped, or whose share waits for its last, idles none.
        settings = RaySettings(
            rollout_actors=rollout, policy_actors=rollout, num_envs=2 * count // rollout, share=4, cpus=0.25
        )
        policy = simulated(seconds=seconds, spread=1.0, replicas=count // rollout)
        episodes = 16 * count
        with RayEngine(ENV, policy, settings) as engine:
            engine.collect(2 * rollout)
            took = seconds_of(partial(engine.collect, episodes, seed=3))
        predicted = predict(count, seconds, found)
        rows.append(
            {
                "policies": count,
                "episodes": episodes,
                "turns_per_s": episodes * TURNS / took,
                "predicted_turns_per_s": predicted["turns_per_s"],
                "limit": predicted["limit"],
            }
        )
    return rows


def predict(count: int, seconds: float, found: dict[str, Any], cores: int | None = None) -> dict[str, Any]:
    """The plan's model: the least of what policies, rollout cores and the driver can do."""
    cores = (os.cpu_count() or 1) if cores is None else cores
    limits = {
        "policies": count / seconds,
        "cores": cores / found["engine_turn_s"],
        "driver": TURNS / found["driver_episode_s"],
    }
    limit = min(limits, key=lambda name: limits[name])
    return {"turns_per_s": limits[limit], "limit": limit}


def request_seconds() -> dict[str, float]:
    """CPU seconds of a turn through an engine, all processes together, and the driver's of an episode."""
    with RayEngine(
        ENV, simulated(seconds=0.0, replicas=64), RaySettings(rollout_actors=1, policy_actors=1, share=4, cpus=0.5)
    ) as engine:
        engine.collect(64)
        before = cpu_seconds(engine)
        engine.collect(512, seed=2)
        used = {kind: seconds - before[kind] for kind, seconds in cpu_seconds(engine).items()}
    return {"engine_turn_s": sum(used.values()) / (512 * TURNS), "driver_episode_s": used["driver"] / 512}


def plan(found: dict[str, Any], share: int = 16) -> list[dict[str, Any]]:
    """What clusters of these sizes need: answers of 512 tokens, four turns, 5,000 tokens per second and GPU.

    Args:
        found: Measured costs.
        share: Episodes that come together; the driver's costs of a share are spread over them.
    """
    answer, turns, speed, parameters, iteration = 512, 4, 5000.0, 7e9, 120.0
    # Of what the driver does per episode, unpacking stays; handing out and taking is once per share.
    driver = found["unpack_s_per_episode"] + (found["driver_episode_s"] - found["unpack_s_per_episode"]) / share
    rows = []
    for gpus in (1, 8, 64, 1024):
        asked = gpus * speed / answer
        episodes = asked / turns
        rows.append(
            {
                "gpus": gpus,
                "turns_per_s": asked,
                "rollout_cores": asked * found["engine_turn_s"],
                "verifier_cores": asked * found["verify_s"],
                "object_store_MB_per_s": episodes * (turns * (answer + 16) + 100) * found["bytes_per_token"] / 1e6,
                "driver_cores": episodes * driver,
                "weights_GB_per_s": gpus * 2 * parameters / 1e9 / iteration,
            }
        )
    return rows


def cpu_seconds(engine: RayEngine) -> dict[str, float]:
    """CPU time until now of this process, the engine's actors by kind, and Ray's own processes."""
    found = {"driver": _cpu_of("self"), "rollout": 0.0, "policy": 0.0, "ray": 0.0}
    for worker in engine._workers:
        found[worker.kind] += _cpu_of(worker.facts["pid"])
    for task in Path("/proc/self/task").iterdir():  # the raylet and its like are children of whoever began Ray
        found["ray"] += sum(_cpu_of(child) for child in (task / "children").read_text().split())
    return found


def _cpu_of(pid: int | str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--kill-seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=0, help="of the kills: of whom, and of the episodes")
    parser.add_argument("--policies", type=int, nargs="+", default=[8, 32, 64, 128, 256])
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/scale.json"))
    args = vars(parser.parse_args())
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    out: Path = args["out"]
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for part in args["parts"]:
        results["load_before"] = {**results.get("load_before", {}), part: os.getloadavg()[0]}
        if part == "actors":
            results[part] = actors(args["repeats"])
        elif part == "policies":
            results[part] = policies(args["repeats"])
        elif part == "kills":
            results[part] = {
                **results.get(part, {}),
                f"seed {args['seed']}": kills(args["kills"], args["seed"], args["kill_seconds"]),
            }
        elif part == "costs":
            results[part] = {**costs(), **request_seconds()}
        elif part == "plan":
            results[part] = plan(results["costs"])
        else:
            results[part] = simulate(args["policies"], 0.2, results["costs"])
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=2) + "\n")
        print(json.dumps({part: results[part]}, indent=2))


if __name__ == "__main__":
    main()
