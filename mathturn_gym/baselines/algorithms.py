"""Every algorithm that can be compared, and one way to run each of them on each task.

    run("grpo", "lins", "runs/grpo-lins-0", seed=0, tokens=100_000)

leaves, besides the files of the algorithm's own run, the two that comparisons read:

    metrics.jsonl   a line per iteration: iteration, episodes, tokens, cpu_s, and validation/acc@k where evaluated
    result.json     written last: what was run, what it used, how it ended, and its accuracy on the test split
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from mathturn_gym.errors import InvalidValueError, raise_unknown_name

__all__ = ["ALGORITHMS", "TEST_EPISODES", "Algorithm", "play_test", "result_of", "run", "write_result"]

TEST_EPISODES: Final = 1024
"""Episodes on the test split with which a run ends."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm.

    Args:
        title: As figures call it.
        kind: "language model": trains a causal language model on whole completions; "classic": one id per step.
        about: What it does, in a line.
    """

    title: str
    kind: Literal["language model", "classic"]
    about: str


_LM: Final = "language model"
ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    "reinforce": Algorithm("REINFORCE", _LM, "returns per turn against a running mean"),
    "reinforce_pp": Algorithm("REINFORCE++", _LM, "returns per turn, normalized over the batch"),
    "rloo": Algorithm("RLOO", _LM, "returns per turn against the rest of the group"),
    "grpo": Algorithm("GRPO", _LM, "episode returns, normalized within the group"),
    "dr_grpo": Algorithm("Dr. GRPO", _LM, "episode returns, centered within the group"),
    "gspo": Algorithm("GSPO", _LM, "GRPO with a ratio per episode"),
    "ppo": Algorithm("PPO", _LM, "a critic, GAE over ids"),
    "turn_ppo": Algorithm("turn PPO", _LM, "a critic, GAE over turns"),
    "rft": Algorithm("RFT", _LM, "supervised on the policy's own right answers"),
    "maskable_ppo": Algorithm("MaskablePPO", "classic", "sb3-contrib, ids masked"),
    "sb3_ppo": Algorithm("PPO (SB3)", "classic", "stable-baselines3"),
    "sb3_a2c": Algorithm("A2C (SB3)", "classic", "stable-baselines3"),
    "sb3_dqn": Algorithm("DQN (SB3)", "classic", "stable-baselines3"),
    "qr_dqn": Algorithm("QR-DQN", "classic", "sb3-contrib"),
    "trpo": Algorithm("TRPO", "classic", "sb3-contrib"),
    "recurrent_ppo": Algorithm("RecurrentPPO", "classic", "sb3-contrib, an LSTM"),
}


def run(
    algorithm: str,
    task: str,
    run_dir: str | Path,
    *,
    seed: int = 0,
    tokens: int | None = None,
    cpu_seconds: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    settings: Mapping[str, Any] | None = None,
    on_progress: Callable[[Mapping[str, float]], None] | None = None,
) -> dict[str, Any] | None:
    """Trains one algorithm on one task within a budget, and plays the test split once at the end.

    Args:
        algorithm: A key of `ALGORITHMS`.
        task: A key of `mathturn_gym.baselines.config.PRESETS`.
        run_dir: Folder to write.
        seed: Determines everything but the seconds.
        tokens: The run ends with the iteration in which this many ids have been sampled.
        cpu_seconds: The same for CPU seconds of training; the first limit that is reached ends the run.
        resume: Go on from the folder's checkpoint (classic algorithms begin again).
        overwrite: Delete an earlier run in the folder.
        settings: Fields of `TrainConfig`, or of a classic algorithm's constructor, that differ from the preset's.
        on_progress: Called with each iteration's metrics.

    Returns:
        The content of result.json; None where Ctrl-C ended the run, which can be resumed.

    Raises:
        InvalidValueError: an unknown name, or a setting outside its range.
    """
    if algorithm not in ALGORITHMS:
        raise_unknown_name("algorithm", algorithm, ALGORITHMS)
    budget: dict[str, Any] = {"tokens": tokens, "cpu_seconds": cpu_seconds}
    if ALGORITHMS[algorithm].kind == "classic":
        from mathturn_gym.baselines.classic import run_classic

        return run_classic(
            algorithm,
            task,
            run_dir,
            seed=seed,
            **budget,
            overwrite=overwrite or resume,
            settings=settings,
            on_progress=on_progress,
        )
    return _run_language_model(
        algorithm, task, run_dir, seed, budget, resume, overwrite, dict(settings or {}), on_progress
    )


def _run_language_model(
    algorithm: str,
    task: str,
    run_dir: str | Path,
    seed: int,
    budget: Mapping[str, Any],
    resume: bool,
    overwrite: bool,
    settings: dict[str, Any],
    on_progress: Callable[[Mapping[str, float]], None] | None,
) -> dict[str, Any] | None:
    from mathturn_gym.baselines.config import preset
    from mathturn_gym.baselines.training import train

    fixed = sorted({"run_dir", "algorithm", "seed", "budget_tokens", "budget_cpu_s"} & set(settings))
    if fixed:
        raise InvalidValueError(f"settings must not hold {', '.join(fixed)}: they have arguments of their own")
    limits = {"budget_tokens": budget["tokens"], "budget_cpu_s": budget["cpu_seconds"]}
    if any(limit is not None for limit in limits.values()):
        settings = {"episodes": None, **settings}
    config = preset(task, str(run_dir), algorithm=algorithm, seed=seed, **limits, **settings)
    done = train(config, resume=resume, overwrite=overwrite, on_progress=on_progress)
    if done.interrupted:
        return None
    test = None if done.status == "diverged" else play_test(config, done.policy)
    used = {"episodes": done.episodes, "tokens": done.tokens, "cpu_s": done.cpu_s}
    result = result_of(algorithm, task, seed, budget, done.status, done.message, used, test)
    write_result(run_dir, result)
    return result


def play_test(config: Any, policy: Any) -> dict[str, float]:
    """Accuracy by turn on the test split of a config's task, and ids per episode.

    Args:
        config: A `TrainConfig`.
        policy: Any policy over its tokenizer's ids.
    """
    import numpy as np

    from mathturn_gym.baselines.trainer import accuracy_by_turn, make_vec
    from mathturn_gym.dialogue import load_tokenizer
    from mathturn_gym.rollout import collect
    from mathturn_gym.seeding import derive_seed

    tokenizer = getattr(policy, "tokenizer", None) or load_tokenizer("builtin")
    env = make_vec(config.env_id, 128, tokenizer=tokenizer, **config.env_kwargs("test"))
    try:
        episodes = collect(env, policy, TEST_EPISODES, seed=derive_seed(config.seed, "test"))
    finally:
        env.close()
    return {
        **accuracy_by_turn(episodes, config.num_turns),
        "episodes": len(episodes),
        "tokens_per_episode": float(np.mean([episode.loss_mask.sum() for episode in episodes])),
    }


def result_of(
    algorithm: str,
    task: str,
    seed: int,
    budget: Mapping[str, Any],
    status: str,
    message: str,
    used: Mapping[str, Any],
    test: Mapping[str, float] | None,
) -> dict[str, Any]:
    """What result.json holds; the same for every algorithm.

    Args:
        algorithm: Its name.
        task: The task's name.
        seed: The run's.
        budget: "tokens" and "cpu_seconds", None where unlimited.
        status: "finished", "stopped_early" or "diverged".
        message: What there is to say about the status.
        used: "episodes", "tokens" and "cpu_s".
        test: Of `play_test`; None where the run diverged.
    """
    return {
        "algorithm": algorithm,
        "task": task,
        "seed": seed,
        "status": status,
        "message": message,
        "episodes": int(used["episodes"]),
        "tokens": int(used["tokens"]),
        "cpu_s": float(used["cpu_s"]),
        "budget_tokens": budget["tokens"],
        "budget_cpu_s": budget["cpu_seconds"],
        "test": None if test is None else dict(test),
    }


def write_result(run_dir: str | Path, result: Mapping[str, Any]) -> None:
    """Writes result.json; its presence means that the run is done."""
    from mathturn_gym._files import write_atomically

    write_atomically(Path(run_dir) / "result.json", json.dumps(result, indent=2) + "\n")
