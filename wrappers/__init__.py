"""Wrappers around environments and models, imported as `mathturn_gym.wrappers`.

Of environments: `ReturnsWrapper` and `VectorReturnsWrapper` (whole episodes with their returns).
Of models: `CausalLMPolicy` (a transformers model as a policy; loads torch when it is asked for), `AsyncCausalLMPolicy`
(the same for asyncio), `OpenAIPolicy` (servers that return token ids), `VLLMPolicy` (vLLM in process).
For classic algorithms: `TokenLevelEnv` and `WholeAnswerEnv` (fixed shapes, one id or one answer per step).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if __name__ == "wrappers":
    # Imported by its folder's name, every class would exist twice.
    raise ImportError("import mathturn_gym.wrappers, not wrappers")

if TYPE_CHECKING:
    from mathturn_gym.wrappers.async_policy import AsyncCausalLMPolicy
    from mathturn_gym.wrappers.openai_policy import OpenAIPolicy
    from mathturn_gym.wrappers.policy import CausalLMPolicy
    from mathturn_gym.wrappers.returns import ReturnsWrapper, VectorReturnsWrapper
    from mathturn_gym.wrappers.token_level import TokenLevelEnv
    from mathturn_gym.wrappers.vllm_policy import VLLMPolicy
    from mathturn_gym.wrappers.whole_answer import WholeAnswerEnv

__all__ = [
    "AsyncCausalLMPolicy",
    "CausalLMPolicy",
    "OpenAIPolicy",
    "ReturnsWrapper",
    "TokenLevelEnv",
    "VLLMPolicy",
    "VectorReturnsWrapper",
    "WholeAnswerEnv",
]

_HOME: Final = {
    "AsyncCausalLMPolicy": "async_policy",
    "CausalLMPolicy": "policy",
    "OpenAIPolicy": "openai_policy",
    "ReturnsWrapper": "returns",
    "TokenLevelEnv": "token_level",
    "VLLMPolicy": "vllm_policy",
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
