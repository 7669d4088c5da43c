"""`mathturn warmup`: makes a tokenizer and a warm-start checkpoint from nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from mathturn_gym.base.terminal import terminal


def warmup(
    output_dir: Annotated[Path, typer.Argument(help="Folder to write; new or empty.")],
    recipe: Annotated[
        str, typer.Option(help="tiny: the built-in policy; world: seven families; calculator: sums with a calculator.")
    ] = "tiny",
    seed: Annotated[int, typer.Option(help="Decides initial weights and dialogues.")] = 0,
    steps: Annotated[int | None, typer.Option(help="Gradient steps; by default the recipe's.")] = None,
    episodes: Annotated[
        int, typer.Option(help="Validation episodes per kind of problem, played at the end; 0 plays none.")
    ] = 256,
) -> None:
    """Train a tokenizer and a warm-start policy from nothing, on one CPU core.

    The defaults make the checkpoint that travels with the package; `--recipe world` makes a policy of a million
    parameters that solves about half of the problems of several families, which reinforcement learning improves.
    `--recipe calculator` makes one for sums that it cannot do, with a calculator that it seldom calls.
    The folder is a Hugging Face one: give it to `mathturn eval --policy` or `mathturn train --set policy.model=FOLDER`.
    Ctrl-C leaves no folder behind.
    """
    from mathturn_gym.baselines.warmup import WarmupProgress, first_try_accuracy, recipe_named
    from mathturn_gym.baselines.warmup import warmup as make
    from mathturn_gym.wrappers.policy import CausalLMPolicy

    console, chosen = terminal(), recipe_named(recipe)
    with Progress(console=console) as progress:
        task = progress.add_task("supervised warm-up", total=None)

        def show(state: WarmupProgress) -> None:
            progress.update(
                task, total=state.steps, completed=state.step, description=f"supervised warm-up, loss {state.loss:.3f}"
            )

        path = make(output_dir, chosen, seed=seed, on_progress=show, **({} if steps is None else {"steps": steps}))
    console.print(f"wrote {path}", markup=False, soft_wrap=True)
    if episodes:
        table = Table("problems", "acc@1, 95 % interval", title="first answers to validation problems")
        policy = CausalLMPolicy.from_pretrained(path)
        for name, figure in first_try_accuracy(policy, chosen, episodes=episodes).items():
            table.add_row(name, str(figure))
        console.print(table)
