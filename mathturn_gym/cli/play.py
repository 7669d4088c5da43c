"""`mathturn play`: you against the environment, or watch a policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mathturn_gym.base.terminal import say, terminal
from mathturn_gym.base.text import visible
from mathturn_gym.cli._options import EnvOptions, with_env_options
from mathturn_gym.cli._runs import OwnCode, check_counts, problems_of, start_of
from mathturn_gym.policies.config import POLICY_NAMES

if TYPE_CHECKING:
    from rich.console import Console

    from mathturn_gym.base.text import TokenTexts
    from mathturn_gym.env import EpisodeState, MathMultiTurnEnv

_ASKS: Final = "your answer: "
_COMMANDS: Final = ((":ids", "the token ids so far, part by part"), (":quit", "leave"), (":help", "this"))


class Person:
    r"""A person as a policy's script: asks for an answer at the keyboard.

    A bare `4` is put into a box; what has a backslash, `####` or the word "answer" in it is taken as it is. A line that
    begins with a colon is a command; two colons begin an answer that begins with one.

    Args:
        console: Where commands answer.
        env: The environment that is played.
        texts: What its ids say.
    """

    def __init__(self, console: Console, env: MathMultiTurnEnv, texts: TokenTexts) -> None:
        self._console, self._env, self._texts = console, env, texts
        self._prompt = _prompt()

    def __call__(self, context: str) -> str:
        """The next answer; `EOFError` where the person leaves."""
        while True:
            line = input(self._prompt).strip()
            if line.startswith("::"):
                return line[1:]
            if not line.startswith(":"):
                return _boxed(line)
            self._obey(line)

    def _obey(self, command: str) -> None:
        if command == ":quit":
            raise EOFError
        if command == ":ids":
            for line in ids_lines(self._env.get_state(), self._texts):
                say(self._console, line)
            return
        if command != ":help":
            say(self._console, f"there is no command {command}")
        for name, words in _COMMANDS:
            say(self._console, f"  {name:6} {words}")


def _prompt() -> str:
    """The prompt, in bold where a line editor can tell what of it shows.

    `readline` is loaded for the arrows: left and right within a line, up and down through what was typed before.
    """
    try:
        import readline  # noqa: F401 - `input` uses it once it is loaded
    except ImportError:  # Windows has none; its console has arrows of its own
        return _ASKS
    # \x01 and \x02 enclose what takes no room: without them, readline would wrap lines too early.
    return f"\x01\x1b[1m\x02{_ASKS}\x01\x1b[0m\x02" if sys.stdout.isatty() and sys.stdin.isatty() else _ASKS


def _boxed(line: str) -> str:
    # What brings its own mark is judged as a model's answer would be.
    plain = not line or "\\" in line or "####" in line or "answer" in line.lower()
    return line if plain else f"\\boxed{{{line}}}"


def ids_lines(state: EpisodeState, texts: TokenTexts) -> Iterator[str]:
    """An episode's token ids part by part, each with what it says."""
    starts = [turn.start for turn in state.turns]
    parts = [("prompt", 0, [*starts, len(state.ids)][0])]
    for number, turn in enumerate(state.turns, 1):
        following = [*starts, len(state.ids)][number]
        parts.append((f"turn {number}", turn.start, turn.end))
        parts.append((f"feedback {number}", turn.end, following))
    for name, start, end in parts:
        if end > start:
            shown = " ".join(_id_text(token, texts) for token in state.ids[start:end].tolist())
            yield f"{name}, {end - start} tokens: {shown}"


def _id_text(token: int, texts: TokenTexts) -> str:
    text = texts(token)
    return str(token) if text is None else f"{token}‹{visible(text)}›".replace("\n", "⏎").replace("\t", "⇥")


def play_episodes(env: Any, policy: Any, episodes: int, *, seed: int, console: Console) -> None:
    """Plays episodes one after the other, and says at each one's end what the answer was."""
    import numpy as np

    from mathturn_gym.seeding import derive_seed

    played = right = 0
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
            played += 1
            right += bool(info["verdict"] and info["verdict"].correct)
            say(console, f"answer: {' or '.join(env.unwrapped.problem.gold)}")
    # Leaving is no error: what was played to its end is counted.
    except (EOFError, KeyboardInterrupt):
        console.print("\nbye")
    left = "" if played == episodes else f" ({episodes - played} not played to the end)"
    say(console, f"last answer right in {right} of {played} episode{'' if played == 1 else 's'}{left}")


# ---- the command


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
    from mathturn_gym.base.text import TokenTexts
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
