"""verl's `AgentLoopBase` on this environment.

    python -m mathturn_gym.neighbors.verl lins --size 600 --out train.parquet     # the data set, agent_name and all

and a file `agents.yaml` for `actor_rollout_ref.rollout.agent.agent_loop_config_path`:

    - name: mathturn
      _target_: mathturn_gym.neighbors.verl.MathTurnLoop
      num_turns: 4
      max_completion_tokens: 1024

verl makes a loop per episode; the environments behind them are kept and used again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from mathturn_gym.env.config import EnvConfig, env_parameters
from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.neighbors.episodes import (
    EpisodePlayer,
    chosen_problems,
    completion_of,
    problem_from_json,
    problem_to_json,
)
from mathturn_gym.neighbors.export import to_verl
from mathturn_gym.neighbors.require import require
from mathturn_gym.problems import ProblemsLike
from mathturn_gym.types import Completion, Ids

_INSTALL: Final = "pip install 'verl>=0.9,<0.10' (an environment of its own: it needs transformers<5.11)"
require("verl", "0.9", "0.10", _INSTALL)
try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
except ImportError as error:
    raise MissingDependencyError(f"verl cannot be loaded ({error}): {_INSTALL}") from error


AGENT_NAME: Final = "mathturn"
"""What rows of the data set name, so that verl does not fall back to its single-turn loop."""

# verl makes a loop for each episode: what is slow to load is kept between them.
_PLAYERS: dict[str, EpisodePlayer] = {}


@register(AGENT_NAME)
class MathTurnLoop(AgentLoopBase):
    """An agent loop: one call of `run` is one episode.

    Token ids go to the server and come back from it; nothing is encoded again. The response is every id after the prompt,
    feedback masked; its reward is the episode's return, the rewards per turn are in `extra_fields["turn_scores"]`.

    Args:
        *args: verl's.
        env_id: Environment id.
        discount: Of the return, per turn.
        **keywords: verl's, and those of `gym.make` but for `problems` and `tokenizer`. `max_context_tokens` is verl's
            `response_length` where it is not given, and cannot be more: what is over it verl cuts off.

    Raises:
        InvalidValueError: a value outside what is allowed.
    """

    def __init__(
        self,
        *args: Any,
        env_id: str = "MathMultiTurnUntilCorrect-v0",
        discount: float = 1.0,
        **keywords: Any,
    ) -> None:
        own = {
            name: keywords.pop(name)
            for name in list(keywords)
            if name in env_parameters(env_id) and name != "tokenizer"
        }
        super().__init__(*args, **keywords)
        self._player = self._kept_player(env_id, discount, own)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Plays one episode.

        Args:
            sampling_params: verl's; the budget of each turn is put in.
            **kwargs: The row of the data set.

        Returns:
            verl's output.

        Raises:
            InvalidValueError: the row has no problem.
        """
        problem = problem_from_json((kwargs.get("extra_info") or {}).get("problem"))
        request_id, version = uuid4().hex, 0

        async def generate(context: Ids, max_tokens: int) -> Completion:
            out = await self.server_manager.generate(
                request_id=request_id,  # the same for all turns: they go to the server that holds their prefix
                prompt_ids=context.tolist(),
                sampling_params={**sampling_params, "max_tokens": max_tokens},
            )
            return completion_of(out.token_ids, out.log_probs or None, max_tokens, self._player.ends, version)

        episode = await self._player.play(problem, generate)
        (row,) = to_verl([episode], discount=self._player.discount)
        del row["extra_fields"]["segment"]  # verl takes one row for an episode
        row["extra_fields"]["tool_rewards"] = []  # what verl's own loops have as well
        return AgentLoopOutput(**row, metrics=AgentLoopMetrics())

    def _kept_player(self, env_id: str, discount: float, own: dict[str, Any]) -> EpisodePlayer:
        length = int(self.rollout_config.response_length)
        # An episode that verl cuts off would keep the reward of turns that are gone.
        if own.setdefault("max_context_tokens", length) > length:
            raise InvalidValueError(
                f"max_context_tokens must be at most verl's response_length={length}, got {own['max_context_tokens']}: verl"
                " would cut the episode off"
            )
        key = json.dumps([env_id, discount, {name: repr(value) for name, value in own.items()}, id(self.tokenizer)])
        if key not in _PLAYERS:
            _PLAYERS[key] = EpisodePlayer(EnvConfig(env_id, **own), self.tokenizer, discount)
        return _PLAYERS[key]


def dataset_rows(problems: ProblemsLike, size: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of verl's data sets, each with its whole problem; see `chosen_problems` for the arguments."""
    return [
        {
            "data_source": AGENT_NAME,
            "agent_name": AGENT_NAME,
            "prompt": [{"role": "user", "content": problem.prompt}],
            "reward_model": {"style": "rule", "ground_truth": problem.gold[0]},
            "extra_info": {"index": index, "problem_id": problem.id, "problem": problem_to_json(problem)},
        }
        for index, problem in enumerate(chosen_problems(problems, size, seed))
    ]


def write_dataset(path: str | Path, problems: ProblemsLike, size: int | None = None, seed: int = 0) -> None:
    """Writes `dataset_rows` as a Parquet file, which verl reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(dataset_rows(problems, size, seed)), path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a data set."""
    parser = argparse.ArgumentParser(description="Writes problems as a data set for verl.")
    parser.add_argument("problems")
    parser.add_argument("--size", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args(arguments)
    write_dataset(args.out, args.problems, args.size, args.seed)


if __name__ == "__main__":
    main()
