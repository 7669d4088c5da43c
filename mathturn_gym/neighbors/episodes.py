"""Episodes for trainers that own the model and ask for one episode at a time, in asyncio.

`EpisodePlayer.play(problem, generate)` is the entry for a trainer that has no adaptor here; those of verl, slime and AReaL
are made of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import completion_ids
from mathturn_gym.episodes.returns import returns_to_go
from mathturn_gym.episodes.rollout import EpisodeRecorder
from mathturn_gym.errors import InvalidValueError, check_float
from mathturn_gym.problems import ProblemsLike, distinct, load_problems
from mathturn_gym.problems.lists import FiniteSource, ProblemList
from mathturn_gym.types import Completion, Episode, Ids, Problem


def chosen_problems(problems: ProblemsLike, size: int | None, seed: int = 0) -> list[Problem]:
    """Takes different problems from a source.

    Args:
        problems: See `load_problems`.
        size: How many; None takes all of a list.
        seed: Of the stream of a source that has no end.

    Raises:
        InvalidValueError: a source without end and no size, or one that has fewer problems.
    """
    source = load_problems(problems)
    wanted = source.size if size is None else size
    if wanted is None:
        raise InvalidValueError(f"source {source.name!r} has no end: say how many problems to take (size=1000)")
    return list(distinct(source, wanted, seed))


class ProblemIndex(FiniteSource):
    """Problems by id and by prompt: a source that grows.

    A row of a data set is matched by the id that it carries. A row without an id is matched by its text, if one problem
    alone has that text. Positions are never used: trainers shuffle, repeat and split their rows.
    """

    def __init__(self) -> None:
        super().__init__("data set")
        self._by_id: dict[str, Problem] = {}
        self._by_prompt: dict[str, list[str]] = {}

    def __len__(self) -> int:
        """Number of problems."""
        return len(self._by_id)

    def add(self, problems: Iterable[Problem]) -> None:
        """Adds problems; those already in the index are skipped.

        Raises:
            InvalidValueError: another problem has the same id.
        """
        for problem in problems:
            known = self._by_id.get(problem.id)
            if known is None:
                self._by_id[problem.id] = problem
                self._by_prompt.setdefault(problem.prompt, []).append(problem.id)
            # Hints and metadata may differ: rows come back from a data set with less than they had.
            elif (known.prompt, known.gold) != (problem.prompt, problem.gold):
                raise InvalidValueError(
                    f"two different problems have the id {problem.id!r}: give them ids of their own"
                )

    def __getitem__(self, position: int) -> Problem:
        """The problems in the order in which they came."""
        return list(self._by_id.values())[position]

    def by_id(self, problem_id: str) -> Problem:
        """The problem of this id."""
        if problem_id not in self._by_id:
            raise InvalidValueError(f"problem_id {problem_id!r} is not known: {self._how()}")
        return self._by_id[problem_id]

    def id_of(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        """The id of the problem that a prompt shows.

        Args:
            prompt: A text, or messages; the last message says what the problem is, by `problem_id` or by its content.

        Raises:
            InvalidValueError: no problem has this id or text, or several have it.
        """
        if isinstance(prompt, str):
            text, problem_id = prompt, None
        else:
            text, problem_id = str(prompt[-1]["content"]), prompt[-1].get("problem_id")
        if problem_id is not None:
            return self.by_id(str(problem_id)).id
        ids = self._by_prompt.get(text, [])
        if not ids:
            raise InvalidValueError(f"no known problem has the prompt {text[:80]!r}: {self._how()}")
        # Two problems in the same words (hidden numbers): taking one would judge by the wrong answer.
        if len(ids) > 1:
            raise InvalidValueError(
                f"{len(ids)} problems have the prompt {text[:80]!r} ({', '.join(ids[:3])} …), and the prompt carries no"
                f" problem_id: {self._how()}"
            )
        return ids[0]

    def _subset(self, positions: Sequence[int], name: str, split: str | None, *, shuffle: bool) -> ProblemList:
        return ProblemList([self[position] for position in positions], name, split, shuffle=shuffle)

    def _how(self) -> str:
        return f"make the data set with .dataset(problems), which knows {len(self)} problems so far"


# ---- one episode at a time


Generate: TypeAlias = Callable[[Ids, int], Awaitable[Completion]]
"""A model: `await generate(context, max_tokens)` continues a context, int64 (L,), by at most `max_tokens` ids."""

_NOTHING: Final = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True)
# Environments are made with a problem that fits: what they are then asked to play may be too long, and is truncated.
_FITS: Final = Problem("-", "-", "-")


def problem_to_json(problem: Problem) -> str:
    """Writes a whole problem as JSON text for a column of a data set, so that workers need no problem file.

    >>> problem_from_json(problem_to_json(Problem("p/1", "1+1?", ("2", "two")))).gold
    ('2', 'two')
    """
    return json.dumps(dataclasses.asdict(problem))


def problem_from_json(text: object) -> Problem:
    """The problem that `problem_to_json` was given.

    Raises:
        InvalidValueError: it is no such text; the message says where it should have come from.
    """
    try:
        return Problem(**json.loads(text))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"a row's problem must be what this module's data set wrote, got {str(text)[:80]!r}: {error}"
        ) from error


def completion_of(
    ids: Sequence[int], logprobs: Sequence[float | None] | None, limit: int, ends: Collection[int], version: int = 0
) -> Completion:
    """Makes a `Completion` of what an engine sampled.

    Args:
        ids: As sampled. What is beyond `limit` is left out: the beginning of a sample is a sample.
        logprobs: One per id; None (for one, or for all) where the engine gave none.
        limit: The most ids that the turn has room for.
        ends: Ids that end a turn.
        version: Of the weights.
    """
    kept = np.array(ids[:limit], np.int64)
    given = [None] * len(ids) if logprobs is None else logprobs
    values = np.array([np.nan if value is None else value for value in given[:limit]], np.float32)
    ended = len(kept) > 0 and int(kept[-1]) in ends
    return Completion(kept, values, truncated=not ended, version_start=version)


def loaded_once(config: EnvConfig, **makes: Any) -> tuple[EnvConfig, MathMultiTurnEnv]:
    """A config with its dialogue and verifier loaded, for all environments of a process, and a first environment."""
    made: Any = config.make(**makes)
    env: MathMultiTurnEnv = made.unwrapped
    # The dialogue has the tokenizer and the system prompt.
    kept = {name: value for name, value in config.keywords.items() if name not in ("tokenizer", "system_prompt")}
    shared: dict[str, Any] = {"dialogue": env.dialogue, "verifier": env.verifier}
    return EnvConfig(config.id, **{**kept, **shared}), env


def turn_ends(env: MathMultiTurnEnv) -> frozenset[int]:
    """The ids that end a turn: EOS, and the end-of-turn of the chat template."""
    ends = {env.dialogue.tokenizer.eos_token_id, *env.dialogue.end_of_turn[-1:]}
    return frozenset(one for one in ends if one is not None)


async def step_beside(env: MathMultiTurnEnv, ids: Ids) -> tuple[Ids, float, bool, bool, dict[str, Any]]:
    """`env.step(ids)` from a running event loop.

    The built-in verifier runs in a thread, so that one slow check does not delay other episodes. A user's function may rely
    on the thread that calls it, and runs in this one.
    """
    if env.verifier.runs_beside:
        return await asyncio.to_thread(env.step, ids)
    return env.step(ids)


class EpisodePlayer:
    r"""Plays episodes for a trainer that gives the problem and samples the completions.

    Any number of episodes may be played at once in one event loop; environments are reused. Token ids go to the model and
    come back from it, and are never encoded again.

    Args:
        config: The environment; its `problems` are not read, because each call of `play` brings its own.
        tokenizer: The model's.
        discount: Of the episodes' returns, per turn.

    Attributes:
        ends: Ids that end a turn.
        decode: The text of ids.
        encode: The ids of a text, as a completion of a turn has them.

    Raises:
        InvalidValueError: a value outside what is allowed.

    >>> async def generate(context, max_tokens):  # asks your engine
    ...     ids = player.encode(r"\boxed{4}")[:max_tokens]
    ...     return completion_of(ids, None, max_tokens, player.ends)
    >>> player = EpisodePlayer(EnvConfig("MathMultiTurnUntilCorrect-v0", num_turns=3), "builtin")
    >>> episode = asyncio.run(player.play(Problem("mine/1", "What is 2+2?", "4"), generate))
    >>> episode.solved, episode.num_turns, episode.returns.tolist()
    (True, 1, [1.0])
    """

    def __init__(self, config: EnvConfig, tokenizer: Any, discount: float = 1.0) -> None:
        self.discount = check_float("discount", discount, low=0.0, high=1.0)
        self._problems = ProblemIndex()
        self._config, first = loaded_once(config, tokenizer=tokenizer, problems=_FITS)
        first.source = self._problems
        self._idle = [first]
        self.decode = first.dialogue.decode
        self.encode: Callable[[str], Ids] = lambda text: completion_ids(
            first.dialogue, text, first.max_completion_tokens
        )
        self.ends = turn_ends(first)

    async def play(self, problem: Problem, generate: Generate, *, index: int = 0, group: str | None = None) -> Episode:
        """Plays one episode to its end.

        Args:
            problem: The problem. Another problem under the same id is an error.
            generate: Samples one turn; called once per turn with the whole context and the turn's token budget.
            index: Number of the episode, kept in it.
            group: Name of the episode's group, kept in it.

        Returns:
            The episode: ids, loss mask, log-probs, versions, rewards per turn and returns.

        Raises:
            InvalidValueError: another problem has the same id.
            UserFunctionError: a verifier or reward function of the user's raised.
        """
        self._problems.add([problem])
        # As many environments as episodes that run at once; making one takes longer than playing a turn.
        env = self._idle.pop() if self._idle else self._made()
        try:
            return await self._episode(env, problem, generate, index, group)
        finally:
            self._idle.append(env)

    async def _episode(
        self, env: MathMultiTurnEnv, problem: Problem, generate: Generate, index: int, group: str | None
    ) -> Episode:
        observation, info = env.reset(options={"problem_id": problem.id})
        recorder = EpisodeRecorder(observation, info, index=index, group=group)
        while not recorder.ended:
            budget = int(info["completion_budget"])
            completion = await generate(observation, budget) if budget else _NOTHING
            result = await step_beside(env, completion.ids)
            observation, info = result[0], result[-1]
            recorder.add(completion, *result)
        return recorder.episode(self.discount)

    def _made(self) -> MathMultiTurnEnv:
        made: Any = self._config.make(problems=_FITS)
        env: MathMultiTurnEnv = made.unwrapped
        env.source = self._problems
        return env


class TextEpisode:
    """An episode played by texts, for hosts without token ids: answers are encoded by the tokenizer."""

    def __init__(self, env: MathMultiTurnEnv, discount: float) -> None:
        self._env, self._discount = env, discount
        self.rewards: list[float] = []
        self.over = True
        self.solved_at: int | None = None

    def begin(self, problem_id: str) -> None:
        """Begins an episode."""
        self._env.reset(options={"problem_id": problem_id})
        self.rewards, self.over, self.solved_at = [], False, None

    def answer(self, text: str) -> str:
        """Plays one turn; returns what the environment says ("" at the end)."""
        env = self._env
        _, reward, terminated, truncated, info = env.step(completion_ids(env.dialogue, text, env.max_completion_tokens))
        verdict = info["verdict"]
        if self.solved_at is None and verdict is not None and verdict.correct:
            self.solved_at = len(self.rewards)
        self.rewards.append(reward)
        self.over = terminated or truncated
        return str(info["feedback"])

    @property
    def value(self) -> float:
        """The return of the episode so far."""
        return float(returns_to_go(self.rewards, self._discount)[0]) if self.rewards else 0.0
