"""Run where `[serve]` alone is installed, or `[client]` with that environment beside it: the client plays at the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import gymnasium as gym
import numpy as np

import mathturn_gym  # noqa: F401  registers the environments


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        assert process.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
            return
        except URLError:
            time.sleep(0.2)


def main() -> None:
    mathturn = str(Path(os.environ.get("BESIDE", Path(sys.executable).parent)) / "mathturn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    os.environ["MATHTURN_API_KEY"] = "a key for this test"  # read by the server and by the client, as the page says
    process = subprocess.Popen([mathturn, "serve", "--problems", "lins", "--num-turns", "4", "--port", port])
    try:
        wait_for(url, process)
        env = gym.make("MathMultiTurn-v0", server=url)
        obs, _ = env.reset(seed=0)
        answer = np.array([70])
        again, reward, *_ = env.step(answer)
        assert len(again) > len(obs) + 1, "feedback follows the answer"
        assert reward == -1.0
        env.close()
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
