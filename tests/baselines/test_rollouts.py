"""Training on what another engine samples: batches ahead of the learner, failures, and the whole loop."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathturn_gym.baselines import train
from mathturn_gym.baselines.rollouts import Ahead, OnFailure, play_groups
from mathturn_gym.baselines.session import interrupt_flag
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.errors import InvalidValueError, PolicyError

CONTINUOUS = {"policy.rollout": "continuous", "policy.rollout_options": {"num_blocks": 256, "page_size": 16}}


def run_config(episodes: Any = 16, **settings: Any) -> RunConfig:
    small = {
        "batch_episodes": 8,
        "minibatches": 1,
        "epochs": 1,
        "evaluation.episodes": 2,
        "evaluation.every": 0,
        "evaluation.test_episodes": 0,
        "env.num_turns": 2,
        "policy.device": "cpu",
    }
    return load_task("lins").config(settings={**small, **settings}, budget={"episodes": episodes})


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_batches_begin_as_far_ahead_as_staleness_allows(staleness: int) -> None:
    begun: list[int] = []
    ahead = Ahead(staleness)

    def play(first: int) -> Any:
        begun.append(first)
        return [first]

    expected: Any
    for iteration in range(4):
        expected = [10 + 4 * iteration]
        assert ahead.batch(10 + 4 * iteration, 4, play) == expected
        ahead.between(lambda: None)  # what has been begun is done
        assert begun == [10 + 4 * k for k in range(iteration + staleness + 1)]
    ahead.close()


def test_what_fails_ahead_is_raised_where_it_is_wanted() -> None:
    ahead = Ahead(1)
    stop = threading.Event()

    def play(first: int) -> Any:
        stop.wait(10)
        raise PolicyError("gone")

    stop.set()
    with pytest.raises(PolicyError, match="gone"):
        ahead.batch(0, 4, play)
    ahead.close()


class Player:
    """Plays episodes, of which some fail."""

    def __init__(self, failures: dict[int, int]) -> None:
        self.failures, self.asked = failures, list[tuple[int, int]]()

    def play(self, first: int, count: int) -> list[Any]:
        self.asked.append((first, count))
        done: list[Any] = []
        for index in range(first, first + count):
            if self.failures.get(index, 0):
                self.failures[index] -= 1
                error = PolicyError(f"episode {index}")
                error.finished = tuple(done)
                raise error
            done.append(SimpleNamespace(index=index))
        return done


@pytest.mark.parametrize(
    ("on_failure", "failures", "left"),
    [
        ("retry", {5: 1}, range(4, 12)),
        ("retry", {5: 2, 6: 1, 10: 2}, range(4, 12)),
        ("drop_group", {5: 9}, [*range(6, 12)]),
        ("drop_group", {4: 9, 11: 9}, [*range(6, 10)]),
    ],
)
def test_failed_groups_are_played_again_alone(on_failure: OnFailure, failures: dict[int, int], left: Any) -> None:
    player = Player(failures)
    found = play_groups(player.play, 4, 8, group=2, on_failure=on_failure)
    assert [episode.index for episode in found] == list(left)
    assert player.asked[0] == (4, 8)
    assert all(count == 2 and first % 2 == 0 for first, count in player.asked[1:])


@pytest.mark.parametrize(("on_failure", "asked"), [("stop", 1), ("retry", 4)])
def test_a_run_ends_where_failures_do_not(on_failure: OnFailure, asked: int) -> None:
    player = Player({5: 9})
    with pytest.raises(PolicyError, match="episode 5"):
        play_groups(player.play, 4, 8, group=2, on_failure=on_failure)
    assert len(player.asked) == asked
    with pytest.raises(PolicyError, match="episode 2"):  # nothing is left to learn from
        play_groups(Player({0: 9, 2: 9}).play, 0, 4, group=2, on_failure="drop_group")


@pytest.mark.parametrize("staleness", [0, 1])
def test_training_on_continuous_batching(tmp_path: Path, staleness: int) -> None:
    found = train(run_config(16, max_staleness=staleness, **CONTINUOUS), run_dir=tmp_path / "run")
    assert found.status == "finished"
    rows = [row for row in found.history if "train/reward" in row]
    assert rows[0]["train/staleness_max"] == 0.0
    assert all(row["train/staleness_max"] <= staleness for row in rows)
    assert rows[0]["train/mismatch_max"] < 1e-3
    assert all("train/importance_capped" in row and "train/sync_s" in row for row in rows)


def test_training_on_a_server(server: Any, tmp_path: Path, caplog: Any) -> None:
    """Each update reaches the server before the next episode, and what it samples otherwise is measured."""
    seen: list[tuple[str, str]] = []
    asked = server.answer

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        seen.append((path, Path(server.weights).name))
        found: tuple[int, Any] = asked(path, body)
        return found

    server.answer = answer
    settings: dict[str, Any] = {"policy.rollout": server.url, "env.max_completion_tokens": 4, "evaluation.episodes": 0}
    found = train(run_config(**settings), run_dir=tmp_path / "run")
    weights = [name for path, name in seen if path == "/v1/completions"]
    assert {"version-0", "version-1"} <= set(weights)
    assert weights == sorted(weights, key=lambda name: (name != "old", name))  # never back
    assert server.weights.endswith("version-2")
    assert not Path(server.weights).exists()  # a temporary folder, and the run is over
    rows = [row for row in found.history if "train/reward" in row]
    assert all(row["train/mismatch_mean"] > 0.1 for row in rows)
    assert caplog.text.count("it samples with other weights") == 1


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_deaths_of_a_server_lose_and_double_no_episode(server: Any, count: int) -> None:
    """It comes back with its first weights: what it samples with those must never be taken for a version's."""
    server.tokens = True

    def sampled(choice: dict[str, Any]) -> dict[str, Any]:
        name = Path(server.weights).name
        logprob = -(int(name.rpartition("-")[2]) + 1) / 8 if "-" in name else -9.0
        for one in choice["logprobs"]["content"]:
            one["logprob"] = logprob
        return choice

    server.change = sampled
    options = {"backoff": 0.001, "retries": 400}
    settings: dict[str, Any] = {"policy.rollout": server.url, "policy.rollout_options": options, "max_staleness": 1}
    trainer = Trainer(run_config(10**6, **settings, **{"env.max_completion_tokens": 6, "evaluation.episodes": 0}))
    deaths, over = [0], threading.Event()

    def kill() -> None:
        while deaths[0] < count:
            asked = len(server.asked)
            while len(server.asked) < asked + 30 and not over.wait(0.001):
                pass  # it has work
            dropped, server.dead = server.dropped, True
            while server.dropped == dropped and not over.wait(0.001):
                pass  # it takes longer to start than a client takes to notice
            with server.lock:  # another process at the same address
                server.weights, server.label, server.dead = "old", "default", False
            deaths[0] += 1
        over.set()

    killer = threading.Thread(target=kill)
    killer.start()
    drawn: list[Any] = []
    try:
        while not over.is_set():
            batch = trainer.draw()
            drawn += batch.episodes
            trainer._learn(batch)
    finally:
        over.set()
        killer.join()
        trainer.close()
    assert deaths == [count]
    assert [episode.index for episode in drawn] == list(range(len(drawn)))
    for episode in drawn:
        versions, logprobs = episode.versions[episode.loss_mask], episode.logprobs[episode.loss_mask]
        assert logprobs.tolist() == (-(versions + 1) / 8).tolist(), (versions, logprobs)
    assert len({int(version) for episode in drawn for version in episode.versions[episode.loss_mask]}) > 1


def test_a_run_of_an_engine_is_resumed_with_its_weights(server: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy.rollout": server.url, "env.max_completion_tokens": 4, "evaluation.episodes": 0}
    train(run_config(8, **settings), run_dir=tmp_path / "run")
    before = len(server.asked)
    train(run_config(16, **settings), run_dir=tmp_path / "run", resume=True)
    given = [body["kwargs"]["weights_path"] for path, body in server.asked[before:] if path == "/collective_rpc"]
    assert [Path(path).name for path in given] == ["version-0", "version-1", "version-2"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_staleness": 1}, r"set policy\.rollout"),
        ({"max_staleness": 1, "dynamic_sampling": 2, **CONTINUOUS}, "dynamic_sampling decides"),
        ({"on_failure": "again"}, "on_failure"),
        ({"max_staleness": -1, **CONTINUOUS}, "max_staleness"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        run_config(**settings)


def test_half_precision_weights_are_refused(tmp_path: Path) -> None:
    """At 1e-6, 18 of 132,736 bfloat16 weights move: a run would learn nothing, and say nothing."""
    with pytest.raises(InvalidValueError, match=r"bfloat16, in which an optimizer's steps are rounded away"):
        train(run_config(**{"policy.dtype": "bfloat16"}), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_engines_of_several_processes_refuse_a_rollout_engine(monkeypatch: Any) -> None:
    from mathturn_gym.neighbors.engines.distributed import DistributedTraining

    monkeypatch.setattr(DistributedTraining, "connect", lambda self: None)
    with pytest.raises(InvalidValueError, match=r"policy\.rollout"):
        DistributedTraining().prepare(run_config(**CONTINUOUS))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_of_either_kind_asks_the_run_to_end(number: int) -> None:
    before = signal.getsignal(number)
    with interrupt_flag() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
    assert signal.getsignal(number) is before


def test_keys_and_values_are_freed_before_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    credit = Trainer.credit

    def spy(trainer: Trainer, episodes: Any) -> Any:
        held.append(trainer.policy.cached_bytes + trainer.policy._loop._arena.nbytes)
        return credit(trainer, episodes)

    monkeypatch.setattr(Trainer, "credit", spy)
    train(run_config(8), run_dir=tmp_path / "run")
    assert held == [0]
