"""Policies that answer many requests at once: clients of servers, vLLM in this process, and the asyncio form.

OpenAIPolicy          servers with `/v1/completions` that take and return token ids
VLLMPolicy            vLLM in this process
AsyncCausalLMPolicy   a `CausalLMPolicy` whose batch many asyncio tasks share
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mathturn_gym.decoding.servers.asyncio_policy import AsyncCausalLMPolicy
    from mathturn_gym.decoding.servers.openai_policy import OpenAIPolicy
    from mathturn_gym.decoding.servers.vllm_policy import VLLMPolicy

__all__ = ["AsyncCausalLMPolicy", "OpenAIPolicy", "VLLMPolicy"]

_HOME: Final = {
    "AsyncCausalLMPolicy": "asyncio_policy",
    "OpenAIPolicy": "openai_policy",
    "VLLMPolicy": "vllm_policy",
}


def __getattr__(name: str) -> Any:
    """Loads a policy's module when the policy is first asked for."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
