"""Counts the package's function calls in a single step of the environment, and in building the configuration of a run.

    python benchmarks/walks.py [--show step] [--out runs/benchmarks/walks.json]

A reader who follows one completion has to open every function and file that it passes through. This benchmark traces four
walks with `sys.setprofile`, after a first pass that fills the caches:

    step             one `env.step` with a verifier function that returns a verdict
    bool-verifier    one that returns a bool: the environment looks for the answer itself
    default-verifier one `env.step` with the built-in verifier
    set              the configuration of `mathturn train lins --set optimization.learning_rate=1e-3`

For each it prints package calls, distinct functions, files, and file changes (calls of a function in another file than the
call before). A comprehension counts with the function it stands in. The step's answer is wrong and cut off before its end of turn,
so that the step has everything to do. Counts do not depend on the machine. `--show WALK` lists the functions in the order of
their first call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym

import mathturn_gym
from mathturn_gym.env.dialogue import Dialogue, completion_ids
from mathturn_gym.types import Status, Verdict

PACKAGE = str(Path(mathturn_gym.__file__).parent)
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")


@dataclass
class Walk:
    """The package's calls while something ran.

    Args:
        calls: `(file, qualified name)` of each call, in order.
    """

    calls: list[tuple[str, str]] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """Calls, functions, files and file changes."""
        return {
            "calls": len(self.calls),
            "functions": len(set(self.calls)),
            "files": len({file for file, _ in self.calls}),
            "file changes": sum(one[0] != other[0] for one, other in pairwise(self.calls)),
        }


def trace(work: Callable[[], Any]) -> Walk:
    """The walk of a call."""
    walk = Walk()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS:
            walk.calls.append((code.co_filename.removeprefix(PACKAGE + "/"), code.co_qualname))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return walk


def is_right(response: str, gold: tuple[str, ...]) -> bool:
    """The verifier function of the walk."""
    return response in gold


def verdict_of(response: str, gold: tuple[str, ...]) -> Verdict:
    """One that says which answer it read."""
    status = Status.RIGHT if response in gold else Status.WRONG
    return Verdict(status, "compared", answer=response, gold=gold[0], tier="own", rule="own")


def step_walk(**keywords: Any) -> Walk:
    """The second `step` of an episode whose answers are wrong: with feedback that was said before."""
    env: Any = gym.make("MathMultiTurn-v0", disable_env_checker=True, **keywords).unwrapped
    dialogue = Dialogue("builtin")
    wrong = completion_ids(dialogue, r"\boxed{123456}")[: -len(dialogue.end_of_turn)]
    for _ in range(2):
        env.reset(seed=0)
        env.step(wrong)
        walk = trace(lambda: env.step(wrong))
    return walk


def set_walk() -> Walk:
    """The configuration of a run of which one setting is given."""
    from mathturn_gym.baselines.overrides import parse_settings
    from mathturn_gym.baselines.tasks import load_task

    def build() -> None:
        load_task("lins").config(None, parse_settings(["optimization.learning_rate=1e-3"]))

    build()
    return trace(build)


WALKS: dict[str, Callable[[], Walk]] = {
    "step": lambda: step_walk(verifier=verdict_of),
    "bool-verifier": lambda: step_walk(verifier=is_right),
    "default-verifier": step_walk,
    "set": set_walk,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", choices=WALKS, help="list the functions of a walk")
    parser.add_argument("--out", type=Path, help="also write the counts there, as JSON")
    arguments = parser.parse_args()
    walks = {name: make() for name, make in WALKS.items()}
    print(f"{'walk':18}{'calls':>8}{'functions':>11}{'files':>7}{'file changes':>14}")
    for name, walk in walks.items():
        calls, functions, files, changes = walk.counts().values()
        print(f"{name:18}{calls:8}{functions:11}{files:7}{changes:14}")
    if arguments.show:
        for file, function in dict.fromkeys(walks[arguments.show].calls):
            print(f"{walks[arguments.show].calls.count((file, function)):4} x  {file}  {function}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({name: walk.counts() for name, walk in walks.items()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
