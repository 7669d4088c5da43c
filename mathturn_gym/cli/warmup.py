"""`mathturn warmup`: makes the built-in tokenizer and warm-start checkpoint from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

__all__ = ["warmup"]


def warmup(
    output_dir: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    seed: Annotated[int, typer.Option(help="Decides initial weights and dialogues.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Gradient steps; by default those of the built-in one.")] = None,
) -> None:
    """Train the tokenizer and the warm-start policy from nothing, in well under a minute.

    The defaults make the checkpoint that travels with the package. The folder is a Hugging Face one: give it to
    `mathturn eval --policy` or `mathturn train --set model=FOLDER`.
    """
    from mathturn_gym.baselines.warmup import WarmupProgress
    from mathturn_gym.baselines.warmup import warmup as make

    with Progress() as progress:
        task = progress.add_task("supervised warm-up", total=None)

        def show(state: WarmupProgress) -> None:
            progress.update(
                task, total=state.steps, completed=state.step, description=f"supervised warm-up, loss {state.loss:.3f}"
            )

        path = make(output_dir, seed=seed, on_progress=show, **({} if steps is None else {"steps": steps}))
    Console().print(f"wrote {path}", markup=False, soft_wrap=True)
