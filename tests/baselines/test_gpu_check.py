"""`make gpu-check` on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


def test_without_a_gpu_it_says_what_it_would_run(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = benchmark("gpu_check")
    found = check.main(["--out", str(tmp_path / "check.json")])
    assert found == json.loads((tmp_path / "check.json").read_text())
    assert set(found["would_run"]) == set(check.PATHS)
    assert found["would_run"]["vllm"]["policy.rollout_options"]["enable_sleep_mode"]


def test_every_path_runs_on_a_tiny_model(benchmark: Callable[[str], Any]) -> None:
    check = benchmark("gpu_check")
    found = check.main(["--tiny", "--iterations", "1", "--paths", "local", "continuous", "vllm"])
    local, continuous, vllm = found["rows"]
    assert local["sampled_tokens_per_s"] > 0
    assert continuous["mismatch_max"] < 1e-3
    assert vllm["skipped"] == "vllm is not installed" or vllm["mismatch_max"] < 1e-3
