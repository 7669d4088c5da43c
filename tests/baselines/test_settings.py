"""Parts of a run: what is allowed in them, and what goes together."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest

from mathturn_gym.baselines import (
    GRPO,
    PPO,
    RLOO,
    Budget,
    EnvConfig,
    Evaluation,
    Optimization,
    PolicyConfig,
    RunConfig,
)
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.errors import InvalidValueError


def config(**changes: Any) -> RunConfig:
    parts: dict[str, Any] = {"env": EnvConfig(problems="lins"), "algorithm": PPO(), "budget": Budget(tokens=1000)}
    return RunConfig(**{**parts, **changes})


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        (Budget, "tokens", 0),
        (Budget, "episodes", 2.5),
        (Budget, "cpu_seconds", 0.0),
        (Evaluation, "every", -1),
        (Evaluation, "test_episodes", True),
        (Optimization, "batch_episodes", 0),
        (Optimization, "minibatches", 65),
        (Optimization, "accumulate", 0),
        (Optimization, "learning_rate", -1e-3),
        (Optimization, "final_learning_rate", float("nan")),
        (Optimization, "weight_decay", float("inf")),
        (Optimization, "warmup", -1),
        (Optimization, "schedule", "linar"),
        (Optimization, "optimizer", "adam"),
        (Optimization, "precision", "float16"),
        (Optimization, "betas", (0.9, 1.0)),
        (Optimization, "betas", (0.9,)),
        (Optimization, "betas", 0.9),
        (Optimization, "eps", 0.0),
        (Optimization, "max_grad_norm", 0.0),
        (Optimization, "gradient_checkpointing", 1),
        (Optimization, "micro_batch_tokens", 0),
        (Optimization, "importance_level", "episode"),
        (Optimization, "importance_mode", "cut"),
        (Optimization, "log_kl", 1),
    ],
)
def test_values_outside_their_range_are_refused_by_name(part: Any, field: str, value: Any) -> None:
    with pytest.raises(InvalidValueError, match=field):
        part(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 0.9}, "momentum is not read by optimizer 'adamw': it has betas, eps"),
        ({"optimizer": "sgd", "eps": 1e-8}, "eps is not read by optimizer 'sgd': it has momentum"),
        ({"optimizer": "adafactor", "betas": (0.9, 0.9)}, "betas is not read by optimizer 'adafactor': it has no opt"),
        ({"final_learning_rate": 1e-6}, "final_learning_rate is not read by schedule 'constant'"),
        ({"importance_level": "turn"}, "importance_level is not read without an importance_cap"),
        ({"importance_mode": "mask"}, "importance_mode is not read without an importance_cap"),
        ({"accumulate": 2, "micro_batch_tokens": 100}, "accumulate .2. and micro_batch_tokens .100. both say"),
    ],
)
def test_options_that_nothing_reads_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Optimization(**changes)


def test_a_budget_ends_a_run_at_its_first_limit() -> None:
    with pytest.raises(InvalidValueError, match="never end"):
        Budget()
    budget = Budget(tokens=100, episodes=130, cpu_seconds=2.0)
    used: dict[str, Any] = {"iteration": 1, "tokens": 99, "cpu_s": 1.9, "batch_episodes": 64}
    assert not budget.is_used_up(**used)
    limits: list[dict[str, Any]] = [{"tokens": 100}, {"iteration": 2}, {"cpu_s": 2.0}]
    for over in limits:
        assert budget.is_used_up(**{**used, **over})
    assert (Budget(episodes=191).iterations(64), Budget(episodes=1).iterations(64)) == (2, 1)
    assert Budget(tokens=1).iterations(64) is None


def test_a_budget_may_be_all_tokens_of_the_episodes() -> None:
    budget = Budget(total_tokens=1000)
    used: dict[str, Any] = {"iteration": 9, "tokens": 999, "cpu_s": 9.0, "batch_episodes": 64}
    assert [budget.is_used_up(**used, total_tokens=n) for n in (999, 1000)] == [False, True]
    assert budget.share_used(iteration=9, tokens=9, batch_episodes=64, total_tokens=250) == 0.25
    assert Budget(tokens=100, total_tokens=1000).share_used(iteration=0, tokens=50, batch_episodes=8) == 0.5
    with pytest.raises(InvalidValueError, match=r"budget\.total_tokens must be an integer >= 1, got 0"):
        Budget(total_tokens=0)


def test_the_learning_rate_rises_and_falls() -> None:
    options = Optimization(learning_rate=2.0, schedule="linear", warmup=4, batch_episodes=10)
    budget = Budget(episodes=1000)
    rates = [options.rate(i, budget.share_used(iteration=i, tokens=0, batch_episodes=10)) for i in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[4] == pytest.approx(1 - 4 / 99)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == 0.0
    constant = Optimization(learning_rate=1.0)
    assert {constant.rate(i, i / 99) for i in range(100)} == {1.0}
    assert Optimization(learning_rate=0.0, schedule="linear").rate(3, 0.5) == 1.0


def test_a_schedule_follows_the_limit_that_comes_first() -> None:
    budget = Budget(tokens=1000, episodes=1000)
    shares = [budget.share_used(iteration=9, tokens=tokens, batch_episodes=10) for tokens in (0, 250, 1300)]
    assert shares == pytest.approx([9 / 99, 0.25, 1.0])
    assert Budget(cpu_seconds=1.0).share_used(iteration=9, tokens=9, batch_episodes=10) == 0.0


def test_schedules_end_where_they_are_told_to() -> None:
    for schedule, half in (("linear", 0.55), ("cosine", 0.55)):
        options = Optimization(learning_rate=1.0, final_learning_rate=0.1, schedule=schedule)  # type: ignore[arg-type]
        assert [options.rate(9, share) for share in (0.0, 0.5, 1.0)] == pytest.approx([1.0, half, 0.1])
    early = Optimization(learning_rate=1.0, schedule="cosine").rate(9, 0.1)
    assert 0.97 < early < 1.0, "a cosine falls slowly at first"


def test_a_config_survives_json() -> None:
    whole = config(
        env=EnvConfig("MathMultiTurn-v0", problems="my.jsonl", reward_terms={"overlong": 1.0}, test="other.jsonl"),
        policy=PolicyConfig("somewhere", lora={"r": 4}),
        algorithm=GRPO(group_size=2, clip=0.1),
        optimization=Optimization(betas=(0.9, 0.99), schedule="cosine"),
        seed=4,
        task="mine",
    )
    assert RunConfig.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_what_a_file_gives_back_is_what_was_written() -> None:
    whole = config(
        env=EnvConfig(problems="lins", reward_terms={"overlong": 1.0}),
        policy=PolicyConfig("somewhere", lora={"target_modules": ("q_proj", "v_proj")}),
        algorithm=GRPO(group_size=2, kl_weight=(0.1, 0.0)),
        optimization=Optimization(betas=(0.9, 0.99)),
    )
    assert json.loads(json.dumps(whole.to_json())) == whole.to_json()


def test_mistakes_in_a_stored_config_are_named() -> None:
    data = config().to_json()
    for change, message in (
        ({"sed": 1}, "unknown config field 'sed': did you mean 'seed'"),
        ({"budget": {"token": 1}}, "unknown budget field 'token': did you mean 'tokens'"),
        ({"optimization": [1]}, "optimization must be a table"),
        ({"algorithm": {"clip": 0.1}}, "algorithm: a name must be given"),
        ({"algorithm": {"name": "gropo"}}, "unknown algorithm 'gropo': did you mean 'grpo'"),
        ({"algorithm": {"name": "grpo", "gae_lambda": 1.0}}, "grpo does not read 'gae_lambda'"),
        ({"env": {"num_turn": 1}}, "did you mean 'num_turns'"),
        ({"policy": {"dtyp": "float32"}}, "did you mean 'dtype'"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            RunConfig.from_json({**data, **change})
    with pytest.raises(InvalidValueError, match="config lacks env"):
        RunConfig.from_json({name: value for name, value in data.items() if name != "env"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "grpo"}, "algorithm must be a BaseAlgorithm, got 'grpo'"),
        ({"env": "lins"}, "env must be an EnvConfig"),
        ({"seed": -1}, "seed must be an integer in"),
        ({"threads": 0}, "threads must be an integer >= 1"),
        ({"save_every": 0}, "save_every must be"),
        ({"keep": 0}, "keep must be"),
        ({"task": ""}, "task must be a non-empty text"),
        ({"policy": PolicyConfig(seed=3)}, "policy.seed is not read in a run"),
        ({"algorithm": GRPO(group_size=3)}, r"batch_episodes \(64\) must be a multiple of grpo's group_size \(3\)"),
        (
            {"algorithm": RLOO(group_size=2), "optimization": Optimization(minibatches=2)},
            "rloo takes one gradient step per batch, as it is published",
        ),
        ({"evaluation": 3}, "evaluation must be an Evaluation, got 3"),
    ],
)
def test_parts_that_do_not_go_together_are_named(changes: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        config(**changes)


def test_patience_counts_evaluations_that_take_place() -> None:
    with pytest.raises(InvalidValueError, match="patience counts evaluations"):
        Evaluation(patience=2, every=0)


def test_a_config_cannot_be_changed_but_replaced() -> None:
    whole = load_task("lins").config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        whole.seed = 3  # type: ignore[misc]
    assert dataclasses.replace(whole, seed=3).seed == 3


def test_evaluations_fall_on_equal_parts_of_the_budget_whatever_an_iteration_uses() -> None:
    evaluation = Evaluation(every=0, times=10)
    for size in (0.01, 0.04, 0.09):
        shares = [min(1.0, size * k) for k in range(int(1 / size) + 2)]
        due = [evaluation.is_due(k, *pair) for k, pair in enumerate(itertools.pairwise(shares), 1)]
        assert sum(due) == 10
    assert not Evaluation(every=0).is_due(20, 0.1, 0.9)
    assert Evaluation(every=20).is_due(20, 0.5, 0.5)
