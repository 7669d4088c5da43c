"""The agent: one query, `num_turns` turns of observation, reply, verdict and feedback, one `SequenceSample`."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mathturn_gym.env.dialogue import Dialogue, Tokenizer, load_tokenizer
from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.neighbors.areal._modes import collect_original, collect_repaired
from mathturn_gym.neighbors.areal.logs import TrajectoryLog
from mathturn_gym.neighbors.areal.protocol import EnvironmentService, GenerationHyperparameters, Queue
from mathturn_gym.neighbors.areal.sample import SequenceSample


class MathMultiTurnAgent:
    """AReaL's `MathMultiTurnAgent`, as it was (`compat=True`) or with its defects fixed (`compat=False`).

    An agent has no state of its own: one serves any number of trajectories at once.

    Args:
        gconfig: Generation settings: `GenerationHyperparameters`, a mapping of its fields, or any object with
            `new(n=1)` or dataclass with `n`. Observations carry it with `n=1`.
        tokenizer_path: What `load_tokenizer` takes: a folder or hub name, "builtin", or a tokenizer.
        answer_save_path: Folder of the logs, or None for no logs.
        reward_scaling: See `mathturn_gym.env.rewards.turn_reward`.
        reward_bias: See `mathturn_gym.env.rewards.turn_reward`.
        turn_level_discount: Per turn; in [0, 1] with `compat=False`.
        num_turns: Turns of a trajectory; at least 1 with `compat=False`.
        compat: Give what the original gave, to the bit, defects included.
        clock: Seconds since the epoch, for `birth_time`.

    Attributes:
        tokenizer: The tokenizer.
        dialogue: Texts to ids and back, with `compat=False`; None with `compat=True`.
        log: Writes the logs with `compat=False`; None with `compat=True` or without a folder.

    Raises:
        InvalidValueError: with `compat=False`: an argument is outside what is allowed.
        ChatTemplateError: with `compat=False`: the tokenizer has no usable chat template.
    """

    def __init__(
        self,
        gconfig: Any,
        tokenizer_path: str | Path | Tokenizer,
        answer_save_path: str | os.PathLike[str] | None,
        reward_scaling: float = 1.0,
        reward_bias: float = 0.0,
        turn_level_discount: float = 1.0,
        num_turns: int = 5,
        *,
        compat: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.compat = bool(compat)
        self.gconfig: Any = _one_completion(gconfig)
        self.tokenizer: Tokenizer = load_tokenizer(tokenizer_path)
        self.answer_save_path = answer_save_path
        self.reward_scaling = reward_scaling
        self.reward_bias = reward_bias
        self.turn_level_discount = turn_level_discount
        self.num_turns = num_turns
        self.clock = clock
        self.dialogue: Dialogue | None = None
        self.log: TrajectoryLog | None = None
        if not self.compat:
            self._check()
            self.dialogue = Dialogue(self.tokenizer)
            self.log = None if answer_save_path is None else TrajectoryLog(answer_save_path)

    def _check(self) -> None:
        """Raises where an argument is outside what is allowed; the original had no checks."""
        self.reward_scaling = check_float("reward_scaling", self.reward_scaling)
        self.reward_bias = check_float("reward_bias", self.reward_bias)
        self.turn_level_discount = check_float("turn_level_discount", self.turn_level_discount, low=0.0, high=1.0)
        self.num_turns = check_int("num_turns", self.num_turns, low=1)
        path = self.answer_save_path
        if path is not None and not isinstance(path, (str, os.PathLike)):
            raise InvalidValueError(f"answer_save_path must be the path of a folder or None, got {path!r}")
        if path is not None and Path(path).exists() and not Path(path).is_dir():
            raise InvalidValueError(f"answer_save_path must be a folder, but {str(path)!r} is a file")
        if not callable(self.clock):
            raise InvalidValueError(
                f"clock must be a function without arguments that gives seconds, got {self.clock!r}"
            )

    async def collect_trajectory(
        self, prompt: SequenceSample, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
    ) -> list[SequenceSample]:
        """Collects one trajectory.

        Args:
            prompt: One item with `packed_prompts`, and `task_ids` where the sample shall have them.
            env: Judges the answers.
            obs_queue: Gets `(qid, token_ids, gconfig)` per turn.
            act_queue: Gives the reply to each, a `BundledGenerationOutputs` or anything with its attributes.

        Returns:
            One `SequenceSample` of one item with K sequences under each packed key.

        Raises:
            Exception: see `mathturn_gym.neighbors.areal._modes` and `mathturn_gym.neighbors.areal._modes`.
        """
        await env.reset()
        collect = collect_original if self.compat else collect_repaired
        return await collect(self, prompt, env, obs_queue, act_queue)


def _one_completion(gconfig: Any) -> Any:
    """The generation settings with n=1."""
    if isinstance(gconfig, Mapping):
        gconfig = GenerationHyperparameters(**gconfig)
    if hasattr(gconfig, "new"):
        return gconfig.new(n=1)
    if dataclasses.is_dataclass(gconfig) and not isinstance(gconfig, type) and hasattr(gconfig, "n"):
        return dataclasses.replace(gconfig, n=1)
    raise InvalidValueError(
        "gconfig must be GenerationHyperparameters, a mapping of its fields, have new(n=1), or be a dataclass with n,"
        f" got {gconfig!r}"
    )
