"""`mathturn play`: you against the environment, or watch a policy."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from mathturn_gym.cli._env_options import EnvOptions, with_env_options
from mathturn_gym.cli._runs import check_counts, problems_of, start_of
from mathturn_gym.decoding import POLICY_NAMES

__all__ = ["play"]


@with_env_options
def play(
    env: EnvOptions,
    watch: Annotated[str | None, typer.Option(help=f"Watch a policy instead of playing: {POLICY_NAMES}.")] = None,
    task: Annotated[str | None, typer.Option(help="Environment and problems of a task, or of its file.")] = None,
    split: Annotated[
        str | None, typer.Option(help="train, validation, test or all; test by default, and all of a file.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Episodes to play.")] = 3,
    seed: Annotated[int, typer.Option(help="Decides the problems.")] = 0,
) -> None:
    r"""Play the environment yourself, or watch a policy play it.

    Type an answer as a model would, e.g. `\boxed{4}`; a bare `4` is put into a box for you. An empty line is an empty
    answer; Ctrl-D or Ctrl-C leaves. The folder of a training run brings back its environment.
    """
    import numpy as np

    from mathturn_gym.seeding import derive_seed
    from mathturn_gym.testing import ScriptedPolicy

    check_counts(episodes=episodes, seed=seed)
    console, start = Console(), start_of(watch, task, max_completion_tokens=256)
    config = env.config(start.env)
    source = problems_of(config, split, named="problems" in env.given)
    watched = start.load() if watch else None
    played: Any = config.make(policy=watched, problems=source, render_mode="human")
    dialogue = played.unwrapped.dialogue
    policy: Any = watched or ScriptedPolicy(lambda context: _ask(console), dialogue)
    solved = 0
    try:
        for episode in range(episodes):
            console.rule(f"episode {episode + 1} of {episodes}")
            context, info = played.reset(seed=seed, options={"index": episode})
            terminated = truncated = False
            while not (terminated or truncated):
                (completion,) = policy.complete(
                    [np.asarray(context)],
                    max_tokens=[info["completion_budget"]],
                    seeds=[derive_seed(seed, episode, info["turn"])],
                )
                context, _, terminated, truncated, info = played.step(completion.ids)
            solved += bool(info["verdict"] and info["verdict"].correct)
    except (EOFError, KeyboardInterrupt):
        console.print("\nbye")
    finally:
        played.close()
    console.print(f"last answer right in {solved} of {episodes} episodes")


def _ask(console: Console) -> str:
    """One answer from the keyboard; what has no box of its own gets one."""
    text = console.input("[bold]your answer:[/] ").strip()
    return text if not text or "\\" in text or "####" in text or "answer" in text.lower() else f"\\boxed{{{text}}}"
