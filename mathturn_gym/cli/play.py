"""`mathturn play`: you against the environment, or watch a policy."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from mathturn_gym.decoding import POLICY_NAMES

__all__ = ["play"]


def play(
    watch: Annotated[str | None, typer.Option(help=f"Watch a policy instead of playing: {POLICY_NAMES}")] = None,
    problems: Annotated[str, typer.Option(help="Built-in name or a .jsonl file.")] = "lins:test",
    env_id: Annotated[str, typer.Option("--env", help="Environment id.")] = "MathMultiTurnUntilCorrect-v0",
    num_turns: Annotated[int, typer.Option(help="Turns of an episode.")] = 4,
    feedback: Annotated[str, typer.Option(help="Feedback mode.")] = "plain",
    episodes: Annotated[int, typer.Option(help="Episodes to play.")] = 3,
    max_completion_tokens: Annotated[int, typer.Option(help="The most ids of one answer.")] = 256,
    seed: Annotated[int, typer.Option(help="Decides the problems.")] = 0,
) -> None:
    r"""Play the environment yourself, or watch a policy play it.

    Type an answer as a model would, e.g. `\boxed{4}`; a bare `4` is put into a box for you. An empty line is an empty
    answer; Ctrl-D or Ctrl-C leaves.
    """
    import gymnasium as gym
    import numpy as np

    from mathturn_gym.decoding import load_policy
    from mathturn_gym.dialogue import Dialogue
    from mathturn_gym.seeding import derive_seed
    from mathturn_gym.testing import ScriptedPolicy

    console = Console()
    watched = load_policy(watch or "random")
    dialogue = Dialogue(watched.tokenizer)
    policy = watched if watch else ScriptedPolicy(lambda context: _ask(console), dialogue)
    env = gym.make(
        env_id,
        render_mode="human",
        problems=problems,
        tokenizer=dialogue.tokenizer,
        num_turns=num_turns,
        feedback=feedback,
        max_completion_tokens=max_completion_tokens,
    )
    solved = 0
    try:
        for episode in range(episodes):
            console.rule(f"episode {episode + 1} of {episodes}")
            context, info = env.reset(seed=seed, options={"index": episode})
            terminated = truncated = False
            while not (terminated or truncated):
                (completion,) = policy.complete(
                    [np.asarray(context)],
                    max_tokens=[info["completion_budget"]],
                    seeds=[derive_seed(seed, episode, info["turn"])],
                )
                context, _, terminated, truncated, info = env.step(completion.ids)
            solved += bool(info["verdict"] and info["verdict"].correct)
    except (EOFError, KeyboardInterrupt):
        console.print("\nbye")
    finally:
        env.close()
    console.print(f"last answer right in {solved} of {episodes} episodes")


def _ask(console: Console) -> str:
    """One answer from the keyboard; what has no box of its own gets one."""
    text = console.input("[bold]your answer:[/] ").strip()
    return text if not text or "\\" in text or "####" in text or "answer" in text.lower() else f"\\boxed{{{text}}}"
