"""Decoding: a language model continues contexts of token ids, in this process or on a server.

    PolicyConfig ─► load_policy ─► CausalLMPolicy   a transformers model in this process (`mathturn_gym.wrappers`)
                                   VLLMPolicy       vLLM in this process
                                   OpenAIPolicy     servers that take and return token ids

`CausalLMPolicy` runs on the engine here: a loop that refills its batch as requests end (`_loop`), keys and values that
outlive a turn (`_kv_cache`), sampling (`sampling`), and log-probs of ids that are there already (`_scoring`,
`packed_forward`). Nothing is loaded before it is asked for: `import mathturn_gym.decoding` loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mathturn_gym._lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.decoding._loop import DecodingStats
    from mathturn_gym.decoding.config import BUILTIN_PATH, POLICY_NAMES, PolicyConfig
    from mathturn_gym.decoding.grammar import AnswerGrammar, answer_grammar, answer_ids, mask_logits
    from mathturn_gym.decoding.loading import load_policy
    from mathturn_gym.decoding.named_models import NAMED_MODELS, NamedModel, convert_gguf, get_model, models_folder
    from mathturn_gym.decoding.packed_forward import trained_logits, use_row_attention
    from mathturn_gym.decoding.sampling import Sampling
    from mathturn_gym.decoding.servers import AsyncCausalLMPolicy, OpenAIPolicy, VLLMPolicy

__all__ = [
    "BUILTIN_PATH",
    "NAMED_MODELS",
    "POLICY_NAMES",
    "AnswerGrammar",
    "AsyncCausalLMPolicy",
    "DecodingStats",
    "NamedModel",
    "OpenAIPolicy",
    "PolicyConfig",
    "Sampling",
    "VLLMPolicy",
    "answer_grammar",
    "answer_ids",
    "convert_gguf",
    "get_model",
    "load_policy",
    "mask_logits",
    "models_folder",
    "trained_logits",
    "use_row_attention",
]

_HOME: Final = {
    "BUILTIN_PATH": "config",
    "NAMED_MODELS": "named_models",
    "POLICY_NAMES": "config",
    "AnswerGrammar": "grammar",
    "AsyncCausalLMPolicy": "servers",
    "DecodingStats": "_loop",
    "NamedModel": "named_models",
    "OpenAIPolicy": "servers",
    "PolicyConfig": "config",
    "Sampling": "sampling",
    "VLLMPolicy": "servers",
    "answer_grammar": "grammar",
    "answer_ids": "grammar",
    "convert_gguf": "named_models",
    "get_model": "named_models",
    "load_policy": "loading",
    "mask_logits": "grammar",
    "models_folder": "named_models",
    "trained_logits": "packed_forward",
    "use_row_attention": "packed_forward",
}


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOME)
