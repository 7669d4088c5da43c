"""From environments to tensors: episodes are collected, measured, written, and packed.

collect ─► Episode ─► returns ─► pack ─► PackedBatch ─► losses
├─► metrics        accuracy by turn, with intervals
└─► trajectories   files that others can read
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.episodes.metrics import summarize
    from mathturn_gym.episodes.packing import PackedBatch, pack, unpack
    from mathturn_gym.episodes.rollout import acollect, collect
    from mathturn_gym.episodes.trajectories import read_episodes, write_episodes

__all__ = [
    "PackedBatch",
    "acollect",
    "collect",
    "pack",
    "read_episodes",
    "summarize",
    "unpack",
    "write_episodes",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "metrics": "summarize",
            "packing": "PackedBatch pack unpack",
            "rollout": "acollect collect",
            "trajectories": "read_episodes write_episodes",
        },
    )
