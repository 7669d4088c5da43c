"""docs/view.md: its examples run, and it names what there is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.episodes.trajectories import write_episodes
from mathturn_gym.types import Episode

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "view.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")  # inspect_ai's
def test_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[Episode], after: list[Episode]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/demo").mkdir(parents=True)
    write_episodes("runs/demo/episodes.jsonl", before)
    policy = SimpleNamespace(tokenizer=load_tokenizer("builtin"))
    known = {"before": before, "after": after, "episodes": before, "policy": policy}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for code in blocks:
        if "inspect" not in code or importlib.util.find_spec("inspect_ai") is not None:
            exec(compile(code, "docs/view.md", "exec"), dict(known))
    assert Path("run.html").is_file()
    assert Path("mine.html").is_file()


def test_the_keys_are_those_of_the_page() -> None:
    script = (ROOT / "mathturn_gym" / "assets" / "view" / "app.js").read_text(encoding="utf-8")
    told = re.search(r"const KEYS = \[(.*?)\];", script, re.DOTALL)
    assert told is not None
    keys = [key for names in re.findall(r'\["([^"]+)",', told[1]) for key in names.split("  ")]
    assert len(keys) > 15
    assert [key for key in keys if f"`{key}`" not in PAGE and key not in ("C", "Esc")] == []


def test_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"\]\((images/[\w.-]+)\)", PAGE)
    assert len(pictures) >= 4
    for name in pictures:
        assert (ROOT / "docs" / name).stat().st_size < 120_000
