"""AReaL's `RolloutWorkflow` on this environment (`mathturn_gym.neighbors.areal` reproduces the original agent; this trains today).

workflow = MathTurnWorkflow(config.gconfig, tokenizer, num_turns=4)
trainer.train(workflow=workflow, …)                       # data: Dataset.from_list(dataset_rows("lins", 1000))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import numpy as np

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import MissingDependencyError
from mathturn_gym.neighbors.episodes import EpisodePlayer, chosen_problems, problem_from_json, problem_to_json
from mathturn_gym.neighbors.export import to_areal
from mathturn_gym.neighbors.require import require
from mathturn_gym.problems import ProblemsLike
from mathturn_gym.types import Completion, Ids

_INSTALL: Final = "pip install 'areal>=1.0,<2' (an environment of its own: it needs torch<2.11)"
require("areal", "1.0", "2", _INSTALL)
try:
    from areal.api.io_struct import ModelRequest
    from areal.api.workflow_api import RolloutWorkflow
except ImportError as error:
    raise MissingDependencyError(f"AReaL cannot be loaded ({error}): {_INSTALL}") from error


class MathTurnWorkflow(RolloutWorkflow):
    """A rollout workflow: one call of `arun_episode` is one episode.

    Args:
        gconfig: AReaL's `GenerationHyperparameters`; the budget of each turn is put in.
        tokenizer: The model's.
        env_id: Environment id.
        discount: Of the return, per turn.
        **keywords: Of `gym.make`, but for `problems` and `tokenizer`.

    Raises:
        InvalidValueError: a value outside what is allowed.
    """

    def __init__(
        self,
        gconfig: Any,
        tokenizer: Any,
        *,
        env_id: str = "MathMultiTurnUntilCorrect-v0",
        discount: float = 1.0,
        **keywords: Any,
    ) -> None:
        self._gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self._tokenizer = tokenizer
        self._player = EpisodePlayer(EnvConfig(env_id, **keywords), tokenizer, discount)

    async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> dict[str, Any]:
        """Plays one episode.

        Args:
            engine: AReaL's inference engine.
            data: A row of `dataset_rows`.

        Returns:
            See `mathturn_gym.neighbors.export.to_areal`.

        Raises:
            InvalidValueError: the row has no problem.
        """
        problem, request_id = problem_from_json(data.get("problem")), uuid4().hex

        async def generate(context: Ids, max_tokens: int) -> Completion:
            request = ModelRequest(
                rid=request_id,
                input_ids=context.tolist(),
                gconfig=self._gconfig.new(n_samples=1, max_new_tokens=max_tokens),
                tokenizer=self._tokenizer,
            )
            out = await engine.agenerate(request)
            # Weights may change while a completion is sampled: every id has its own version.
            versions = np.array(out.output_versions[:max_tokens], np.int32)
            ids = np.array(out.output_tokens[:max_tokens], np.int64)
            ended = len(ids) > 0 and int(ids[-1]) in self._player.ends
            logprobs = np.array(out.output_logprobs[:max_tokens], np.float32)
            first, last = (int(versions[0]), int(versions[-1])) if len(versions) else (0, 0)
            return Completion(ids, logprobs, not ended, first, last, versions)

        return to_areal(await self._player.play(problem, generate), discount=self._player.discount)


# The whole problem travels in its row: rollout workers on other machines read no problem files.
def dataset_rows(problems: ProblemsLike, size: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Rows for AReaL's data loader, each with its whole problem; see `chosen_problems` for the arguments."""
    return [
        {
            "messages": [{"role": "user", "content": problem.prompt}],
            "problem_id": problem.id,
            "problem": problem_to_json(problem),
        }
        for problem in chosen_problems(problems, size, seed)
    ]
