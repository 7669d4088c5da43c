"""`mathturn play`: you against the environment, or watch a policy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mathturn_gym._terminal import terminal
from mathturn_gym.cli._env_options import EnvOptions, with_env_options
from mathturn_gym.cli._runs import OwnCode, check_counts, problems_of, start_of
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
    own_code: OwnCode = False,
) -> None:
    r"""Play the environment yourself, or watch a policy play it.

    Type an answer as a model would, e.g. `\boxed{4}`; a bare `4` is put into a box for you. An empty line is an empty
    answer; `:ids` shows the token ids so far, `:help` the other commands; Ctrl-D or Ctrl-C leaves. Arrows bring back
    what you typed before. The accepted answer is told at the end of an episode. The folder of a training run brings back
    its environment.
    """
    from mathturn_gym._token_texts import TokenTexts
    from mathturn_gym.cli._person import Person, play_episodes
    from mathturn_gym.testing import ScriptedPolicy

    check_counts(episodes=episodes, seed=seed)
    console, start = terminal(), start_of(watch, task, max_completion_tokens=256, given=env.given, own_code=own_code)
    config = env.config(start.env)
    source = problems_of(config, split, named="problems" in env.given)
    watched = start.load() if watch else None
    played: Any = config.make(policy=watched, problems=source, render_mode="human")
    dialogue = played.unwrapped.dialogue
    person = Person(console, played.unwrapped, TokenTexts(dialogue.tokenizer))
    try:
        play_episodes(played, watched or ScriptedPolicy(person, dialogue), episodes, seed=seed, console=console)
    finally:
        played.close()
