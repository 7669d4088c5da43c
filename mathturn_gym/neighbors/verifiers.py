"""A taskset and an environment for verifiers (v1), and so for prime-rl.

verifiers finds both by the name of a top-level module. One file that says `from mathturn_gym.neighbors.verifiers import *`
is such a module (`examples/verifiers/mathturn.py` is one, to install with pip); `load_environment` makes the environment in
Python under a module of any name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import MissingDependencyError
from mathturn_gym.neighbors.episodes import (
    ProblemIndex,
    TextEpisode,
    chosen_problems,
    problem_from_json,
    problem_to_json,
)
from mathturn_gym.neighbors.require import require

_INSTALL: Final = "pip install 'verifiers>=0.4,<0.5'"
require("verifiers", "0.4", "0.5", _INSTALL)
try:
    import verifiers.v1 as vf
    from pydantic import Field
except ImportError as error:
    raise MissingDependencyError(f"verifiers cannot be loaded ({error}): {_INSTALL}") from error

__all__ = [
    "MathTurnData",
    "MathTurnEnv",
    "MathTurnEnvConfig",
    "MathTurnTask",
    "MathTurnTaskset",
    "MathTurnTasksetConfig",
    "load_environment",
]


class MathTurnData(vf.TaskData):
    """A task's data.

    Attributes:
        problem: The whole problem, as JSON; the accepted answers are in it, for scoring.
    """

    problem: str


class MathTurnTask(vf.Task[MathTurnData]):
    """A problem."""

    @property
    def key(self) -> str:
        """The problem's id, which follows from its content."""
        return str(self.data.id)


class MathTurnTasksetConfig(vf.TasksetConfig):
    """What to train or evaluate on.

    Attributes:
        problems: See `mathturn_gym.problems.load_problems`.
        size: How many different problems; None takes all of a list.
        seed: Of the stream of a source that has no end.
    """

    problems: str = "lins"
    size: int | None = None
    seed: int = 0


class MathTurnTaskset(vf.Taskset[MathTurnTask, MathTurnTasksetConfig]):
    """The problems of a source, as tasks."""

    def load(self) -> Iterable[MathTurnTask]:
        """A task per problem."""
        config = self.config
        for problem in chosen_problems(config.problems, config.size, config.seed):
            data = MathTurnData(id=problem.id, prompt=problem.prompt, problem=problem_to_json(problem))
            yield MathTurnTask(data, config.task)


class MathTurnEnvConfig(vf.EnvConfig):
    """How an episode is played.

    Attributes:
        agent: The model; the tool-less chat loop in a subprocess, unless another harness or runtime is named.
        gym_id: Environment id of `gym.make`.
        discount: Of the return that is the reward, per turn.
        settings: Keywords of `gym.make`: `num_turns`, `feedback` and the like. Answers are text here, so tokens are counted
            by the built-in tokenizer, a byte or two each: `max_completion_tokens` is large unless it is given.
    """

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    gym_id: str = "MathMultiTurnUntilCorrect-v0"
    discount: float = 1.0
    settings: dict[str, Any] = Field(default_factory=dict)


class MathTurnEnv(vf.Env[MathTurnEnvConfig]):
    """The environment: it takes the user's part, and rewards the agent with the episode's return."""

    def __init__(self, config: MathTurnEnvConfig) -> None:
        super().__init__(config)
        keywords: dict[str, Any] = {"max_completion_tokens": 2**17, **config.settings}
        self._problems = ProblemIndex()
        self._config = EnvConfig(config.gym_id, **keywords)
        self._config.make().close()  # a mistake shows here, not in the first episode

    async def run(self, task: MathTurnTask, agents: Any) -> None:
        """One episode."""
        problem = problem_from_json(task.data.problem)
        self._problems.add([problem])
        env: Any = self._config.make().unwrapped
        env.source = self._problems
        episode = TextEpisode(env, self.config.discount)
        episode.begin(problem.id)
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                # Verification may take seconds; other episodes share this loop.
                feedback = await asyncio.to_thread(episode.answer, segment.last_reply)
                if episode.over:
                    break
                segment = await interaction.turn(feedback)
        # The reward is the whole episode's, so it is recorded when the dialogue is over.
        trace = interaction.trace
        trace.record_reward("episode_return", episode.value)
        trace.record_metric("solved", float(episode.solved_at is not None))
        trace.record_metric("solved_first", float(episode.solved_at == 0))
        trace.record_metric("turns", float(len(episode.rewards)))


def load_environment(
    module: str = "mathturn", *, problems: str = "lins", size: int | None = None, seed: int = 0, **config: Any
) -> MathTurnEnv:
    """The environment, in Python.

    Args:
        module: Name of a top-level module that exports what this one does.
        problems: See `MathTurnTasksetConfig`.
        size: See `MathTurnTasksetConfig`.
        seed: See `MathTurnTasksetConfig`.
        **config: Fields of `MathTurnEnvConfig`.
    """
    taskset = {"id": module, "problems": problems, "size": size, "seed": seed}
    return vf.load_environment(MathTurnEnvConfig(taskset=taskset, **config))
