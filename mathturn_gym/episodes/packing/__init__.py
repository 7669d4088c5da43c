"""Episodes to tensors and back: layouts, masks, micro-batches.

pack(episodes, layout=..., form=...) ─► PackedBatch ─► micro_batches ─► model_inputs ─► token_logprobs ─► policy_loss
                                            └─► unpack ─► the same episodes, to the bit
"""

from mathturn_gym.episodes.packing.batch import PackedBatch
from mathturn_gym.episodes.packing.layouts import pack, unpack
from mathturn_gym.episodes.packing.selection import (
    dense_mask,
    drop_stale,
    mask_mod,
    mask_stale,
    micro_batches,
    model_inputs,
)

__all__ = [
    "PackedBatch",
    "dense_mask",
    "drop_stale",
    "mask_mod",
    "mask_stale",
    "micro_batches",
    "model_inputs",
    "pack",
    "unpack",
]
