"""`examples/openenv/` is what `openenv push` takes, and the Hub can show its page."""

from __future__ import annotations

import runpy
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "openenv"


def test_the_folder_passes_openenvs_checks(serving: Callable[..., Any], tmp_path: Path) -> None:
    from openenv.cli._validation import validate_multi_mode_deployment
    from openenv.cli.commands.push import _validate_openenv_directory
    from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser

    folder = tmp_path / "openenv"
    shutil.copytree(EXAMPLE, folder)
    (folder / "uv.lock").touch()  # names a package index: it is made when the folder is pushed
    assert validate_multi_mode_deployment(folder) == (True, [])
    assert _validate_openenv_directory(folder)[0] == "mathturn"
    assert OpenEnvYamlParser().parse(folder).reward.range == (-1.0, 1.0)


def test_the_hub_may_frame_the_page(serving: Callable[..., Any]) -> None:
    from fastapi.testclient import TestClient

    with urllib.request.urlopen(f"{serving().url}/web", timeout=60) as plain:  # elsewhere no page may
        assert plain.headers["content-security-policy"].endswith("; frame-ancestors 'none'")
    app = runpy.run_path(str(EXAMPLE / "server" / "app.py"))["app"]
    client = TestClient(app, base_url="https://org-mathturn.hf.space")
    for path in ("/", "/web", "/play"):
        reply = client.get(path)
        assert (reply.status_code, reply.text[:15].lower()) == (200, "<!doctype html>")
        assert reply.headers["content-security-policy"].endswith("; frame-ancestors https://huggingface.co")
    with client.websocket_connect(
        "wss://org-mathturn.hf.space/ws", headers={"origin": "https://org-mathturn.hf.space"}
    ) as session:
        session.send_json({"type": "reset", "data": {"seed": 0}})
        assert "Solve" in session.receive_json()["data"]["observation"]["text"]
