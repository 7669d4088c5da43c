"""Policies that answer many requests at once: clients of servers, vLLM in this process, and the asyncio form.

OpenAIPolicy          servers with `/v1/completions` that take and return token ids
VLLMPolicy            vLLM in this process
AsyncCausalLMPolicy   a `CausalLMPolicy` whose batch many asyncio tasks share
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mathturn_gym._lazy import lazy_exports

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


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOME)
