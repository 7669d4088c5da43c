"""What a step of the environment costs, as ratios to decoding the completion (which no environment can avoid).

    python benchmarks/env_step.py [--tokenizer FOLDER_OR_NAME] [--out runs/benchmarks/env_step.json]

For a completion of 1,024 tokens that ends in an integer answer it measures, interleaved in one process:
`tokenizer.decode(completion)` alone; `env.step` of the bare environment; `env.step` through `gym.make`, with the
checks that it adds; and a step in a context of 8,192 tokens against one of 512. Then an episode of 1,600 short turns, each
answered with a text that was never said before: the last 400 against the first 400 (what grows is the copy of the
observation, which has all ids so far). Medians; machines are noisy, ratios less.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.types import Ids, Problem

QWEN = Path(__file__).resolve().parents[2] / "shared" / "golden" / "real" / "tokenizers" / "qwen2.5"
LIMITS = {"step / decode": 1.3, "gym.make / bare": 1.1, "8192 / 512 context": 1.2, "late / early turns": 1.5}
TURNS, PART = 1600, 400


def completion_of(dialogue: Dialogue, size: int) -> Ids:
    """`size` token ids of varied English and mathematics that end in a boxed integer and the end of turn."""
    rng = np.random.default_rng(0)
    sentence = "we know that the sum of both numbers is even so x must be larger than 7 and 3x + 4 = 19 gives"
    text = " ".join(rng.choice(sentence.split(" "), size=4 * size))
    end = dialogue.tokenizer(" The answer is \\boxed{42}.", add_special_tokens=False)["input_ids"]
    end = [*end, *dialogue.end_of_turn]
    body = dialogue.tokenizer(text, add_special_tokens=False)["input_ids"][: size - len(end)]
    return np.array([*body, *end], np.int64)


def make(tokenizer: str, prompt_ids: int, *, bare: bool) -> tuple[gym.Env[Ids, Ids], Dialogue]:
    """An environment whose prompt has about `prompt_ids` tokens, and that takes any number of turns."""
    text = "Add these numbers: " + " 7" * (prompt_ids // 2)
    env = gym.make(
        "MathMultiTurn-v0",
        problems=[Problem("benchmark/1", text, "41")],
        tokenizer=tokenizer,
        num_turns=2,
        max_context_tokens=65536,
        disable_env_checker=bare,
    )
    return (env.unwrapped if bare else env), env.unwrapped.dialogue  # type: ignore[attr-defined]


def interleaved(actions: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each action, `repeats` times, in turn, so that a slow moment of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    gc.disable()
    for _ in range(repeats):
        for name, action in actions.items():
            times[name].append(action())
    gc.enable()
    return times


def timed_step(env: gym.Env[Ids, Ids], action: Ids) -> Callable[[], float]:
    """One first step; only the step is timed, not the way back to the episode's begin."""
    env.reset(seed=0)
    state = env.unwrapped.get_state()  # type: ignore[attr-defined]

    def run() -> float:
        env.unwrapped.set_state(state)  # type: ignore[attr-defined]
        start = time.perf_counter()
        env.step(action)
        return time.perf_counter() - start

    return run


def measure(tokenizer: str, size: int, repeats: int) -> dict[str, float]:
    """Median microseconds of each action."""
    bare, dialogue = make(tokenizer, 512, bare=True)
    wrapped, _ = make(tokenizer, 512, bare=False)
    long, _ = make(tokenizer, 8192, bare=True)
    action, hf = completion_of(dialogue, size), dialogue.tokenizer

    def decode() -> float:
        start = time.perf_counter()
        hf.decode(action)
        return time.perf_counter() - start

    actions = {
        "decode": decode,
        "step": timed_step(bare, action),
        "step, gym.make": timed_step(wrapped, action),
        "step, 8192 context": timed_step(long, action),
    }
    interleaved(actions, 20)  # warm: caches, first-call checks
    return {name: float(np.median(times)) * 1e6 for name, times in interleaved(actions, repeats).items()}


def measure_turns(tokenizer: str) -> dict[str, float]:
    """Median microseconds of a step, early and late in a long episode."""
    env = gym.make(
        "MathMultiTurn-v0",
        problems=[Problem("benchmark/1", "6*7=?", "42")],
        tokenizer=tokenizer,
        num_turns=TURNS,
        max_completion_tokens=32,
        feedback=lambda context: f"No, not after {context.turn + 1} tries.",
        disable_env_checker=True,
    ).unwrapped
    env.reset(seed=0)
    dialogue: Dialogue = env.dialogue  # type: ignore[attr-defined]
    action = completion_of(dialogue, 24)
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        env.step(action)
        times.append(time.perf_counter() - start)
    return {
        "step, turns 1 to 400": float(np.median(times[:PART])) * 1e6,
        "step, turns 1201 to 1600": float(np.median(times[-PART:])) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default=str(QWEN) if QWEN.is_dir() else "builtin", help="a chat tokenizer")
    parser.add_argument("--size", type=int, default=1024, help="tokens of the completion")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/env_step.json"))
    args = parser.parse_args()
    medians = {**measure(args.tokenizer, args.size, args.repeats), **measure_turns(args.tokenizer)}
    ratios = {
        "step / decode": medians["step"] / medians["decode"],
        "gym.make / bare": medians["step, gym.make"] / medians["step"],
        "8192 / 512 context": medians["step, 8192 context"] / medians["step"],
        "late / early turns": medians["step, turns 1201 to 1600"] / medians["step, turns 1 to 400"],
    }
    for name, value in medians.items():
        print(f"{name:26} {value:9.1f} µs")
    for name, value in ratios.items():
        print(f"{name:26} {value:9.3f}   (at most {LIMITS[name]}) {'ok' if value <= LIMITS[name] else 'OVER'}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"tokenizer": Path(args.tokenizer).name, "size": args.size, "microseconds": medians, "ratios": ratios}
    args.out.write_text(json.dumps({**report, "python": platform.python_version()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
