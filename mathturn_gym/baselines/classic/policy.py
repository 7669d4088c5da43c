"""Wraps a policy of stable-baselines3 over single token ids as a `Policy`: contexts of ids in, completions out.

So `collect`, evaluations and comparisons treat it as they treat a language model.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.seeding import uniforms
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.token_level import TokenLevelEnv

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm


def make_token_env(
    env_id: str = "MathMultiTurnUntilCorrect-v0",
    *,
    action_ids: Sequence[int] | None = None,
    allowed_ids: Sequence[int] | None = None,
    window: int = 64,
    pinned: int = 0,
    observation: str = "ids",
    force_end: bool = False,
    **kwargs: Any,
) -> TokenLevelEnv:
    """A `TokenLevelEnv`, with its arguments, around `gym.make(env_id, **kwargs)`, with those of `MathMultiTurnEnv`.

    It has a `spec` of its own, from which it can be made again (also in another process), but no registered id.

    >>> import mathturn_gym
    >>> make_token_env(problems="add1", num_turns=4, max_completion_tokens=8).max_answer_ids
    8
    """
    view: dict[str, Any] = {
        "action_ids": action_ids,
        "allowed_ids": allowed_ids,
        "window": window,
        "pinned": pinned,
        "observation": observation,
        "force_end": force_end,
    }
    # Gymnasium's own checker knows nothing of a turn that is played after several steps, and slows each down.
    env = TokenLevelEnv(gym.make(env_id, disable_env_checker=True, **kwargs), **view)
    env.spec = gym.envs.registration.EnvSpec(
        "mathturn_gym/TokenLevel-v0",
        entry_point=f"{__name__}:make_token_env",
        disable_env_checker=True,
        order_enforce=False,
        kwargs={"env_id": env_id, **view, **kwargs},
    )
    return env


Memory: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""State of an LSTM for one row: hidden and cell, float (layers, width)."""


class Sb3Policy:
    """An algorithm's policy over single ids as a `Policy`.

    A policy with a distribution (PPO, A2C, TRPO, MaskablePPO, RecurrentPPO) is sampled from at temperature 1, each row
    at uniform numbers of its own seed; one that values actions (DQN, QR-DQN) takes the best. Of a recurrent policy the
    memory at the end of each answer is kept, and found again by the ids of the next context; a context that continues
    no answer of this policy's begins with an empty memory, as an episode does in training.

    Args:
        model: A stable-baselines3 or sb3-contrib algorithm, trained or not.
        env: A view like the one that it was made for: its window, actions and masks count, it is never stepped.
        seed: Seeds the rows of `complete(seeds=None)`; None draws from the operating system.

    Raises:
        InvalidValueError: a view with "dict" observations: the last verdict cannot be read off a context.
    """

    def __init__(self, model: BaseAlgorithm, env: TokenLevelEnv, *, seed: int | None = None) -> None:
        if env.observation_space is not env.window.space:
            raise InvalidValueError('Sb3Policy needs a view with observation="ids": a context does not show verdicts')
        self.model = model
        self._env = env
        self._policy: Any = model.policy
        self._rng = np.random.default_rng(seed)
        self._recurrent = hasattr(self._policy, "lstm_actor")
        self._maskable = not self._recurrent and "action_masks" in inspect.signature(model.predict).parameters
        self._memories: dict[bytes, Memory] = {}
        self._lengths: set[int] = set()

    @property
    def tokenizer(self) -> Any:
        """Returns the tokenizer of its environment; other environments of a run use it."""
        return self._env.env.get_wrapper_attr("dialogue").tokenizer

    def complete(
        self, contexts: Sequence[Ids], *, max_tokens: Sequence[int], seeds: Sequence[int] | None = None
    ) -> list[Completion]:
        """Samples a completion for each context.

        Args:
            contexts: B arrays, int64 (L_b,).
            max_tokens: B budgets, >= 0.
            seeds: B seeds; None draws them from the policy's own generator.

        Returns:
            B completions, in order. A row ends with an end-of-turn id, or is `truncated`.

        Raises:
            InvalidValueError: numbers of rows that differ.
            PolicyError: the policy's outputs are not finite.
        """
        if seeds is None:
            seeds = self._rng.integers(0, 2**63 - 1, len(contexts)).tolist()
        # Checked here: `zip` would name none of the three.
        if not len(contexts) == len(max_tokens) == len(seeds):
            raise InvalidValueError(
                f"max_tokens and seeds must have one entry per context ({len(contexts)}), got {len(max_tokens)} and"
                f" {len(seeds)}"
            )
        rows = [_Row(*given) for given in zip(contexts, max_tokens, seeds, strict=True)]
        if self._recurrent:
            for row in rows:
                row.memory = self._remembered(row.context)
        self._policy.set_training_mode(False)
        running = [row for row in rows if row.budget]
        while running:
            for row, chances_A in zip(running, self._chances(running), strict=True):
                row.choose(chances_A, self._env.action_ids)
            running = [row for row in running if not row.over(self._env.stop_ids)]
        if self._recurrent:
            for row in rows:
                self._remember(row)
        return [row.completion(self._env.stop_ids) for row in rows]

    def _chances(self, rows: Sequence[_Row]) -> npt.NDArray[np.float64]:
        """Probabilities of each row's next action, float64 (B, A)."""
        windows = torch.as_tensor(
            np.stack([self._env.window.of(row.ids) for row in rows]), dtype=torch.float32, device=self._policy.device
        )
        with torch.no_grad():
            if hasattr(self._policy, "quantile_net"):
                return self._greedy(self._policy.quantile_net(windows).mean(dim=1))
            if hasattr(self._policy, "q_net"):
                return self._greedy(self._policy.q_net(windows))
            try:
                probs = self._distribution(windows, rows).distribution.probs
            except ValueError as error:  # torch checks what distributions are made of
                raise PolicyError(f"the policy's logits are no distribution: {error}") from error
        return self._finite(probs)

    def _distribution(self, windows: torch.Tensor, rows: Sequence[_Row]) -> Any:
        """Returns the policy's distribution, and advances the state of a recurrent policy."""
        if self._maskable:
            # Grammar, not preference: which ids may follow is known, and is no part of what is learned.
            masks = np.stack([self._env.masks_at(row.chosen, row.budget) for row in rows])
            return self._policy.get_distribution(windows, action_masks=masks)
        if not self._recurrent:
            return self._policy.get_distribution(windows)
        states = tuple(torch.stack([row.memory[part] for row in rows], dim=1) for part in (0, 1))
        # No row begins an episode here: a memory that is empty is empty already.
        starts = torch.zeros(len(rows), device=windows.device)
        distribution, (hidden, cell) = self._policy.get_distribution(windows, states, starts)
        for place, row in enumerate(rows):
            row.memory = hidden[:, place], cell[:, place]
        return distribution

    def _greedy(self, values: torch.Tensor) -> npt.NDArray[np.float64]:
        best = self._finite(values).argmax(axis=1)
        chances: npt.NDArray[np.float64] = np.eye(values.shape[1])[best]
        return chances

    def _finite(self, values: torch.Tensor) -> npt.NDArray[np.float64]:
        found = values.double().cpu().numpy()
        # argmax of NaN is 0: a diverged policy would play on without a word.
        if not np.isfinite(found).all():
            raise PolicyError("the policy's outputs are not finite: its training has diverged")
        return np.asarray(found, np.float64)

    def _remember(self, row: _Row) -> None:
        self._memories[row.ids.tobytes()] = row.memory
        self._lengths.add(len(row.ids))

    def _remembered(self, context: Ids) -> Memory:
        """The memory of the longest answer that this context continues, or an empty one."""
        for length in sorted(self._lengths, reverse=True):
            if length <= len(context):
                # By content: a context is all that a `Policy` gets, and a turn continues the ids of the one before (law
                # 1).
                memory = self._memories.get(context[:length].tobytes())
                if memory is not None:
                    return memory
        layers, _, width = self._policy.lstm_hidden_state_shape
        empty = torch.zeros(layers, width, device=self._policy.device)
        return empty, empty


class _Row:
    """A completion that is being sampled."""

    def __init__(self, context: Ids, budget: int, seed: int) -> None:
        self.context = np.asarray(context, np.int64)
        self.budget = int(budget)
        self.chosen: list[int] = []
        self.memory: Any = None
        self._logprobs: list[float] = []
        self._uniforms = uniforms(int(seed), self.budget)

    @property
    def ids(self) -> Ids:
        """Context and what was chosen so far, int64 (L,)."""
        return np.concatenate([self.context, np.array(self.chosen, np.int64)])

    def choose(self, chances_A: npt.NDArray[np.float64], action_ids: Ids) -> None:
        """Takes the action at which the cumulative distribution passes this step's uniform number."""
        cumulative = np.cumsum(chances_A)
        # Inverse of the cumulative distribution at a number of the row's own stream: batching cannot change a sample
        # (law 4).
        place = int(np.searchsorted(cumulative, self._uniforms[len(self.chosen)] * cumulative[-1], side="right"))
        # Rounding may push a certain action to a log-prob just above 0.
        self._logprobs.append(min(0.0, float(np.log(chances_A[place] / cumulative[-1]))))
        self.chosen.append(int(action_ids[place]))

    def over(self, stop_ids: frozenset[int]) -> bool:
        """True if the completion has ended."""
        return len(self.chosen) == self.budget or self.chosen[-1] in stop_ids

    def completion(self, stop_ids: frozenset[int]) -> Completion:
        """Returns the chosen ids with their log-probs."""
        closed = bool(self.chosen) and self.chosen[-1] in stop_ids
        return Completion(np.array(self.chosen, np.int64), np.array(self._logprobs, np.float32), truncated=not closed)
