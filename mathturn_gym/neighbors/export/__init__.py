"""Episodes in the formats of other trainers and tools: TRL, verl, AReaL, tinker, Hugging Face datasets, Inspect.

None of the trainers is imported: what is made for them are plain lists, arrays and tensors. Inspect's logs are made of
its own types, so that they are what its version writes (`pip install '.[inspect]'`).
`docs/trajectories.md` has a table of which field goes where.
"""

from mathturn_gym.neighbors.export.inspect import from_inspect, to_inspect
from mathturn_gym.neighbors.export.trainers import (
    to_areal,
    to_datasets,
    to_tinker,
    to_trl,
    to_verl,
    trl_advantages,
    trl_episode_return,
)

__all__ = [
    "from_inspect",
    "to_areal",
    "to_datasets",
    "to_inspect",
    "to_tinker",
    "to_trl",
    "to_verl",
    "trl_advantages",
    "trl_episode_return",
]
