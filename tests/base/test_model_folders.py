"""How transformers is used: the hub is asked once, and only where it has to be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub.errors import RepositoryNotFoundError

from mathturn_gym.base import model_folders
from mathturn_gym.base.model_folders import is_hub_name, no_progress_bars, pretrained_kwargs


class Hub:
    """What is asked of the hub, and what it says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: BaseException | None = None
        self.downloaded: list[str] = []

    def model_info(self, name: str, timeout: float) -> None:
        assert timeout <= 30
        self.asked.append(name)
        if self.answer is not None:
            raise self.answer

    def cached(self, name: str, file: str) -> str | None:
        return "/cache/file" if name in self.downloaded and file == "config.json" else None


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", hub.cached)
    model_folders._hub_has.cache_clear()
    yield hub
    model_folders._hub_has.cache_clear()


def test_a_folder_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    assert pretrained_kwargs(tmp_path) == {"trust_remote_code": False, "local_files_only": True}
    assert hub.asked == []


def test_a_name_on_the_hub_is_asked_for_once(hub: Hub) -> None:
    for _ in range(3):  # the model, its tokenizer, the environment's tokenizer
        assert pretrained_kwargs("Qwen/Qwen2.5-0.5B") == {"trust_remote_code": False, "local_files_only": False}
    assert hub.asked == ["Qwen/Qwen2.5-0.5B"]


def test_a_name_that_the_hub_does_not_have_says_so(hub: Hub) -> None:
    response: Any = httpx2.Response(404, request=httpx2.Request("GET", "https://huggingface.co"))
    hub.answer = RepositoryNotFoundError("404", response=response)
    with pytest.raises(OSError, match="hub has no model 'Qwen/Qwen9'"):
        pretrained_kwargs("Qwen/Qwen9")


@pytest.mark.parametrize("error", [httpx2.ConnectError("no route"), TimeoutError(), RuntimeError("busy")])
def test_without_the_hub_an_earlier_download_is_used(hub: Hub, error: BaseException) -> None:
    hub.answer, hub.downloaded = error, ["gpt2"]
    assert pretrained_kwargs("gpt2")["local_files_only"] is True
    with pytest.raises(OSError, match=f"'gpt3' is no folder here.*cannot be asked for it .{type(error).__name__}"):
        pretrained_kwargs("gpt3")


def test_what_is_no_name_is_not_asked_for(hub: Hub) -> None:
    for name in ("a/b/c", "", "../secret", "a b", "-x", "a--b", "https://example.com", "x/../y"):
        assert not is_hub_name(name)
        with pytest.raises(OSError, match="of the form ORGANIZATION/NAME"):
            pretrained_kwargs(name or "nowhere/at/all")
    assert hub.asked == []
    assert all(is_hub_name(name) for name in ("gpt2", "Qwen/Qwen2.5-0.5B-Instruct", "a_b/c.d"))


@pytest.mark.usefixtures("nothing_is_asked")
def test_offline_nothing_is_asked() -> None:
    model_folders._hub_has.cache_clear()
    with pytest.raises(OSError, match="OfflineModeIsEnabled"):
        pretrained_kwargs("nobody/nothing")


@pytest.mark.parametrize("enabled", [True, False])
def test_progress_bars_come_back_as_they_were(enabled: bool) -> None:
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging
    before = bars.is_progress_bar_enabled()
    (bars.enable_progress_bar if enabled else bars.disable_progress_bar)()
    try:
        with no_progress_bars():
            assert not bars.is_progress_bar_enabled()
        assert bars.is_progress_bar_enabled() == enabled
    finally:
        (bars.enable_progress_bar if before else bars.disable_progress_bar)()
