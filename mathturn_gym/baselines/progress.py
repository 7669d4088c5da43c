"""Display of a run: a live progress bar with metrics and a sparkline, and `curve.png` at the end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mathturn_gym.base.plots import new_figure, plain_label, save_figure
from mathturn_gym.base.terminal import terminal
from mathturn_gym.baselines.settings import RunConfig
from mathturn_gym.errors import install_extra

_LOG = logging.getLogger(__name__)
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


class TrainingDisplay:
    """A live view of `train`: use it as a context, and give it as `on_progress`.

    Args:
        config: Of the run.
        console: Where to draw; None is standard output. Without a terminal it prints a line per evaluation instead.

    >>> from mathturn_gym.baselines.tasks import load_task
    >>> with TrainingDisplay(load_task("lins").config(), Console(quiet=True)) as display:
    ...     display({"iteration": 1, "episodes": 64, "train/acc@1": 0.5, "train/acc@4": 0.75})
    """

    def __init__(self, config: RunConfig, console: Console | None = None) -> None:
        self._config = config
        self._turns = range(1, int(config.env.value("num_turns")) + 1)
        self._console = console or terminal()
        self._train: list[float] = []
        self._validation: Mapping[str, float] = {}
        self._progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=self._goal({})[1])
        self._live = Live(self._progress, console=self._console, refresh_per_second=4)

    def __enter__(self) -> TrainingDisplay:
        """Starts drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops drawing and keeps the last state on the screen."""
        self._live.stop()

    def __call__(self, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of an iteration."""
        if "train/acc@1" in metrics:
            self._train.append(metrics["train/acc@1"])
        evaluated = {name: value for name, value in metrics.items() if name.startswith("validation/")}
        # Between evaluations the last one stays on the screen.
        self._validation = evaluated or self._validation
        completed, total = self._goal(metrics)
        self._progress.update(self._task, completed=completed, total=total)
        if self._console.is_terminal:
            self._live.update(Group(self._progress, self._table(metrics), Text(self._curve(), style="cyan")))
        # Without a terminal (a log file) only what is worth a line.
        elif evaluated:
            self._console.print(self._line(metrics))

    def _goal(self, metrics: Mapping[str, float]) -> tuple[int, int]:
        """Returns the progress in the unit of the limit that will be reached first."""
        budget, batch = self._config.budget, self._config.optimization.batch_episodes
        iterations = budget.iterations(batch)
        limits = (
            ("episodes", None if iterations is None else iterations * batch),
            ("tokens", budget.tokens),
            ("total_tokens", budget.total_tokens),
            ("cpu_s", budget.cpu_seconds),
        )
        goals = [(metrics.get(name, 0), limit) for name, limit in limits if limit is not None]
        # The bar follows the budget that will end the run.
        done, limit = max(goals, key=lambda goal: goal[0] / goal[1])
        return min(int(done), int(limit)), int(limit)

    def _table(self, metrics: Mapping[str, float]) -> Table:
        turns = self._turns
        table = Table(box=None, pad_edge=False)
        for name in ("", *(f"acc@{k}" for k in turns), "entropy", "KL", "tokens/turn", "tokens/s"):
            table.add_column(name, justify="right")
        others = ("train/entropy", "train/approximate_kl", "train/completion_tokens", "time/tokens_per_s")
        table.add_row(
            "train", *(_number(metrics, f"train/acc@{k}") for k in turns), *(_number(metrics, name) for name in others)
        )
        table.add_row("validation", *(_number(self._validation, f"validation/acc@{k}") for k in turns))
        return table

    def _curve(self) -> str:
        return f"train acc@1 {sparkline(self._train, 60)}" if self._train else ""

    def _line(self, metrics: Mapping[str, float]) -> str:
        figures = "  ".join(f"acc@{k} {_number(self._validation, f'validation/acc@{k}')}" for k in self._turns)
        return f"{int(metrics['episodes']):>7} episodes  validation  {figures}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Values in [0, 1] as a line of blocks, at most `width` wide, each block the mean of its share.

    >>> sparkline([0.0, 0.5, 1.0], 10)
    '▁▅█'
    """
    size = min(width, len(values))
    bounds = [round(i * len(values) / size) for i in range(size + 1)] if size else []
    shares = [values[low:high] for low, high in pairwise(bounds)]
    means = [min(1.0, max(0.0, sum(share) / len(share))) for share in shares]
    return "".join(_BLOCKS[min(len(_BLOCKS) - 1, int(mean * len(_BLOCKS)))] for mean in means)


def draw_curve(history: Sequence[Mapping[str, float]], path: str | Path, *, title: str = "") -> bool:
    """Draws accuracy over episodes (`read_metrics`), training batches thin and validation thick, as a PNG.

    Returns False where matplotlib is not installed (which is logged) and nothing was drawn.
    """
    try:
        from matplotlib.lines import Line2D
        from matplotlib.ticker import EngFormatter

        figure = new_figure(8.2, 4.4)
    except ImportError:
        _LOG.warning(f"matplotlib is not installed: no curve.png ({install_extra('train')})")
        return False
    axes = figure.add_subplot(xlabel="episodes", ylabel="solved within k turns (acc@k)", ylim=(0, 1.02))
    axes.set_title(plain_label(title), loc="left", fontsize=11)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    names = {name.partition("/")[2] for row in history for name in row if "/acc@" in name}
    figures = sorted(names, key=lambda name: int(name.removeprefix("acc@")))
    parts: dict[str, dict[str, Any]] = {"validation": {"linewidth": 2.2}, "train": {"linewidth": 0.8, "alpha": 0.5}}
    handles = []
    for part, look in parts.items():
        for k, name in enumerate(figures):
            points = [(row["episodes"], row[f"{part}/{name}"]) for row in history if f"{part}/{name}" in row]
            if points:
                axes.plot([x for x, _ in points], [y for _, y in points], color=f"C{k % 10}", **look)
                label = f"{name}, {'training batches' if part == 'train' else part}"
                handles.append(Line2D([], [], color=f"C{k % 10}", label=label, **look))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if handles:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    save_figure(figure, Path(path))
    return True


def _number(metrics: Mapping[str, float], name: str) -> str:
    value = metrics.get(name)
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3f}"
