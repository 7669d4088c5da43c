"""The optimizer of a run (clipped gradients, state as named tensors), and compiled layers for its updates."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from mathturn_gym.baselines.settings import Optimization
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, install_extra

_STEP: Final = "step"
_BETAS: Final = (0.9, 0.95)
_EPS: Final = 1e-5  # with torch's 1e-8 the format of answers drifts, see `Optimization.eps`


class Optimizer:
    """An optimizer over the trainable parameters of a module (of a LoRA model, the adapter's).

    Args:
        module: What is trained.
        learning_rate: At the schedule's factor 1.
        options: Name and settings of the optimizer, and the limit of the gradient's norm.
        sum_gradients: Called before each step to sum gradients over ranks.

    Attributes:
        learning_rate: At the schedule's factor 1.
        steps: Gradient steps done.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        learning_rate: float,
        options: Optimization,
        sum_gradients: Callable[[Iterable[torch.nn.Parameter]], None] = lambda _: None,
    ) -> None:
        self._named = {name: one for name, one in module.named_parameters() if one.requires_grad}
        self.learning_rate, self._max_norm = learning_rate, options.max_grad_norm
        self._optimizer = _make(list(self._named.values()), learning_rate, options)
        self._optimizer.zero_grad(set_to_none=True)
        self._sum_gradients = sum_gradients
        self.steps = 0

    def step(self, rate: float) -> float:
        """Clips the accumulated gradients, takes a step at the learning rate times `rate`, and clears them.

        Returns the gradient's norm before clipping. If it is not finite, no step is taken.
        """
        self._sum_gradients(self._named.values())
        most = math.inf if self._max_norm is None else self._max_norm
        norm = float(_whole(torch.nn.utils.clip_grad_norm_(self._named.values(), most)))
        # One batch with an infinite gradient must not end a run of hours: it is left out, and the caller logs it.
        if math.isfinite(norm):
            self._set_rate(self.learning_rate * rate)
            self._optimizer.step()
            self.steps += 1
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def tensors(self, name: str, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Returns the optimizer's state per parameter (AdamW: two moments), as "NAME.KIND.PARAMETER".

        Args:
            name: Of the optimizer.
            keep: False takes part in gathering what is sharded, one tensor after the other, and returns nothing.
        """
        found: dict[str, torch.Tensor] = {}
        for parameter_name, parameter in self._named.items():
            for kind, kept in self._optimizer.state.get(parameter, {}).items():
                # The step count is a number of the run's state: `load` gets it from there.
                if kind == _STEP or not isinstance(kept, torch.Tensor):
                    continue
                whole = _plain(kept)  # of all ranks: each has to call it
                if keep:
                    found |= {f"{name}.{kind}{part}.{parameter_name}": one.cpu() for part, one in whole.items()}
        return found

    def load(self, tensors: Mapping[str, torch.Tensor], name: str, steps: int) -> None:
        """Restores the result of `tensors`; `ValueError` where one is missing, or not of its parameter's shape."""
        if steps:
            self._take_an_empty_step()
        for parameter_name, parameter in self._named.items():
            state = self._optimizer.state.get(parameter, {})
            for kind, now in state.items():
                if kind == _STEP:
                    # Not saved with the tensors: the step count is in the run's own state.
                    state[kind] = torch.full_like(now, float(steps)) if isinstance(now, torch.Tensor) else steps
                elif isinstance(now, torch.Tensor):
                    for part, there in _plain(now).items():
                        found = tensors.get(f"{name}.{kind}{part}.{parameter_name}")
                        if found is None or found.shape != there.shape:
                            raise ValueError(
                                f"no {kind}{part} of {name} parameter {parameter_name} with shape {tuple(there.shape)}"
                            )
                        if part:
                            there.copy_(found)
                        else:
                            state[kind] = _like(found, now)
        self.steps = steps

    def _take_an_empty_step(self) -> None:
        """Creates the optimizer's state by a step of size 0 along zero gradients, which works for every optimizer."""
        self._set_rate(0.0)
        for parameter in self._named.values():
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):  # of an optimizer whose step is compiled
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _whole(tensor: Any) -> torch.Tensor:
    """Gathers a tensor that is sharded over ranks; returns any other unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


def _plain(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Splits an 8-bit tensor into its parts (".codes", ".scale", ...); any other is one part named ""."""
    # a subclass cannot be saved by safetensors; its parts can.
    if hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "full_tensor"):
        names, _ = tensor.__tensor_flatten__()
        return {f".{name}": getattr(tensor, name).detach() for name in names}
    return {"": _whole(tensor.detach())}


def _like(saved: torch.Tensor, now: Any) -> torch.Tensor:
    """Moves a whole tensor to the device and sharding of `now`."""
    if not hasattr(now, "full_tensor"):
        return saved.to(now)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(saved.to(now.device, now.dtype), now.device_mesh, now.placements)


def _make(parameters: list[torch.nn.Parameter], rate: float, options: Optimization) -> torch.optim.Optimizer:
    decay: dict[str, Any] = {"lr": rate, "weight_decay": options.weight_decay}
    if options.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=options.momentum or 0.0, **decay)
    if options.optimizer == "adafactor":
        return torch.optim.Adafactor(parameters, **decay)
    adam = {
        "betas": _BETAS if options.betas is None else options.betas,
        "eps": _EPS if options.eps is None else options.eps,
        **decay,
    }
    if options.optimizer == "adamw8bit":
        return _adamw8bit()(parameters, **adam)  # type: ignore[no-any-return]
    # Fused: of a small model, a loop over parameters would take a quarter of the backward pass.
    return torch.optim.AdamW(parameters, fused=True, **adam)


def _adamw8bit() -> Any:
    """Imports torchao's AdamW8bit (moments in blocks with one scale each: Dettmers et al. 2022, arXiv:2110.02861)."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise MissingDependencyError(f"optimizer 'adamw8bit' needs torchao: {install_extra('lowmem')}") from error
    return AdamW8bit


class CompiledLayers:
    """The layers of a model under `torch.compile`, used in updates only.

    Compiling fuses what is between matrix products (norms, rotations, gates). Shapes are dynamic, because every minibatch
    has its own. Sampling is not compiled, because its caches grow with every id.

    Args:
        model: A model that holds its layers in a list, as those of transformers do; wrapped by an adapter or not.

    Raises:
        InvalidValueError: the model has no such list.
        MissingDependencyError: no C++ compiler, which compiling for a CPU needs.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        # The longest list of modules: the layers, in every model of transformers, under any adapter.
        lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
        self._layers: list[Any] = list(max(lists, key=len, default=()))
        if not self._layers:
            raise InvalidValueError(f"optimization.compile: {type(model).__name__} has no list of layers to compile")
        device = next(model.parameters()).device.type
        if device == "cpu" and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++", "cl"))):
            raise MissingDependencyError(
                "optimization.compile on a CPU needs a C++ compiler, and none is found: install g++ (Debian: apt-get install"
                " g++) or leave the option out"
            )
        self._forwards = [torch.compile(layer.forward, dynamic=True) for layer in self._layers]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Context in which the layers run compiled."""
        for layer, forward in zip(self._layers, self._forwards, strict=True):
            layer.forward = forward
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward
