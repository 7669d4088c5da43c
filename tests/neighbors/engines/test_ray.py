"""Rollouts and training on a real Ray: one local cluster for all tests of this file (`make test-engines`)."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym import collect
from mathturn_gym.baselines import GRPO, Budget, Evaluation, Optimization, RunConfig, train
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import CheckpointError, EngineError, InvalidValueError, RunError, UserFunctionError
from mathturn_gym.policies import PolicyConfig
from mathturn_gym.types import Episode
from mathturn_gym.wrappers import load_policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray", reason="Ray is not installed: `make test-engines` runs this")

from mathturn_gym.neighbors.engines.ray import RayEngine, RaySettings, RayTraining

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A local Ray of eight pretended cores, so that actors are not what is short."""
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    yield
    ray.shutdown()


def local(env: EnvConfig, policy: PolicyConfig, episodes: int, **options: Any) -> list[Episode]:
    player = load_policy(policy)
    return collect(env.make("train", episodes, policy=player), player, episodes, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"rollout_actors": 1}, {"rollout_actors": 3, "policy_actors": 2}])
def test_the_episodes_are_those_of_collect_to_the_bit(
    env: EnvConfig, simulated: Any, same: Any, settings: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"seed": 4, "first_index": 6, "group_size": 3, "discount": 0.5}
    with RayEngine(env, simulated(), RaySettings(share=4, **settings)) as engine:
        found = engine.collect(30, **options)
        assert engine.collect(0) == []
        problem = found[0].problem_id
        (again,) = engine.collect(1, problem_ids=[problem])
    same(found, local(env, simulated(), 30, **options))
    assert again.problem_id == problem


def test_the_number_of_actors_changes_no_bit_of_a_models_episodes(env: EnvConfig, same: Any) -> None:
    policy = PolicyConfig("builtin")
    found = []
    for actors in (1, 3):
        with RayEngine(env, policy, RaySettings(rollout_actors=actors, share=8)) as engine:
            found.append(engine.collect(24, seed=4))
    same(found[0], found[1])
    same(found[0], local(env, policy, 24, seed=4), logprobs=1e-5)


def test_killed_actors_lose_nothing_and_count_nothing_twice(env: EnvConfig, simulated: Any, same: Any) -> None:
    policy = simulated(seconds=0.02)
    rng = random.Random(0)
    with RayEngine(env, policy, RaySettings(rollout_actors=3, share=4, num_envs=8)) as engine:
        seen: list[int] = []

        def keep(episode: Episode) -> None:
            seen.append(episode.index)
            if len(seen) % 60 == 0 and engine.deaths < 4:
                engine.kill(rng.randrange(3))

        found = engine.collect(360, seed=4, on_episode=keep)
        assert engine.deaths >= 3
    assert sorted(seen) == list(range(360))
    same(found, local(env, simulated(), 360, seed=4))


def test_a_policy_actor_dies(env: EnvConfig, simulated: Any, same: Any) -> None:
    with RayEngine(env, simulated(seconds=0.05), RaySettings(rollout_actors=1, policy_actors=2, share=4)) as engine:
        killed = threading.Timer(0.5, lambda: ray.kill(engine._of("policy")[0].handle))
        killed.start()
        found = engine.collect(120, seed=4)
        killed.join()
        assert engine.deaths == 1
        assert len(engine._policies()) == 2
    same(found, local(env, simulated(), 120, seed=4))


def test_scaling_while_they_play(env: EnvConfig, simulated: Any, same: Any) -> None:
    with RayEngine(env, simulated(seconds=0.02), RaySettings(rollout_actors=1, share=4, num_envs=8)) as engine:
        problems = env.problems("train")
        collection = engine.begin(problems, 200, seed=4)
        engine.scale(3)
        found = {episode.index: episode for episode in _first(collection, 60)}
        while sum(worker.ready for worker in engine._of("rollout")) < 3:
            time.sleep(0.1)
        engine.scale(1)
        found |= {episode.index: episode for episode in collection}
        assert engine.rollout_actors == 1
        assert collection.work_queue.replayed == 0  # who leaves finishes first
        assert len([one for one in engine._of("rollout") if not one.retiring]) == 1
    same([found[index] for index in range(200)], local(env, simulated(), 200, seed=4))


def _first(collection: Any, count: int) -> list[Episode]:
    found = []
    for episode in collection:
        found.append(episode)
        if len(found) == count:
            # What came together with the last one has been handed over, too.
            break
    return found + collection.take([])


def test_placement_and_room(env: EnvConfig, simulated: Any) -> None:
    with RayEngine(env, simulated(), RaySettings(rollout_actors=2, policy_actors=1, placement="PACK")) as engine:
        assert len(engine.collect(8)) == 8
        engine.scale(3)  # one more than the group has room for
        assert len(engine.collect(8)) == 8
    with pytest.raises(
        EngineError, match=r"no room for 40 actors: they take {'CPU': 40.0}, the cluster has {'CPU': 8.0"
    ):
        RayEngine(env, simulated(), RaySettings(rollout_actors=40))
    with pytest.raises(EngineError, match="no room for 1 actors under placement 'PACK'"):
        RayEngine(env, simulated(), RaySettings(rollout_actors=1, gpus=3, placement="PACK", start_timeout=0.5))


def test_ray_takes_the_cluster_file_of_the_examples() -> None:
    import yaml
    from ray.autoscaler._private.util import fillout_defaults, validate_config

    file = Path(__file__).parents[3] / "examples" / "ray" / "cluster.yaml"
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    whole = fillout_defaults(written)
    validate_config(whole)
    # No index has the package: the checkout travels, and each node installs it from there.
    (there,) = (place for place, here in whole["file_mounts"].items() if here == ".")
    assert whole["setup_commands"] == [f"pip install '{there}[ray,train]'"]
    assert whole["docker"]["image"].startswith(f"rayproject/ray:{ray.__version__}-")


# ---- bad input


def test_what_a_worker_cannot_load_is_said_at_the_start(env: EnvConfig, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        RayEngine(env, PolicyConfig(str(tmp_path)), RaySettings(rollout_actors=1))


def test_an_address_where_no_cluster_is(env: EnvConfig, simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(EngineError, match=f"nothing answers at the address '{address}' of the Ray cluster"):
        RayEngine(env, simulated(), RaySettings(address=address))


def test_problems_travel(env: EnvConfig, simulated: Any, tmp_path: Path) -> None:
    """A file that only the driver has: its problems go to the workers."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "1+1?", "answer": "2"}\n{"question": "2+2?", "answer": "4"}\n')
    config = env.replace(problems=str(file), train="all")
    with RayEngine(config, simulated(), RaySettings(rollout_actors=1, share=2)) as engine:
        problems = config.problems("train")
        file.unlink()
        collection = engine.begin(problems, 4)
        assert {episode.prompt for episode in collection} == {"1+1?", "2+2?"}


def _broken(response: str, gold: Any) -> bool:
    raise ZeroDivisionError("no such luck")


def test_a_users_mistake_is_raised_where_collect_was_called(env: EnvConfig, simulated: Any) -> None:
    with (
        RayEngine(env.replace(verifier=_broken), simulated(), RaySettings(rollout_actors=1, share=2)) as engine,
        pytest.raises(UserFunctionError, match="no such luck"),
    ):
        engine.collect(8)


@pytest.mark.parametrize("policy_actors", [0, 2])
def test_who_starts_while_weights_change_plays_with_the_newest(env: EnvConfig, policy_actors: int) -> None:
    weights = load_policy("builtin").model.state_dict()
    settings = RaySettings(rollout_actors=2, policy_actors=policy_actors, share=2, cpus=0.5)
    with RayEngine(env, PolicyConfig("builtin"), settings) as engine:
        holders = engine._of("policy" if policy_actors else "rollout")
        ray.kill(holders[0].handle)
        while not engine.deaths:
            time.sleep(0.05)
        for version in (1, 2):
            engine.update_weights(weights, version=version)
        while len(engine._holders()) < 2:
            time.sleep(0.05)
        episodes = engine.collect(16)
        assert {int(one) for episode in episodes for one in episode.versions[episode.loss_mask]} == {2}


def test_weights_that_do_not_fit(env: EnvConfig) -> None:
    with RayEngine(env, PolicyConfig("builtin"), RaySettings(rollout_actors=1)) as engine:
        with pytest.raises(InvalidValueError, match=r"do not fit twice into the object store of a node"):
            engine.update_weights({"large": torch.zeros(60_000_000)}, version=1)
        with pytest.raises(CheckpointError, match="the new weights lack"):
            engine.update_weights({"x": torch.zeros(1)}, version=1)


def test_workers_that_keep_dying(env: EnvConfig) -> None:
    policy = PolicyConfig("os:_exit", options={"status": 3})
    with pytest.raises(EngineError, match="3 workers died without finishing anything in between"):
        RayEngine(env, policy, RaySettings(rollout_actors=1, max_deaths=2, start_timeout=60.0))


def test_versions_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    from mathturn_gym.neighbors.engines.ray._cluster import check_nodes

    other = "f" * 56
    nodes = [
        {"Alive": True, "NodeID": ray.nodes()[0]["NodeID"], "NodeManagerHostname": "far", "NodeManagerAddress": "x"}
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    context = ray.get_runtime_context()
    monkeypatch.setattr(type(context), "get_node_id", lambda self: other)
    from mathturn_gym.neighbors.engines.ray._cluster import FACTS

    check_nodes(FACTS, 60.0)
    with pytest.raises(EngineError, match=r"node far \(x\) of the cluster has torch .*, and this process has 9.9"):
        check_nodes({**FACTS, "torch": "9.9"}, 60.0)
    monkeypatch.setattr("mathturn_gym.neighbors.engines.ray._cluster._PROBE", "mathturn_gym.no_such:FACTS")
    with pytest.raises(EngineError, match=r"cannot import this package .*pip install '\.\[ray\]'"):
        check_nodes(FACTS, 60.0)


# ---- training


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "env": EnvConfig(problems="lins", num_turns=2, max_completion_tokens=32),
        "algorithm": GRPO(group_size=4),
        "budget": Budget(episodes=96),
        "optimization": Optimization(batch_episodes=32, learning_rate=1e-3),
        "evaluation": Evaluation(every=0, episodes=16),
        "save_every": 2,
        "seed": 3,
    }
    return RunConfig(**{**values, **changes})


def curve(result: Any) -> list[tuple[Any, ...]]:
    names = ("train/acc@1", "train/reward", "train/loss", "validation/acc@1", "tokens")
    return [tuple(row.get(name) for name in names) for row in result.history]


def test_the_barrier_draws_the_curve_of_one_process(tmp_path: Path) -> None:
    alone = train(config(), run_dir=tmp_path / "alone")
    engine = RayTraining(settings=RaySettings(rollout_actors=2, share=16))
    result = train(config(), run_dir=tmp_path / "ray", engine=engine)
    for one, other in zip(curve(alone), curve(result), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert result.history[-1]["train/staleness_max"] == 0.0
    assert result.history[-1]["engine/object_store_bytes"] > 0
    # Half a run, gone on with by the engine.
    train(config(budget=Budget(episodes=64)), run_dir=tmp_path / "half", engine=engine)
    resumed = train(config(), run_dir=tmp_path / "half", engine=engine, resume=True)
    assert curve(resumed)[-1] == pytest.approx(curve(result)[-1], abs=1e-4)


def test_asynchronous_training_is_never_staler_than_it_may_be(tmp_path: Path) -> None:
    engine = RayTraining(settings=RaySettings(rollout_actors=2, policy_actors=1, share=8), max_staleness=2)
    result = train(config(budget=Budget(episodes=256)), run_dir=tmp_path / "run", engine=engine)
    rows = result.history[1:]
    assert all(row["train/staleness_max"] <= 2 for row in rows)
    assert max(row["train/staleness_max"] for row in rows) >= 1
    assert all(np.isfinite(row["train/mismatch_mean"]) for row in rows)
    shares = [
        sum(value for name, value in row.items() if name.startswith("train/staleness_") and name[-1].isdigit())
        for row in rows
    ]
    assert shares == pytest.approx([1.0] * len(rows))


def test_training_goes_on_when_actors_die(tmp_path: Path) -> None:
    kills: list[int] = []
    engine = RayTraining(settings=RaySettings(rollout_actors=2, share=8))
    original = RayEngine.begin

    def begin(self: RayEngine, *args: Any, **kwargs: Any) -> Any:
        if "limit" in kwargs and not kills:
            kills.append(0)
            threading.Timer(0.2, lambda: self.kill(0)).start()
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayEngine, "begin", begin)
        result = train(config(), run_dir=tmp_path / "run", engine=engine)
    assert result.status == "finished"
    assert result.history[-1]["engine/deaths"] == 1
    undisturbed = train(config(), run_dir=tmp_path / "alone")
    assert curve(result)[-1] == pytest.approx(curve(undisturbed)[-1], abs=1e-4)


def test_what_the_engine_cannot_train(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="workers load a policy by its name"):
        train(config(), run_dir=tmp_path / "a", policy=load_policy("builtin"), engine=RayTraining())
    with pytest.raises(InvalidValueError, match="max_staleness must be"):
        RayTraining(max_staleness=-1)
    assert issubclass(EngineError, RunError)


def test_the_command_evaluates_on_ray_and_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from mathturn_gym.baselines.run_folder import flat
    from mathturn_gym.cli.app import app
    from mathturn_gym.episodes.trajectories import read_episodes

    def evaluate(out: str, *more: str) -> str:
        options = [
            "--problems",
            "lins",
            "--episodes",
            "40",
            "--samples",
            "2",
            "--seed",
            "3",
            "--out",
            str(tmp_path / out),
        ]
        done = CliRunner().invoke(app, ["eval", *options, *more])
        assert done.exit_code == 0, done.output
        return done.output

    evaluate("alone")
    evaluate("ray", "--engine", "ray", "--engine-set", "share=4")
    file = tmp_path / "ray" / "episodes.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    header = lines[: len(lines) - 40]
    file.write_text("".join([*header, *lines[len(header) : len(header) + 11]]))  # as if it had been killed
    kept = {episode.index for episode in read_episodes(file)}
    assert len(kept) == 11
    evaluate("ray", "--engine", "ray", "--engine-set", "rollout_actors=3", "--engine-set", "share=4", "--resume")
    reports = [json.loads((tmp_path / out / "report.json").read_text()) for out in ("alone", "ray")]
    assert {episode.index for episode in read_episodes(file)} == set(range(40))
    first, second = (flat(report) for report in reports)
    assert first.keys() == second.keys()
    for name, value in first.items():
        # A share is decoded apart from the others: log-probs differ in the last bits, and with them their means.
        assert second[name] == (pytest.approx(value, abs=1e-5) if isinstance(value, float) else value), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "--engine", "distributed"], "--engine distributed trains"),
        (["eval", "--engine", "rays"], "did you mean 'ray'"),
        (["eval", "--engine", "ray", "--engine-set", "actors=2"], "unknown engine setting 'actors'"),
        (["train", "lins", "--engine", "local", "--engine-set", "share=2"], "--engine local has no settings"),
        (["train", "lins", "--engine", "ray", "--engine-set", "max_staleness=-1"], "max_staleness must be"),
    ],
)
def test_options_that_are_none(words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from mathturn_gym.cli.app import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert message in " ".join(f"{done.output} {done.exception}".split())
