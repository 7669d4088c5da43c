"""tinker-cookbook's `Env` on this environment, its group builder, and its data set.

    builder = MathTurnDatasetBuilder(problems="lins", size=1000, tokenizer="Qwen/Qwen3-8B", group_size=8, batch_size=32)

is the `dataset_builder` of `tinker_cookbook.rl.train.Config`. `PolicyCompleter` goes the other way: a policy of this package
plays any environment of the cookbook, without an API key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, check_int
from mathturn_gym.neighbors.episodes import ProblemIndex, chosen_problems, loaded_once, step_beside, turn_ends
from mathturn_gym.neighbors.require import require
from mathturn_gym.types import Policy, Problem

_INSTALL: Final = "pip install 'tinker-cookbook>=0.5.8,<0.7' (an environment of its own: it needs transformers<=5.5.4)"
require("tinker-cookbook", "0.5.8", "0.7", _INSTALL)
try:
    import chz
    import tinker
    from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
except ImportError as error:
    raise MissingDependencyError(f"tinker-cookbook cannot be loaded ({error}): {_INSTALL}") from error


_ENV_ID: Final = "MathMultiTurnUntilCorrect-v0"


class MathTurnEnv(Env):
    """One episode. Observations only grow, so the cookbook makes one `Datum` of it; rewards are per turn."""

    def __init__(self, env: MathMultiTurnEnv, problem: Problem) -> None:
        self._env, self._problem = env, problem
        self._stop = sorted(turn_ends(env))

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[int]]:
        """The prompt, and the ids that end a turn."""
        observation, _ = self._env.reset(options={"problem_id": self._problem.id})
        return tinker.ModelInput.from_ints(observation.tolist()), self._stop

    async def step(self, action: list[int], *, extra: Any = None) -> StepResult:
        """Plays one turn.

        Args:
            action: Ids, as sampled.
            extra: Not used: the ids tell how the turn ended.

        Raises:
            InvalidActionError: more ids than `max_completion_tokens`: give the environment the sampler's budget.
        """
        result = await step_beside(self._env, np.array(action, np.int64))
        observation, reward, terminated, truncated, info = result
        metrics: dict[str, float | int] = {"turn": info["turn"]}
        if info["verdict"] is not None:
            # The cookbook averages metrics over steps by name: one number a turn.
            metrics["correct"] = float(info["verdict"].correct)
        if info["stop_reason"] is not None:
            metrics[f"stop/{info['stop_reason']}"] = 1.0
        return StepResult(
            reward=reward,
            episode_done=terminated or truncated,
            next_observation=tinker.ModelInput.from_ints(observation.tolist()),
            next_stop_condition=self._stop,
            metrics=metrics,
            logs={"response": info["response"], "feedback": info["feedback"]},
        )


@dataclass(frozen=True)
class MathTurnGroupBuilder(EnvGroupBuilder):
    """A group of episodes on one problem; pickles, and loads tokenizer and verifier where it is used.

    Args:
        problem: The problem.
        group_size: Episodes.
        tokenizer: Folder or hub name.
        env_id: Environment id.
        keywords: Of `gym.make`, as JSON types.
    """

    problem: Problem
    group_size: int
    tokenizer: str
    env_id: str = _ENV_ID
    keywords: Mapping[str, Any] = field(default_factory=dict)

    async def make_envs(self) -> Sequence[Env]:
        """The environments."""
        # Pickled builders carry names, not tokenizers: each process loads them once.
        shared = _shared(self.tokenizer, self.env_id, json.dumps(dict(self.keywords), sort_keys=True))
        index = ProblemIndex()
        index.add([self.problem])
        made: list[Any] = [shared.make().unwrapped for _ in range(self.group_size)]
        for env in made:
            env.source = index
        return [MathTurnEnv(env, self.problem) for env in made]

    def logging_tags(self) -> list[str]:
        """The problem's family, where it has one."""
        family = self.problem.metadata.get("family")
        return ["mathturn", *([str(family)] if family else [])]


@lru_cache(maxsize=8)
def _shared(tokenizer: str, env_id: str, keywords: str) -> EnvConfig:
    """The environment's config with dialogue and verifier in it, which all environments of a process share."""
    return loaded_once(EnvConfig(env_id, **json.loads(keywords)), tokenizer=load_tokenizer(tokenizer))[0]


class MathTurnDataset(RLDataset):
    """Batches of groups (one builder per problem), each problem once in an epoch."""

    def __init__(self, builders: Sequence[MathTurnGroupBuilder], batch_size: int) -> None:
        self._builders, self._size = list(builders), check_int("batch_size", batch_size, low=1)
        if len(self._builders) < self._size:
            raise InvalidValueError(
                f"batch_size is {batch_size}, of {len(self._builders)} problems: take more problems"
            )

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Batch `index`."""
        return self._builders[index * self._size : (index + 1) * self._size]

    def __len__(self) -> int:
        """Whole batches."""
        # A last, smaller batch would weigh each of its problems more.
        return len(self._builders) // self._size


@chz.chz
class MathTurnDatasetBuilder(RLDatasetBuilder):
    """Builds training and test data of one source; its splits share no prompt.

    Attributes:
        problems: Name of a source that has splits (see `load_problems`).
        tokenizer: Folder or hub name.
        size: Problems to train on.
        test_size: Problems to test on; 0 for none.
        group_size: Episodes per problem.
        batch_size: Problems per batch.
        env_id: Environment id.
        keywords: Of `gym.make`, as JSON types.
    """

    problems: str
    tokenizer: str
    size: int
    group_size: int
    batch_size: int
    test_size: int = 0
    env_id: str = _ENV_ID
    keywords: dict[str, Any] = chz.field(default_factory=dict)

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """The training data, and the test data or None."""
        config = EnvConfig(self.env_id, problems=self.problems)
        train = MathTurnDataset(self._builders(config, "train", self.size, self.group_size), self.batch_size)
        if not self.test_size:
            return train, None
        return train, MathTurnDataset(self._builders(config, "test", self.test_size, 1), self.test_size)

    def _builders(self, config: EnvConfig, split: str, size: int, group_size: int) -> list[MathTurnGroupBuilder]:
        problems = chosen_problems(config.problems(split), size)
        return [
            MathTurnGroupBuilder(problem, group_size, self.tokenizer, self.env_id, self.keywords)
            for problem in problems
        ]


class PolicyCompleter(TokenCompleter):
    """A policy of this package as the cookbook's `TokenCompleter`.

    Args:
        policy: The policy.
        max_tokens: The most ids of a completion.
    """

    def __init__(self, policy: Policy, max_tokens: int) -> None:
        self._policy, self._max = policy, check_int("max_tokens", max_tokens, low=1)

    async def __call__(
        self, model_input: tinker.ModelInput, stop: Any, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """Continues a context; it ends where the policy ends it, so `stop` must be the policy's own."""
        limit = self._max if max_tokens is None else min(self._max, max_tokens)
        context = np.array(model_input.to_ints(), np.int64)
        (found,) = await asyncio.to_thread(self._policy.complete, [context], max_tokens=[limit])
        # The cookbook tells turns that ended from turns that were cut off by this word.
        reason = "length" if found.truncated else "stop"
        return TokensWithLogprobs(found.ids.tolist(), found.logprobs.tolist(), reason)
