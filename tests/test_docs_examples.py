"""The examples of the documents run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["environment", "chat_models", "problems", "metrics", "feedback", "classic", "baselines"]
)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [code for code in BLOCK.findall((DOCS / f"{name}.md").read_text(encoding="utf-8")) if "+SKIP" not in code]
    assert blocks
    for code in blocks:
        exec(compile(code, f"docs/{name}.md", "exec"), {})


def test_every_mode_term_and_figure_is_documented() -> None:
    from mathturn_gym.feedback import FEEDBACK
    from mathturn_gym.metrics import MEANING
    from mathturn_gym.problems import FAMILIES
    from mathturn_gym.rewards import TERMS

    documents = {
        name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("problems", "metrics", "feedback")
    }
    for name, words in (
        ("problems", FAMILIES),
        ("metrics", MEANING),
        ("feedback", [*(mode for mode in FEEDBACK if ":" not in mode), *TERMS]),
    ):
        assert [word for word in words if f"`{word}`" not in documents[name]] == []
