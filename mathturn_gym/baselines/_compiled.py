"""A model's layers, compiled for updates alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mathturn_gym.errors import InvalidValueError, MissingDependencyError

__all__ = ["CompiledLayers"]


class CompiledLayers:
    """The layers of a model, run by `torch.compile` where they are asked to be.

    What lies between matrix products (norms, rotations, gates) is fused; shapes are left open, since every minibatch has
    its own. Sampling is not compiled: its caches grow with every id.

    Args:
        model: A model that holds its layers in a list, as those of transformers do; wrapped by an adapter or not.

    Raises:
        InvalidValueError: the model has no such list.
        MissingDependencyError: no C++ compiler, which compiling for a CPU needs.
    """

    def __init__(self, model: torch.nn.Module) -> None:
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
        """Inside, the layers run compiled."""
        for layer, forward in zip(self._layers, self._forwards, strict=True):
            layer.forward = forward
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward
