from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mathturn_gym.baselines.progress import TrainingDisplay, draw_curve, sparkline
from mathturn_gym.baselines.tasks import load_task

CONFIG = load_task("lins").config(None, {"batch_episodes": 64, "num_turns": 2}, budget={"episodes": 640})
HISTORY = [
    {"iteration": i, "episodes": 64 * i, "train/acc@1": i / 10, "train/acc@2": i / 10, "train/entropy": 0.25}
    | ({"validation/acc@1": 0.123, "validation/acc@2": 0.9} if i % 5 == 0 else {})
    for i in range(11)
]


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    with TrainingDisplay(CONFIG, console) as display:
        for metrics in HISTORY:
            display(metrics)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_sees_bar_figures_and_curve() -> None:
    text = shown(terminal=True)
    assert "640/640" in text
    assert "▁▁▂▃▄▅▅▆▇██" in text
    for figure in ("0.123", "0.900", "0.250"):
        assert figure in text


def test_without_a_terminal_there_is_a_line_per_evaluation() -> None:
    assert shown(terminal=False).splitlines() == [
        f"{episodes:>7} episodes  validation  acc@1 0.123  acc@2 0.900" for episodes in (0, 320, 640)
    ]


def test_a_sparkline_is_as_wide_as_asked_and_stays_in_its_range() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([-1.0, 2.0], 10) == "▁█"
    assert sparkline([i / 99 for i in range(100)], 8) == "▁▂▃▄▅▆▇█"


def test_a_curve_is_a_picture_even_of_nothing(tmp_path: Path) -> None:
    for name, history in (("some", HISTORY), ("none", [])):
        assert draw_curve(history, tmp_path / f"{name}.png", title="_$\\frac{1$ on \x1b[31m 字")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "some.png").stat().st_size > (tmp_path / "none.png").stat().st_size


def test_a_curve_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    save = Figure.savefig

    def kept(figure: Figure, *args: Any, **keywords: Any) -> None:
        drawn.append(figure)
        save(figure, *args, **keywords)

    monkeypatch.setattr(Figure, "savefig", kept)
    draw_curve(HISTORY, tmp_path / "curve.png", title="grpo on lins, seed 0")
    (axes,) = drawn[0].axes
    assert axes.get_title("left") == "grpo on lins, seed 0"
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert labels == [f"acc@{k}, {part}" for part in ("validation", "training batches") for k in (1, 2)]
    assert len(axes.lines) == len(labels)
    draw_curve([row for row in HISTORY if "validation/acc@1" not in row], tmp_path / "curve.png")
    assert len(drawn[1].axes[0].lines) == 2, "without evaluations there are still the training batches"
