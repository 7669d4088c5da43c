"""Wrappers around environments and models, imported as `mathturn_gym.wrappers`.

Of environments: `ReturnsWrapper` and `VectorReturnsWrapper` (whole episodes with their returns).
Of models: `CausalLMPolicy` (a transformers model as a policy; loads torch when it is asked for), `AsyncCausalLMPolicy`
(the same for asyncio), `OpenAIPolicy` (servers that return token ids), `VLLMPolicy` (vLLM in process).
For classic algorithms: `TokenLevelEnv` and `WholeAnswerEnv` (fixed shapes), `make_token_env`; `WindowTransformer` (features
for stable-baselines3, which it loads) and `Sb3Policy` (what they trained, as a policy).
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
    from mathturn_gym.wrappers.sb3 import TokenLevelEnv, WholeAnswerEnv, make_token_env
    from mathturn_gym.wrappers.sb3_features import WindowTransformer
    from mathturn_gym.wrappers.sb3_policy import Sb3Policy
    from mathturn_gym.wrappers.vllm_policy import VLLMPolicy

__all__ = [
    "AsyncCausalLMPolicy",
    "CausalLMPolicy",
    "OpenAIPolicy",
    "ReturnsWrapper",
    "Sb3Policy",
    "TokenLevelEnv",
    "VLLMPolicy",
    "VectorReturnsWrapper",
    "WholeAnswerEnv",
    "WindowTransformer",
    "make_token_env",
]

_HOME: Final = {
    "AsyncCausalLMPolicy": "async_policy",
    "CausalLMPolicy": "policy",
    "OpenAIPolicy": "openai_policy",
    "ReturnsWrapper": "returns",
    "Sb3Policy": "sb3_policy",
    "TokenLevelEnv": "sb3",
    "VLLMPolicy": "vllm_policy",
    "VectorReturnsWrapper": "returns",
    "WholeAnswerEnv": "sb3",
    "WindowTransformer": "sb3_features",
    "make_token_env": "sb3",
}


def __getattr__(name: str) -> Any:
    """Loads a wrapper's module when the wrapper is first asked for."""
    if name in _HOME:
        return getattr(import_module(f"mathturn_gym.wrappers.{_HOME[name]}"), name)
    raise AttributeError(f"module 'mathturn_gym.wrappers' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
