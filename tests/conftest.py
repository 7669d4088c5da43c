"""What all tests share: one torch thread, hypothesis settings, and the folder of real data where there is one."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mathturn_gym._named_models import models_folder

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("ci")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="module", autouse=True)
def no_event_loop_is_left_running() -> Iterator[None]:
    """A module that leaves a loop running fails itself, not whichever module comes next and calls `asyncio.run`."""
    yield
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real tokenizers, data sets and recordings; a clone elsewhere has none."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder: real tokenizers and data are not part of the repository")
    return SHARED


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """`benchmark(name)` is the module of a script of `benchmarks/`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, where it has been fetched."""
    folder = models_folder() / "smollm2"
    if not (folder / "config.json").is_file():
        pytest.skip("SmolLM2 is not here: `make smollm` fetches it, `make test-llm` runs the tests that need it")
    return folder


def find_chromium() -> str | None:
    """The browser: the one that MATHTURN_CHROMIUM names, or chromium on the path."""
    return os.environ.get("MATHTURN_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright; both are needed.

    Playwright's synchronous interface leaves an event loop marked as running in this thread for as long as it is open,
    and `asyncio.run` refuses to start beside one. So it is closed with the module that uses it.
    """
    api = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser: pip install playwright")
    executable = find_chromium()
    if executable is None:
        pytest.skip("no chromium on the path (Debian: apt-get install chromium; or set MATHTURN_CHROMIUM)")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
        " --disable-component-update --disable-sync"
    )
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=flags.split())
        yield chromium
        chromium.close()
