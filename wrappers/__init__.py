"""Wrappers around environments and around a model, imported as `mathturn_gym.wrappers`.

CausalLMPolicy                          a transformers model as a policy (loads torch when it is asked for)
ReturnsWrapper, VectorReturnsWrapper    whole episodes with their returns
TokenLevelEnv, WholeAnswerEnv           one token id, or one answer, per step, in fixed shapes: for classic algorithms
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mathturn_gym._lazy import lazy_exports

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


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOME)
