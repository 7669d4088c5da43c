"""Optimizers: each kind steps, each option does what it says, and state travels."""

from __future__ import annotations

import copy
import math
import sys
from typing import Any

import pytest
import torch

from mathturn_gym.baselines import Optimization
from mathturn_gym.baselines._optimizer import Optimizer
from mathturn_gym.errors import MissingDependencyError

KINDS: list[dict[str, Any]] = [
    {"optimizer": "adamw"},
    {"optimizer": "adafactor"},
    {"optimizer": "sgd"},
    {"optimizer": "sgd", "momentum": 0.9},
]


def model(seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    found = torch.nn.Linear(4, 3)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return found


def learn(module: torch.nn.Module, optimizer: Optimizer, steps: int, rate: float = 1.0) -> float:
    norm = 0.0
    for _ in range(steps):
        inputs = torch.linspace(-1, 1, 8).reshape(2, 4) * (optimizer.steps + 1)
        module(inputs).square().sum().backward()
        norm = optimizer.step(rate)
    return norm


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_state_travels_to_the_bit(kind: dict[str, Any]) -> None:
    options = Optimization(learning_rate=1e-2, **kind)
    whole, first = model(), model()
    learn(whole, both := Optimizer(whole, 1e-2, options), 5)
    learn(first, before := Optimizer(first, 1e-2, options), 2)
    second = model(seed=1)
    after = Optimizer(second, 1e-2, options)
    after.load(before.tensors("policy"), "policy", before.steps)
    second.load_state_dict(first.state_dict())
    learn(second, after, 3)
    assert (after.steps, both.steps) == (5, 5)
    assert torch.equal(weights(second), weights(whole))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_step_goes_downhill_and_no_rate_goes_nowhere(kind: dict[str, Any]) -> None:
    module = model()
    optimizer = Optimizer(module, 1e-2, Optimization(learning_rate=1e-2, max_grad_norm=None, **kind))
    inputs = torch.ones(1, 4)
    before = float(module(inputs).square().sum().detach())
    module(inputs).square().sum().backward()
    optimizer.step(1.0)
    assert float(module(inputs).square().sum().detach()) < before
    still = weights(module).clone()
    module(inputs).square().sum().backward()
    optimizer.step(0.0)
    assert torch.equal(weights(module), still)


def test_options_are_those_of_the_optimizer() -> None:
    given = Optimization(learning_rate=0.1, betas=(0.8, 0.7), eps=1e-3, weight_decay=0.2)
    group = Optimizer(model(), 0.1, given)._optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"], group["lr"]) == ((0.8, 0.7), 1e-3, 0.2, 0.1)
    default = Optimizer(model(), 0.1, Optimization())._optimizer.param_groups[0]
    assert (default["betas"], default["eps"]) == ((0.9, 0.95), 1e-5)
    momentum = Optimizer(model(), 0.1, Optimization(optimizer="sgd", momentum=0.5))._optimizer.param_groups[0]
    assert momentum["momentum"] == 0.5


def test_gradients_are_clipped_to_the_norm_that_is_asked_for() -> None:
    moved = {}
    for most in (None, 0.5):
        module = model()
        optimizer = Optimizer(module, 1.0, Optimization(optimizer="sgd", max_grad_norm=most))
        before = weights(module).clone()
        norm = learn(module, optimizer, 1)
        moved[most] = float((weights(module) - before).norm()), norm
    assert moved[None][1] == moved[0.5][1] > 0.5, "the norm before clipping is reported"
    assert moved[0.5][0] == pytest.approx(0.5, rel=1e-3)
    assert moved[None][0] == pytest.approx(moved[None][1], rel=1e-3)


def test_weights_decay() -> None:
    for kind in ("adamw", "sgd"):
        ends = []
        for decay in (0.0, 0.5):
            module = model()
            learn(module, Optimizer(module, 1e-2, Optimization(optimizer=kind, weight_decay=decay)), 3)
            ends.append(float(weights(module).norm()))
        assert ends[1] < ends[0], kind


def test_a_gradient_that_is_no_number_takes_no_step() -> None:
    module = model()
    optimizer = Optimizer(module, 1e-2, Optimization())
    before = weights(module).clone()
    (module(torch.ones(1, 4)).sum() * math.nan).backward()
    assert math.isnan(optimizer.step(1.0))
    assert optimizer.steps == 0
    assert torch.equal(weights(module), before)
    learn(module, optimizer, 1)
    assert not torch.equal(weights(module), before), "the gradient that was none is forgotten"


def test_only_what_can_be_trained_is() -> None:
    module = model()
    assert isinstance(module, torch.nn.Linear)
    module.weight.requires_grad_(False)
    frozen = module.weight.detach().clone()
    optimizer = Optimizer(module, 1e-2, Optimization())
    learn(module, optimizer, 2)
    assert torch.equal(module.weight, frozen)
    assert set(optimizer.tensors("policy")) == {"policy.exp_avg.bias", "policy.exp_avg_sq.bias"}


def test_without_torchao_its_optimizer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[lowmem\]'"):
        Optimizer(model(), 1e-2, Optimization(optimizer="adamw8bit"))


@pytest.mark.filterwarnings("default")
def test_a_state_of_8_bits_takes_a_quarter_of_the_memory_and_travels_to_the_bit() -> None:
    pytest.importorskip("torchao.optim", reason="torchao is not here: `make test-lowmem` installs it and runs this")

    def steps(module: torch.nn.Module, optimizer: Optimizer, count: int) -> None:
        for _ in range(count):
            generator = torch.Generator().manual_seed(optimizer.steps)
            module(torch.randn(4, 64, generator=generator)).square().sum().backward()
            optimizer.step(1.0)

    options = Optimization(learning_rate=1e-2, optimizer="adamw8bit")
    start = torch.nn.Linear(64, 64, bias=False)  # 4,096 numbers: what is smaller stays in 32 bits
    whole, first, second = (copy.deepcopy(start) for _ in range(3))
    steps(whole, both := Optimizer(whole, 1e-2, options), 5)
    steps(first, before := Optimizer(first, 1e-2, options), 2)
    kept = before.tensors("policy")
    assert kept["policy.exp_avg.codes.weight"].dtype == torch.uint8
    assert sum(t.numel() * t.itemsize for t in kept.values()) < 0.35 * 2 * 4 * 4096
    after = Optimizer(second, 1e-2, options)
    after.load(kept, "policy", before.steps)
    second.load_state_dict(first.state_dict())
    steps(second, after, 3)
    assert (after.steps, both.steps) == (5, 5)
    assert torch.equal(second.weight, whole.weight)
    float32 = copy.deepcopy(start)
    steps(float32, Optimizer(float32, 1e-2, Optimization(learning_rate=1e-2)), 5)
    moved = (float32.weight - start.weight).detach().norm()
    assert float((whole.weight - float32.weight).detach().norm()) < 0.2 * float(moved), "it goes where AdamW goes"


def test_state_of_another_model_is_refused() -> None:
    module, other = model(), torch.nn.Linear(4, 2)
    optimizer = Optimizer(module, 1e-2, Optimization())
    learn(module, optimizer, 1)
    with pytest.raises(ValueError, match=r"no exp_avg.* of policy parameter weight with shape \(2, 4\)"):
        Optimizer(other, 1e-2, Optimization()).load(optimizer.tensors("policy"), "policy", 1)
    with pytest.raises(ValueError, match="no exp_avg"):
        Optimizer(model(), 1e-2, Optimization()).load({}, "policy", 1)


def test_who_writes_no_checkpoint_keeps_no_copy_of_the_state() -> None:
    module = model()
    optimizer = Optimizer(module, 0.01, Optimization())
    learn(module, optimizer, 1)
    assert optimizer.tensors("policy", keep=False) == {}
    assert optimizer.tensors("policy")
