"""A system without `fork`, limits of memory and file locks, as Windows is: everything but symbolic work goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
for module in ("resource", "fcntl", "termios", "tty", "pwd", "grp"):
    sys.modules[module] = None
for name in ("fork", "forkpty", "setsid", "killpg", "getuid", "geteuid", "sched_getaffinity"):
    delattr(os, name)
import warnings
warnings.simplefilter("ignore")
import mathturn_gym
from mathturn_gym import collect, load_policy
from mathturn_gym.verifier import Verifier
with Verifier(form="equivalent") as verifier:
    verifier.warm()
    assert verifier.verify("\\\\boxed{x+1}", "1+x").correct
    assert not verifier.verify("\\\\boxed{x+1}", "2+x").correct
    verdict = verifier.verify("\\\\boxed{\\\\sum_{k=1}^{3} k}", "6")
    print(verdict.status.value, verdict.reason)
    (batch,) = verifier.verify_batch(["\\\\boxed{\\\\sum_{k=1}^{3} k}"], ["6"])
    assert batch.status is verdict.status
import gymnasium
env = gymnasium.make_vec("MathMultiTurn-v0", num_envs=2, problems="lins")
print(len(collect(env, load_policy("random"), 2, seed=0)), "episodes")
from mathturn_gym.base.files import locked
with locked("file.lock"):
    pass
from mathturn_gym.cli.app import main
sys.argv = ["mathturn", "verify", "\\\\boxed{1/2}", "--gold", "0.5"]
try:
    main()
except SystemExit as ended:
    print("exit", ended.code)
"""


def test_what_has_no_fork_plays_and_says_what_it_cannot_decide(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["undecided no symbolic workers on this system", "2 episodes"]
    assert lines[-1] == "exit 0"
