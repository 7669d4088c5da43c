"""What `mathturn play` does at the keyboard and on the screen: asking, ids on demand, the answer at the end, the count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from mathturn_gym._text import visible

if TYPE_CHECKING:
    from rich.console import Console

    from mathturn_gym._token_texts import TokenTexts
    from mathturn_gym.env import EpisodeState, MathMultiTurnEnv

__all__ = ["Person", "ids_lines", "play_episodes"]

_ASKS: Final = "your answer: "
_COMMANDS: Final = (
    (":ids", "the token ids so far, part by part"),
    (":quit", "leave"),
    (":help", "this"),
)


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
        """The next answer.

        Raises:
            EOFError: the person leaves.
        """
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
                self._say(line)
            return
        if command != ":help":
            self._say(f"there is no command {visible(command)}")
        for name, words in _COMMANDS:
            self._say(f"  {name:6} {words}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _prompt() -> str:
    """The prompt, in bold where a line editor can tell what of it shows.

    `readline` is loaded for the arrows: left and right within a line, up and down through what was typed before.
    """
    try:
        import readline  # noqa: F401 - `input` uses it once it is loaded
    except ImportError:  # Windows has none; its console has arrows of its own
        return _ASKS
    return f"\x01\x1b[1m\x02{_ASKS}\x01\x1b[0m\x02" if sys.stdout.isatty() and sys.stdin.isatty() else _ASKS


def _boxed(line: str) -> str:
    plain = not line or "\\" in line or "####" in line or "answer" in line.lower()
    return line if plain else f"\\boxed{{{line}}}"


def ids_lines(state: EpisodeState, texts: TokenTexts) -> Iterator[str]:
    """An episode's token ids part by part, each with what it says.

    Args:
        state: The episode as it stands.
        texts: What the ids say.

    Yields:
        A line per part: its name, its length, its ids.
    """
    starts = [turn.start for turn in state.turns]
    parts = [("prompt", 0, [*starts, len(state.ids)][0])]
    for number, turn in enumerate(state.turns, 1):
        following = [*starts, len(state.ids)][number]
        parts.append((f"turn {number}", turn.start, turn.feedback_start))
        parts.append((f"feedback {number}", turn.feedback_start, following))
    for name, start, end in parts:
        if end > start:
            shown = " ".join(_id_text(token, texts) for token in state.ids[start:end].tolist())
            yield f"{name}, {end - start} tokens: {shown}"


def _id_text(token: int, texts: TokenTexts) -> str:
    text = texts(token)
    return str(token) if text is None else f"{token}‹{visible(text)}›".replace("\n", "⏎").replace("\t", "⇥")


def play_episodes(env: Any, policy: Any, episodes: int, *, seed: int, console: Console) -> None:
    """Plays episodes one after the other, and says at each one's end what the answer was.

    Args:
        env: With render mode "human".
        policy: Any; a `Person` behind a script leaves by `EOFError`.
        episodes: How many.
        seed: Decides the problems.
        console: Where the rest is said.
    """
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
            answers = visible(" or ".join(env.unwrapped.problem.gold))
            console.print(f"answer: {answers}", markup=False, highlight=False, soft_wrap=True)
    except (EOFError, KeyboardInterrupt):
        console.print("\nbye")
    left = "" if played == episodes else f" ({episodes - played} not played to the end)"
    counted = f"last answer right in {right} of {played} episode{'' if played == 1 else 's'}{left}"
    console.print(counted, highlight=False, soft_wrap=True)
