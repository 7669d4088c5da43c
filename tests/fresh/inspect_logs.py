"""Run where `[inspect]` alone is installed: episodes become a log, the log episodes, and the viewer shows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mathturn_gym.neighbors.export import from_inspect, to_inspect
from mathturn_gym.testing import synthetic_episode

episodes = [synthetic_episode(0, i, [3, 4], vocab_size=400) for i in range(2)]
to_inspect(episodes, "run.eval")
assert len(from_inspect("run.eval")) == 2
subprocess.run(["mathturn", "view", "run.eval", "--out", "view.html"], check=True)
assert Path("view.html").stat().st_size
