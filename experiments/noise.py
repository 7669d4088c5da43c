"""Unreliable verdicts that are also observations: does a policy repeat its answer where Bayes says so?

    python experiments/noise.py --tables     # policies with a table: all places and shares, seconds
    python experiments/noise.py              # transformers: every run that is not there yet
    python experiments/noise.py --report     # the tables of what is there

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
import torch
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


PLACES: Final = ("reward", "feedback", "both")
SHARES: Final = (0.0, 0.1, 0.3, 0.5)
STEPS: Final = (100, 300, 1_000)


def trained_tables(seeds: int) -> list[dict[str, Any]]:
    """Policies with a probability for each first guess and each pair of guesses, for all places and shares at once.

    64 episodes a step, credit for the turn against the mean of the batch, Adam at .05: as the sampled tables of asking.py.
    The probability of a repeat is exact: it is in the table.
    """
    cells = [Cell(place, fn, fp) for place in PLACES for fn in SHARES for fp in SHARES]
    rng = np.random.default_rng(0)
    size = len(cells) * seeds
    rates = np.repeat(
        [[[c.negatives, c.positives]] * 2 for c in cells], seeds, 0
    )  # [policy, reward or feedback, fn or fp]
    for k, place in enumerate(PLACES[:2]):
        others = np.repeat([c.place not in (place, "both") for c in cells], seeds)
        rates[others, k] = 0.0
    logits = [torch.from_numpy(0.1 * rng.normal(size=shape)) for shape in ((size, HIGHEST), (size, HIGHEST, HIGHEST))]
    for one in logits:
        one.requires_grad_()
    optimizer = torch.optim.Adam(logits, lr=0.05)
    prior = RATIO ** np.arange(HIGHEST) / (RATIO ** np.arange(HIGHEST)).sum()
    rows, found = np.arange(size)[:, None], []

    def drawn(chances: Any) -> Any:
        uniform = rng.random((size, 64, 1))
        return np.minimum((chances.cumsum(-1) < uniform).sum(-1), HIGHEST - 1)

    def seen(right: Any, place: int, coin: Any) -> Any:
        return right ^ (coin < np.where(right, rates[:, place, :1], rates[:, place, 1:]))

    def gain(chosen: torch.Tensor, guesses: Any, rewards: Any, live: Any) -> torch.Tensor:
        mean = (rewards * live).sum(1, keepdims=True) / np.maximum(1, live.sum(1, keepdims=True))
        own = (rewards - mean) * live
        own = own / (np.sqrt((own**2).sum(1, keepdims=True) / np.maximum(1, live.sum(1, keepdims=True))) + 1e-8)
        likely = chosen.log_softmax(2).gather(2, torch.from_numpy(guesses)[..., None])[..., 0]
        return (likely * torch.from_numpy(own)).sum() / 64

    for step in range(1, max(STEPS) + 1):
        numbers = rng.choice(HIGHEST, (size, 64), p=prior)
        first_of, second_of = (one.detach().softmax(-1).numpy() for one in logits)
        first = drawn(first_of[:, None, :].repeat(64, 1))
        second = drawn(second_of[rows, first])
        coins = rng.random((2, size, 64))
        live = ~seen(first == numbers, 1, coins[0])  # told that it is wrong
        rewards = [seen(guess == numbers, 0, coin) for guess, coin in ((first, coins[0]), (second, coins[1]))]
        optimizer.zero_grad()
        picked = logits[1][torch.from_numpy(rows), torch.from_numpy(first)]
        loss = gain(logits[0][:, None, :].expand(-1, 64, -1), first, rewards[0], np.ones_like(live))
        (-loss - gain(picked, second, rewards[1], live)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step in STEPS:
            repeats, likeliest = (one.detach().softmax(-1).numpy() for one in (logits[1][:, 0], logits[0]))
            found += [
                {
                    "cell": cells[at // seeds].name,
                    "arm": f"table, {step} steps",
                    "seed": at % seeds,
                    "first is likeliest": round(float(likeliest[at, 0]), 4),
                    "repeats": round(float(repeats[at, 0]), 4),
                }
                for at in range(size)
            ]
    return found


def grid(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables' repeats by place and share, in Markdown; bold where Bayes repeats."""
    lines = []
    for step in STEPS:
        lines += [
            "",
            f"**After {step} steps**",
            "",
            "| false in | fn | " + " | ".join(f"fp {s:g}" for s in SHARES) + " |",
        ]
        lines.append("|---" * (2 + len(SHARES)) + "|")
        for place in PLACES:
            for negatives in SHARES:
                texts = []
                for cell in (Cell(place, negatives, positives) for positives in SHARES):
                    own = [r["repeats"] for r in rows if (r["cell"], r["arm"]) == (cell.name, f"table, {step} steps")]
                    text = f"{np.mean(own):.2f}" if own else "–"
                    stays, changes = cell.beliefs()
                    texts.append(f"**{text}**" if stays > changes else text)
                lines.append(f"| {place} | {negatives:g} | {' | '.join(texts)} |")
    return "\n".join(lines)


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
    parser.add_argument("--cells", nargs="+", default=[cell.name for cell in CELLS])
    parser.add_argument("--tables", action="store_true", help="policies with a table, in place of transformers")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text(encoding="utf-8"))["rows"] if options.rows.exists() else []
    jobs = [(cell, "trained", seed) for seed in options.seeds for cell in CELLS if cell.name in options.cells]
    jobs = [] if options.report else [(CELLS[0], UNTRAINED, options.seeds[0]), *jobs]
    for those in [trained_tables(10)] if options.tables else ([one(*job, options.out)] for job in jobs):
        keys = {(row["cell"], row["arm"], row["seed"]) for row in those}
        rows = [row for row in rows if (row["cell"], row["arm"], row["seed"]) not in keys] + those
        write_json(options.rows, {"beliefs": {c.name: c.beliefs() for c in CELLS}, "rows": rows})
    print(grid(rows))
    print(report(rows))


if __name__ == "__main__":
    main()
