"""The page on which a person plays an episode."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.types import Problem

Serving = Callable[..., Any]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_foreign(serving: Serving) -> None:
    with urllib.request.urlopen(f"{serving().url}/play", timeout=60) as reply:
        page, policy = reply.read().decode(), reply.headers["content-security-policy"]
    assert "src=" not in page
    assert "http" not in page.replace("https:", "").replace("http://", "") or "://" not in page
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "innerHTML" not in page


class Tab:
    """A tab of a headless browser, by the DevTools protocol."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._numbers = connection, itertools.count(1)

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            reply = json.loads(self._connection.recv(timeout=120))
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        deadline = time.monotonic() + 120
        while not self.run(script):
            assert time.monotonic() < deadline, (
                f"{script} did not come true: {self.run('document.documentElement.innerText')}"
            )
            time.sleep(0.05)


@contextmanager
def browser(folder: Path, url: str) -> Iterator[Tab]:
    from websockets.sync.client import connect

    assert BROWSER is not None
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
    ]
    process = subprocess.Popen([BROWSER, *options, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file, deadline = folder / "DevToolsActivePort", time.monotonic() + 120
        while not port_file.is_file() or len(port_file.read_text().split()) < 2:
            assert time.monotonic() < deadline, "the browser did not start"
            time.sleep(0.1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=60) as reply:
            address = next(tab["webSocketDebuggerUrl"] for tab in json.load(reply) if tab["type"] == "page")
        with connect(address, max_size=None, proxy=None) as connection:
            yield Tab(connection)
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_an_episode_played_on_the_page(serving: Serving, tmp_path: Path) -> None:
    problems = [Problem("p/1", "What is 40+2? <b>really</b>", "42")]
    server = serving(env="MathMultiTurnUntilCorrect-v0", problems=problems, api_keys=["k e y"])
    with browser(tmp_path, f"{server.url}/play") as tab:
        tab.wait_for("document.readyState === 'complete' && !!document.getElementById('start')")
        tab.run("document.getElementById('start').requestSubmit()")
        tab.wait_for("document.getElementById('status').textContent.includes('needs an API key')")
        tab.run("document.getElementById('key').value = 'k e y'; document.getElementById('start').requestSubmit()")
        tab.wait_for("document.querySelectorAll('#dialogue li').length === 1")
        assert "What is 40+2? <b>really</b>" in tab.run("document.querySelector('#dialogue li').textContent")
        assert "MathMultiTurnUntilCorrect-v0" in tab.run("document.getElementById('about').textContent")
        for text, count in ((r"\\boxed{41}", 3), ("42", 4)):
            tab.run(
                f"document.getElementById('text').value = '{text}'; document.getElementById('answer').requestSubmit()"
            )
            tab.wait_for(f"document.querySelectorAll('#dialogue li').length === {count}")
        items = tab.run("[...document.querySelectorAll('#dialogue li')].map((item) => item.textContent)")
        assert "wrong (different) · answer 41 · reward -1" in items[1]
        assert items[2].startswith("feedback")
        assert "right (equal) · answer 42 · reward 1" in items[3]
        assert tab.run("document.getElementById('status').textContent") == "The episode is over (solved)."
        assert tab.run("document.getElementById('answer').hidden") is True
