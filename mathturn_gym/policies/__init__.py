"""Policies: a language model continues contexts of token ids, in this process or on a server.

    PolicyConfig ─► load_policy ─► CausalLMPolicy   a transformers model in this process (`mathturn_gym.wrappers`)
                                   VLLMPolicy       vLLM in this process
                                   OpenAIPolicy     servers that take and return token ids
                                   ChatPolicy       chat APIs: texts, for evaluations

`CausalLMPolicy` runs on the engine of this room: a loop that refills its batch as requests end (`loop`), keys and values
that outlive a turn (`_kv_cache`), sampling (`sampling`), and log-probs of ids that are there already (`scoring`).
`mathturn_gym.wrappers.load_policy` finds the policy behind a name. Importing the room loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.policies.chat import ChatPolicy
    from mathturn_gym.policies.config import BUILTIN_PATH, PolicyConfig
    from mathturn_gym.policies.openai import OpenAIPolicy
    from mathturn_gym.policies.sampling import Sampling, answer_grammar, answer_ids
    from mathturn_gym.policies.scoring import trained_logits
    from mathturn_gym.policies.vllm import VLLMPolicy

__all__ = ["BUILTIN_PATH", "ChatPolicy", "OpenAIPolicy", "PolicyConfig", "Sampling", "VLLMPolicy"]
__all__ += ["answer_grammar", "answer_ids", "trained_logits"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "chat": "ChatPolicy",
            "config": "BUILTIN_PATH PolicyConfig",
            "openai": "OpenAIPolicy",
            "sampling": "Sampling answer_grammar answer_ids",
            "scoring": "trained_logits",
            "vllm": "VLLMPolicy",
        },
    )
