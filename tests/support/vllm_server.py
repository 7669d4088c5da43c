"""A vLLM server on this machine for the length of a block, as the tests of `make test-vllm` share it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CPU: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Environment variables of a CPU build."""


@contextmanager
def vllm_server(model: Path, flags: str) -> Iterator[str]:
    """Yields the URL of a server of that model's folder, which ends with the block; its log lies beside the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = f"--dtype float32 --enforce-eager --logprobs-mode processed_logprobs --host 127.0.0.1 --port {port}"
    log = model.parent / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                model,
                *shared.split(),
                *flags.split(),
            ],
            env={**os.environ, **CPU},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 600
        while True:
            assert server.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"the server does not start: {log.read_text()[-3000:]}"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            except OSError:
                time.sleep(1)
            else:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
