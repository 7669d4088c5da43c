"""Wrappers around environments and around a model.

load_policy                            the policy behind a name or a `PolicyConfig`
CausalLMPolicy                         a transformers model as a policy (loads torch when it is asked for)
AsyncCausalLMPolicy                    the same, asked from asyncio
ReturnsWrapper, VectorReturnsWrapper   whole episodes with their returns
TokenLevelEnv, WholeAnswerEnv          one token id, or one answer, per step, in fixed shapes: for classic algorithms
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if __name__ == "wrappers":
    # Imported by its folder's name, every class would exist twice.
    raise ImportError("import mathturn_gym.wrappers, not wrappers")

if TYPE_CHECKING:
    from mathturn_gym.wrappers.async_policy import AsyncCausalLMPolicy
    from mathturn_gym.wrappers.loading import load_policy
    from mathturn_gym.wrappers.policy import CausalLMPolicy
    from mathturn_gym.wrappers.returns import ReturnsWrapper, VectorReturnsWrapper
    from mathturn_gym.wrappers.token_level import TokenLevelEnv
    from mathturn_gym.wrappers.whole_answer import WholeAnswerEnv

__all__ = ["AsyncCausalLMPolicy", "CausalLMPolicy", "load_policy"]
__all__ += ["ReturnsWrapper", "TokenLevelEnv", "VectorReturnsWrapper", "WholeAnswerEnv"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "async_policy": "AsyncCausalLMPolicy",
            "loading": "load_policy",
            "policy": "CausalLMPolicy",
            "returns": "ReturnsWrapper VectorReturnsWrapper",
            "token_level": "TokenLevelEnv",
            "whole_answer": "WholeAnswerEnv",
        },
    )
