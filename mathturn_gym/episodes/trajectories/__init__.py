"""Episodes in files that others can read: JSON-lines, Parquet, and safetensors for packed batches.

    write_episodes(path, episodes) ─► *.jsonl, *.jsonl.gz, *.parquet ─► read_episodes(path) ─► the same, to the bit

The schema is in `docs/trajectories.md`. Nothing here is pickled, and a file's content is never executed.
"""

from mathturn_gym.episodes.trajectories.batches import load_batch, save_batch
from mathturn_gym.episodes.trajectories.files import BadRow, EpisodeReader, EpisodeWriter, read_episodes, write_episodes
from mathturn_gym.episodes.trajectories.records import SCHEMA, SCHEMA_VERSION, episode_from_record, episode_to_record
from mathturn_gym.episodes.trajectories.tables import episodes_from_table, episodes_to_table

__all__ = [
    "SCHEMA",
    "SCHEMA_VERSION",
    "BadRow",
    "EpisodeReader",
    "EpisodeWriter",
    "episode_from_record",
    "episode_to_record",
    "episodes_from_table",
    "episodes_to_table",
    "load_batch",
    "read_episodes",
    "save_batch",
    "write_episodes",
]
