"""A real Jupyter kernel, whose cells run inside of its event loop: what they say is what a program says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel", reason="no Jupyter here: make test-kernel")
pytestmark = pytest.mark.filterwarnings("ignore")  # Jupyter and its libraries warn of things of their own

PARTS = r"""
import json
from typing import Any
import gymnasium as gym
import numpy as np
import mathturn_gym
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.wrappers import load_policy
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.verifier import Verifier

CASES = [(r"\boxed{0.5}", "1/2"), (r"\boxed{\sum_{k=1}^{3} k}", "6"), ("It is 7.", "7")]
verifier = Verifier(form="equivalent")
told = [verifier.verify(*case).status.value for case in CASES]
told += [verdict.status.value for verdict in verifier.verify_batch(*zip(*CASES))]


async def asked() -> list[str]:
    return [(await verifier.averify(*case)).status.value for case in CASES]


def played(**mode: Any) -> list[list[int]]:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, problems="lins", num_turns=2, max_completion_tokens=8, **mode)
    try:
        found = collect(env, load_policy("builtin", device="cpu"), 4, seed=3)
    finally:
        env.close()
    return [episode.ids.tolist() for episode in sorted(found, key=lambda one: one.index)]


def stepped() -> list[Any]:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=2, vectorization_mode="async", problems="lins", num_turns=2)
    try:
        observations, _ = env.reset(seed=0)
        _, rewards, terminations, truncations, _ = env.step((np.array([1]), np.array([2])))
        return [[list(map(int, one)) for one in observations], rewards.tolist(), terminations.tolist(), truncations.tolist()]
    finally:
        env.close()
"""
WHOLE = "print(json.dumps([told, {asked}, played(vectorization_mode='vector_entry_point'), stepped()]))\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a kernel in this interpreter."""
    from jupyter_client.manager import start_new_kernel

    spec = tmp_path / "kernels" / "here"
    spec.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    manager, client = start_new_kernel(kernel_name="here", startup_timeout=120)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def said_by(client: Any, cell: str) -> str:
    """What a cell prints."""
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        assert message["msg_type"] != "error", "\n".join(content["traceback"])
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            printed.append(content["text"])

    client.execute_interactive(cell, timeout=300, output_hook=hear)
    return "".join(printed)


def test_cells_of_a_kernel_say_what_a_program_says(kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert said_by(kernel, "import asyncio; print(asyncio.get_running_loop().is_running())") == "True\n"
    here: dict[str, Any] = {"asyncio": asyncio}
    exec(PARTS + WHOLE.format(asked="asyncio.run(asked())"), here)
    assert said_by(kernel, PARTS + WHOLE.format(asked="await asked()")) == capsys.readouterr().out
    assert here["told"] == ["right", "right", "no_answer"] * 2
