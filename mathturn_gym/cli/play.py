"""`mathturn play`: you against the environment, or watch a policy."""

from __future__ import annotations

from typing import Annotated, Any

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
    answer; `:ids` shows the token ids so far, `:help` the other commands; Ctrl-D or Ctrl-C leaves. Arrows bring back
    what you typed before. The accepted answer is told at the end of an episode.
    """
    import gymnasium as gym

    from mathturn_gym._token_texts import TokenTexts
    from mathturn_gym.cli._person import Person, play_episodes
    from mathturn_gym.decoding import load_policy
    from mathturn_gym.dialogue import Dialogue
    from mathturn_gym.testing import ScriptedPolicy

    console = Console()
    watched = load_policy(watch or "random")
    dialogue = Dialogue(watched.tokenizer)
    env: Any = gym.make(
        env_id,
        render_mode="human",
        problems=problems,
        tokenizer=dialogue.tokenizer,
        num_turns=num_turns,
        feedback=feedback,
        max_completion_tokens=max_completion_tokens,
    )
    person = Person(console, env.unwrapped, TokenTexts(dialogue.tokenizer))
    policy: Any = watched if watch else ScriptedPolicy(person, dialogue)
    try:
        play_episodes(env, policy, episodes, seed=seed, console=console)
    finally:
        env.close()
