"""Unreliable verdicts that are also observations: does a policy repeat its answer where Bayes says so?

    python experiments/noise.py              # every run that is not there yet, then the table
    python experiments/noise.py --report     # the table of what is there

Design and results: docs/studies/noise.md. A hidden number of 1 to 4, each with two fifths of the probability of the one
before it, two turns, feedback that says no more than right or wrong. Rows are written to docs/benchmarks/noise.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from asking import warm_start
from rows import kept_row
from seeds import shown

from mathturn_gym.base.files import write_json
from mathturn_gym.baselines import load_task, train
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.problems.families.guess import GuessNumber
from mathturn_gym.problems.families.registry import generator
from mathturn_gym.seeding import derive_seed
from mathturn_gym.wrappers import load_policy

RATIO: Final = 0.4
HIGHEST: Final = 4
PLAYED: Final = 1_024
EPISODES: Final = 6_400
UNTRAINED: Final = "untrained"


@generator("guess-steep", range(2, 10), shown=(HIGHEST,))
class GuessSteep(GuessNumber):
    """`Guess a number from 1 to 4.`: each number has two fifths of the probability of the one before it."""

    prior = "-steep"

    def number(self, rng: np.random.Generator) -> int:
        """Number k with probability proportional to RATIO^k."""
        weights = RATIO ** np.arange(self.high)
        return 1 + int(rng.choice(self.high, p=weights / weights.sum()))


@dataclass(frozen=True)
class Cell:
    """Where verdicts are false, and how often.

    Args:
        place: "reward", "feedback" or "both" (one coin a turn).
        negatives: Share of right answers that are taken for wrong.
        positives: Share of wrong answers that are taken for right.
    """

    place: str
    negatives: float
    positives: float = 0.0
    highest: int = HIGHEST

    @property
    def name(self) -> str:
        """As in tables and folders."""
        return f"{self.place} {self.negatives:g} {self.positives:g}"

    def env(self) -> dict[str, Any]:
        """Keywords of the environment. A right turn earns 1 and a wrong one 0, by the reward's verdict."""
        places = ("reward", "feedback") if self.place == "both" else (self.place,)
        return {
            "problems": f"guess-steep{HIGHEST}",
            "num_turns": 2,
            "feedback": "plain",
            "verifier": "lenient",
            "max_completion_tokens": 4,
            "reward_bias": -1.0,
            "reward_scaling": 0.5,
            "verdict_noise": {place: [self.negatives, self.positives] for place in places},
        }

    def beliefs(self) -> tuple[float, float]:
        """After the most probable answer and "wrong": probabilities that it is right all the same, and that the next is."""
        negatives, positives = (0.0, 0.0) if self.place == "reward" else (self.negatives, self.positives)
        masses = RATIO ** np.arange(HIGHEST) * np.array([negatives, *[1 - positives] * (HIGHEST - 1)])
        if not masses.sum():
            return 0.0, 0.0
        return float(masses[0] / masses.sum()), float(masses[1] / masses.sum())


CELLS: Final = (
    Cell("feedback", 0.0),
    Cell("feedback", 0.3),
    Cell("feedback", 0.5),
    Cell("both", 0.3),
    Cell("both", 0.5),
    Cell("reward", 0.5),
    Cell("feedback", 0.3, 0.5),
)


def measured(policy: Any, cell: Cell, seed: int) -> dict[str, float]:
    """How often the second answer repeats the first after "wrong", and what is really right."""
    env: Any = EnvConfig(test="test", **cell.env()).make("test", 128, policy=policy)
    episodes = collect(env, policy, PLAYED, seed=derive_seed(seed, "test"))
    env.close()
    told_wrong = [e for e in episodes if e.num_turns == 2]
    likely = [e for e in told_wrong if e.verdicts[0].answer == "1"]
    return {
        "first is likeliest": float(np.mean([e.verdicts[0].answer == "1" for e in episodes])),
        "told wrong": len(told_wrong) / len(episodes),
        "repeats": float(np.mean([e.verdicts[1].answer == "1" for e in likely])) if likely else float("nan"),
        "second is right": float(np.mean([e.verdicts[1].correct for e in likely])) if likely else float("nan"),
        "last is right": float(np.mean([e.verdicts[-1].correct for e in episodes])),
    }


def one(cell: Cell, label: str, seed: int, out: Path) -> dict[str, Any]:
    """Trains one policy and plays it; what an earlier call has done with the same settings is read."""
    model = warm_start(out / "warm" / str(seed), CELLS[0], seed)
    given: dict[str, Any] = {
        "seed": seed,
        "policy.model": str(model),
        "learning_rate": 2e-3,
        "optimization.epochs": 1,
        "optimization.batch_episodes": 64,
        "evaluation.every": 0,
        "evaluation.episodes": 0,
        "evaluation.test_episodes": 0,
        "discount": 0.0,
        **{f"env.{name}": value for name, value in cell.env().items()},
    }
    config = load_task("guess8").config("clipped_reinforce", given, budget={"episodes": EPISODES})
    run_dir = out / cell.name.replace(" ", "-") / f"{label}-{seed}"

    def make() -> dict[str, Any]:
        with cpu_threads(1):
            if label == UNTRAINED:
                run_dir.mkdir(parents=True, exist_ok=True)
                policy: Any = load_policy(config.policy)
            else:
                policy = train(config, run_dir=run_dir, overwrite=True).policy
            return {"cell": cell.name, "arm": label, "seed": seed, **measured(policy, cell, seed)}

    return kept_row(run_dir, {**config.to_json(), "arm": label}, make)


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, in Markdown."""
    lines = ["| verdicts false in | arm | seeds | P(first right) | P(next right) | repeats | last is right |"]
    lines.append("|---" * 7 + "|")
    for cell in CELLS:
        for label in (UNTRAINED, "trained"):
            found = [row for row in rows if (row["cell"], row["arm"]) == (cell.name, label)]
            if found:
                beliefs = [f"{belief:.3f}" for belief in cell.beliefs()]
                figures = [shown([row[name] for row in found]) for name in ("repeats", "last is right")]
                lines.append(f"| {' | '.join([cell.name, label, str(len(found)), *beliefs, *figures])} |")
    return "\n".join(lines)


def main() -> None:
    """Trains, plays, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/noise"))
    parser.add_argument("--rows", type=Path, default=Path("docs/benchmarks/noise.json"))
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text(encoding="utf-8"))["rows"] if options.rows.exists() else []
    jobs = [(cell, "trained", seed) for seed in options.seeds for cell in CELLS]
    for cell, label, seed in [] if options.report else [(CELLS[0], UNTRAINED, options.seeds[0]), *jobs]:
        row = one(cell, label, seed, options.out)
        key = (row["cell"], row["arm"], row["seed"])
        rows = [r for r in rows if (r["cell"], r["arm"], r["seed"]) != key] + [row]
        write_json(options.rows, {"beliefs": {c.name: c.beliefs() for c in CELLS}, "rows": rows})
    print(report(rows))


if __name__ == "__main__":
    main()
