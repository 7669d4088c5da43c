import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mathturn_gym.baselines import RunConfig, train
from mathturn_gym.baselines._optimizer import CompiledLayers
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.packing import pack
from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.policies import trained_logits
from mathturn_gym.policies.scoring import use_row_attention
from mathturn_gym.testing import synthetic_episode

Small = Callable[..., RunConfig]
QUIET = {"evaluation.every": 0, "evaluation.episodes": 0}

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # dynamo looks
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),  # in peft
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),  # in torch itself
]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Layers are traced and run as they were traced, without a C++ compiler: seconds instead of minutes."""
    calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        calls.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    return calls


SLOW = ({"gradient_checkpointing": True}, {"recompute_logprobs": True})


@pytest.mark.parametrize("settings", [{}, *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW)])
def test_compiled_layers_change_the_time_and_nothing_else(
    tmp_path: Path, small: Small, traced: list[int], settings: dict[str, bool]
) -> None:
    plain = train(small("grpo", {**QUIET, **settings}, episodes=16), run_dir=tmp_path / "plain")
    assert not traced
    fast = train(small("grpo", {**QUIET, **settings, "compile": True}, episodes=16), run_dir=tmp_path / "fast")
    assert traced, "nothing was compiled"
    for a, b in zip(plain.history[1:], fast.history[1:], strict=True):
        for name in ("train/loss", "train/grad_norm", "train/reward"):
            assert a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6), name


def test_only_updates_run_compiled(small: Small, traced: list[int]) -> None:
    trainer = Trainer(small("grpo", {**QUIET, "compile": True}))
    try:
        batch = trainer.credit(trainer.play())
        assert not traced, "sampling was compiled: its caches grow with every id"
        trainer._update_policy(batch, 1e-3)
        assert traced
        assert not any("forward" in vars(layer) for layer in trainer.model.model.layers), "layers are as they were"
        count = len(traced)
        trainer._update_policy(trainer.credit(trainer.play()), 1e-3)
        assert len(traced) <= 2 * count, "every batch is compiled anew"
    finally:
        trainer.close()


def test_every_layer_of_a_deep_model_runs_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.compile` gives up on a function after eight graphs, and runs it as it was without a word."""
    graphs, calls = [0], [0]

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs[0] += 1

        def run(*args: object) -> object:
            calls[0] += 1
            return graph.forward(*args)

        return run

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config)
    assert use_row_attention(model)
    layers = CompiledLayers(model)
    for count, lengths in enumerate(([3], [3, 5], [4, 1, 7], [9, 2]), 1):
        batch = pack([synthetic_episode(count, index, [length]) for index, length in enumerate(lengths)])
        with layers.used():
            trained_logits(model, batch).sum().backward()  # type: ignore[no-untyped-call]
        assert calls[0] == 12 * count, "a layer was run as it was"
    assert graphs[0] <= 2, "layers or lengths have graphs of their own"


@pytest.mark.slow  # the compiler itself; all tests above trace, without it
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU needs g++")
def test_a_compiled_layer_computes_the_same() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
    layers = CompiledLayers(torch.nn.Sequential(torch.nn.ModuleList([layer])))
    given = torch.randn(3, 4)
    expected = layer(given)
    with layers.used():
        torch.testing.assert_close(layer(given), expected)


def test_what_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError, match=r"optimization\.compile: Linear has no list of layers"):
        CompiledLayers(torch.nn.Linear(2, 2))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingDependencyError, match="install g\\+\\+"):
        CompiledLayers(torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(2, 2)])))
