"""slime's `custom_generate` on this environment.

    --custom-generate-function-path mathturn_gym.neighbors.slime.custom_generate
    --prompt-data train.jsonl --input-key prompt --metadata-key metadata     # written by `write_dataset`
    --custom-config-path mathturn.yaml

where `mathturn.yaml` holds the environment's settings: `mathturn: {num_turns: 4, max_completion_tokens: 1024}`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from mathturn_gym.base.files import write_atomically
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.errors import MissingDependencyError
from mathturn_gym.neighbors.episodes import (
    EpisodePlayer,
    chosen_problems,
    completion_of,
    problem_from_json,
    problem_to_json,
)
from mathturn_gym.neighbors.export import to_verl
from mathturn_gym.problems import ProblemsLike
from mathturn_gym.types import Completion, Episode, Ids

# slime calls a function for each sample: environments are kept here from call to call.
_PLAYERS: dict[tuple[str, int], EpisodePlayer] = {}


class _AbortedError(Exception):
    """The engine ended a generation to be given new weights; slime plays the sample again."""


async def custom_generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Plays one episode and puts it into slime's sample.

    Ids go to the router and come back from it; nothing is encoded again. `loss_mask` is 0 on feedback, `reward` is the
    return, and the rewards per turn are in `metadata["turn_scores"]`.

    Args:
        args: slime's arguments; `args.mathturn` holds `env_id`, `discount`, and keywords of `gym.make`.
        sample: slime's sample; `metadata["problem"]` is the problem.
        sampling_params: slime's; the budget of each turn is put in.

    Returns:
        The sample.

    Raises:
        InvalidValueError: the sample has no problem, or a setting is outside what is allowed.
        MissingDependencyError: slime is not installed.
    """
    try:
        from slime.rollout.sglang_rollout import GenerateState
        from slime.utils.http_utils import post
    except ImportError as error:
        raise MissingDependencyError(
            f"slime cannot be loaded ({error}): install it from https://github.com/THUDM/slime"
        ) from error
    player = _player(args, GenerateState(args).tokenizer)
    problem = problem_from_json((sample.metadata or {}).get("problem"))
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    versions: list[str] = []

    async def generate(context: Ids, max_tokens: int) -> Completion:
        limited = {**sampling_params, "max_new_tokens": max_tokens}
        payload = {"input_ids": context.tolist(), "sampling_params": limited, "return_logprob": True}
        meta = (await post(url, payload))["meta_info"]
        if meta["finish_reason"]["type"] == "abort":
            raise _AbortedError
        # Not every SGLang reports its version.
        versions.extend([meta["weight_version"]] if "weight_version" in meta else [])
        found = meta.get("output_token_logprobs", [])
        return completion_of([one[1] for one in found], [one[0] for one in found], max_tokens, player.ends)

    try:
        episode = await player.play(problem, generate, index=sample.index or 0)
    except _AbortedError:
        sample.status = type(sample).Status.ABORTED
        return sample
    _fill(sample, episode, player, versions)
    return sample


def _fill(sample: Any, episode: Episode, player: EpisodePlayer, versions: list[str]) -> None:
    (row,) = to_verl([episode], discount=player.discount)  # the same stream; slime has other names for its parts
    sample.tokens = row["prompt_ids"] + row["response_ids"]
    sample.response_length = len(row["response_ids"])
    sample.response = player.decode(np.array(row["response_ids"], np.int64))
    sample.loss_mask = row["response_mask"]
    # Log-probs of the engine that sampled: with them slime can correct for its difference to the trainer.
    sample.rollout_log_probs = row["response_logprobs"]
    sample.reward = row["reward_score"]
    sample.weight_versions = [*sample.weight_versions, *versions]
    sample.metadata = {**sample.metadata, **row["extra_fields"]}
    statuses = type(sample).Status
    sample.status = statuses.TRUNCATED if episode.truncated else statuses.COMPLETED


def _player(args: Any, tokenizer: Any) -> EpisodePlayer:
    settings = dict(getattr(args, "mathturn", None) or {})
    key = json.dumps(settings, sort_keys=True, default=repr), id(tokenizer)
    if key not in _PLAYERS:
        env_id = settings.pop("env_id", "MathMultiTurnUntilCorrect-v0")
        discount = settings.pop("discount", 1.0)
        _PLAYERS[key] = EpisodePlayer(EnvConfig(env_id, **settings), tokenizer, discount)
    return _PLAYERS[key]


def dataset_rows(problems: ProblemsLike, size: int | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of slime's prompt data, each with its whole problem; see `chosen_problems` for the arguments."""
    return [
        {
            "prompt": [{"role": "user", "content": problem.prompt}],
            "label": problem.gold[0],
            "metadata": {"problem_id": problem.id, "problem": problem_to_json(problem)},
        }
        for problem in chosen_problems(problems, size, seed)
    ]


def write_dataset(path: str | Path, problems: ProblemsLike, size: int | None = None, seed: int = 0) -> None:
    """Writes `dataset_rows`, a JSON line each."""
    rows = dataset_rows(problems, size, seed)
    write_atomically(Path(path), "".join(json.dumps(row) + "\n" for row in rows))
