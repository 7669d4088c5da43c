"""Wrappers around environments and around a model, imported as `mathturn_gym.wrappers`.

CausalLMPolicy                          a transformers model as a policy (loads torch when it is asked for)
ReturnsWrapper, VectorReturnsWrapper    whole episodes with their returns
TokenLevelEnv, WholeAnswerEnv           one token id, or one answer, per step, in fixed shapes: for classic algorithms
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if __name__ == "wrappers":
    # Imported by its folder's name, every class would exist twice.
    raise ImportError("import mathturn_gym.wrappers, not wrappers")

if TYPE_CHECKING:
    from mathturn_gym.wrappers.policy import CausalLMPolicy
    from mathturn_gym.wrappers.returns import ReturnsWrapper, VectorReturnsWrapper
    from mathturn_gym.wrappers.token_level import TokenLevelEnv
    from mathturn_gym.wrappers.whole_answer import WholeAnswerEnv

__all__ = [
    "CausalLMPolicy",
    "ReturnsWrapper",
    "TokenLevelEnv",
    "VectorReturnsWrapper",
    "WholeAnswerEnv",
]

_HOME: Final = {
    "CausalLMPolicy": "policy",
    "ReturnsWrapper": "returns",
    "TokenLevelEnv": "token_level",
    "VectorReturnsWrapper": "returns",
    "WholeAnswerEnv": "whole_answer",
}


def __getattr__(name: str) -> Any:
    """Loads a wrapper's module when the wrapper is first asked for."""
    if name in _HOME:
        return getattr(import_module(f"mathturn_gym.wrappers.{_HOME[name]}"), name)
    raise AttributeError(f"module 'mathturn_gym.wrappers' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
