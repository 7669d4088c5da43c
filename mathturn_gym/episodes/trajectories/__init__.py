"""Episodes in files that others can read: JSON-lines, Parquet, and safetensors for packed batches.

    write_episodes(path, episodes) ─► *.jsonl, *.jsonl.gz, *.parquet ─► read_episodes(path) ─► the same, to the bit

The schema is in `docs/trajectories.md`. Nothing here is pickled, and a file's content is never executed.
"""

from mathturn_gym.episodes.trajectories.batches import load_batch, save_batch
from mathturn_gym.episodes.trajectories.files import EpisodeWriter, read_episodes, write_episodes
from mathturn_gym.episodes.trajectories.records import episode_from_record, episode_to_record

__all__ = [
    "EpisodeWriter",
    "episode_from_record",
    "episode_to_record",
    "load_batch",
    "read_episodes",
    "save_batch",
    "write_episodes",
]
