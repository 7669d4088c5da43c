"""A small GGUF file, as llama.cpp's converters write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mathturn_gym.env.dialogue import CHATML_TEMPLATE

__all__ = ["write_gguf"]


def write_gguf(path: Path, *, tokenizer: bool = True, template: str | None = CHATML_TEMPLATE) -> Path:
    """A Llama of one layer and 260 ids: three markers, the bytes, and one pair of them."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install '.[models]'")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    rng, width, inner = np.random.default_rng(0), 16, 32
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values()]  # type: ignore[no-untyped-call]
    tokens.append(tokens[3] + tokens[4])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 2)
    writer.add_vocab_size(len(tokens))
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3, 3] + [1] * 257)
        writer.add_token_merges([f"{tokens[3]} {tokens[4]}"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_pad_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    shapes = {
        "token_embd": (len(tokens), width),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.ffn_norm": (width,),
        "blk.0.attn_q": (width, width),
        "blk.0.attn_k": (width // 2, width),
        "blk.0.attn_v": (width // 2, width),
        "blk.0.attn_output": (width, width),
        "blk.0.ffn_gate": (inner, width),
        "blk.0.ffn_up": (inner, width),
        "blk.0.ffn_down": (width, inner),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
