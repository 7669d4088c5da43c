"""Run where `[data]` alone is installed: problems come from Parquet and `datasets`, episodes go there and back."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
from datasets import Dataset

from mathturn_gym.episodes.trajectories import read_episodes, write_episodes
from mathturn_gym.neighbors.export import to_datasets
from mathturn_gym.problems import load_problems
from mathturn_gym.testing import synthetic_episode

ROWS = {"question": ["What is 1+1?", "What is 2+2?"], "answer": ["2", "4"]}

table = Dataset.from_dict(ROWS)
pyarrow.parquet.write_table(table.data.table, "problems.parquet")
for given in (table, "problems.parquet"):
    assert {load_problems(given).get(0, i).gold for i in range(2)} == {("2",), ("4",)}, given

episodes = [synthetic_episode(0, i, [3, 4], vocab_size=400) for i in range(2)]
assert to_datasets(episodes).num_rows == 2
write_episodes("episodes.parquet", episodes)
assert len(list(read_episodes("episodes.parquet"))) == 2
assert Path("episodes.parquet").stat().st_size
