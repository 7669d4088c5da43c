"""One coroutine for trainers that give a `base_url` and record the tokens themselves, behind it.

AReaL's agent workflow, rLLM, slime, NeMo Gym, SkyRL and ART meet an environment so: a proxy speaks OpenAI's chat protocol and keeps
the ids that were sampled. What is played here are texts; the reward goes back to the host, and with it the metrics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from mathturn_gym.env.config import EnvConfig
from mathturn_gym.neighbors.episodes import EpisodePlayer, problem_from_json
from mathturn_gym.policies.chat import ChatPolicy
from mathturn_gym.types import Completion, Ids, Problem

_DEFAULT: Final = EnvConfig("MathMultiTurnUntilCorrect-v0", max_completion_tokens=2**17)
"""Ids of the built-in tokenizer are a byte or two: the model's own budget ends a turn, not this one."""


async def play(
    problem: Problem | Mapping[str, Any] | str,
    base_url: str,
    api_key: str | None = None,
    *,
    model: str,
    env: EnvConfig = _DEFAULT,
    discount: float = 1.0,
    **sampling: Any,
) -> tuple[float, dict[str, float]]:
    """Plays one episode in chat messages.

    Args:
        problem: A problem, its JSON text (`problem_to_json`), or a row that has the text in its column `problem`.
        base_url: As OpenAI's clients take it: "/chat/completions" is added.
        api_key: Sent as a bearer token.
        model: The model's name there.
        env: The environment. Its budgets are counted in ids of the built-in tokenizer, so `max_completion_tokens` must be large.
            Equal configs share tokenizer and verifier.
        discount: Of the return, per turn.
        **sampling: Fields of each request: `max_tokens`, `temperature`, ….

    Returns:
        The return of the episode, and `solved`, `solved_first`, `turns`.

    Raises:
        InvalidValueError: a value outside its range, or another problem under the same id.
        MissingDependencyError: httpx2 is not installed.
        PolicyError: the endpoint refuses, or does not answer after all retries.
    """
    if not isinstance(problem, Problem):
        problem = problem_from_json(problem["problem"] if isinstance(problem, Mapping) else problem)
    # The budget of a turn is the environment's: it is no model's, and stays here.
    policy = ChatPolicy(base_url, model, api_key=api_key, request={"max_tokens": None, **sampling})

    async def generate(context: Ids, max_tokens: int) -> Completion:
        return await policy.acomplete(context, max_tokens=max_tokens)

    episode = await _player(env, discount).play(problem, generate)
    returns = episode.returns
    value = 0.0 if returns is None else float(returns[0])
    first = episode.verdicts[0]
    metrics = {
        "solved": float(episode.solved),
        "solved_first": float(first is not None and first.correct),
        "turns": float(episode.num_turns),
    }
    return value, metrics


_PLAYERS: Final[deque[tuple[EnvConfig, float, EpisodePlayer]]] = deque(maxlen=8)


def _player(env: EnvConfig, discount: float) -> EpisodePlayer:
    """The player of these settings; made once, because a host calls `play` for every episode."""
    for config, one, player in _PLAYERS:
        if (config, one) == (env, discount):
            return player
    _PLAYERS.append((env, discount, EpisodePlayer(env, "builtin", discount)))
    return _PLAYERS[-1][-1]
