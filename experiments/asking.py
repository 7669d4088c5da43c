"""Do policy gradients learn to ask? Hidden numbers whose hints answer the guess: how near a trained policy comes to the best.

    python experiments/asking.py --tables              # policies with a table: a few CPU minutes
    python experiments/asking.py                       # transformers: every run that is not there yet
    python experiments/asking.py --report              # the tables and the picture of what is there

Design, hypotheses and results: docs/studies/asking.md. Exact values are from listeners.py. Each run is kept with its
settings, and is not trained again. Rows are written to docs/benchmarks/asking.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from listeners import Asker, prior_of
from rows import kept_row
from scipy.special import stdtrit
from seeds import shown
from tiny import PHRASES, Shape, make_tiny_model, train_tokenizer

from mathturn_gym.base.files import write_json
from mathturn_gym.baselines import load_task, train
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.feedback import AboveBelow
from mathturn_gym.episodes.losses import token_logprobs
from mathturn_gym.episodes.metrics import Estimate, summarize
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.show.charts import Series, lines, standalone
from mathturn_gym.testing import ScriptedPolicy
from mathturn_gym.wrappers import load_policy

sys.path.append(str(Path(__file__).parent.parent / "examples" / "algorithms"))  # branching

hints_0, hints_10, hints_25, hints_50 = (AboveBelow(lies) for lies in (0.0, 0.1, 0.25, 0.5))
PLAYED: Final = 512
EPISODES: Final = 12_800
UNTRAINED: Final = "untrained"


@dataclass(frozen=True)
class Setting:
    """A hidden number, and how it may be found."""

    prior: str
    highest: int
    turns: int
    lies: int  # per cent

    @property
    def name(self) -> str:
        """As in tables and folders."""
        return f"{self.prior}{self.highest}-{self.turns}-{self.lies}"

    @property
    def problems(self) -> str:
        """The name of the problems."""
        return f"guess{'' if self.prior == 'uniform' else '-' + self.prior}{self.highest}"

    def env(self, feedback: str | None = None) -> dict[str, Any]:
        """Keywords of the environment. A right guess earns 1 and a wrong one 0, so that a return is what listeners.py values."""
        return {
            "problems": self.problems,
            "num_turns": self.turns,
            "feedback": feedback or f"asking:hints_{self.lies}",
            "verifier": "lenient",
            "max_completion_tokens": 4,
            "reward_bias": -1.0,
            "reward_scaling": 0.5,
        }

    def bounds(self) -> dict[str, float]:
        """Exact values."""
        asker = Asker(prior_of(self.prior, self.highest), self.lies / 100)
        return {name: float(getattr(asker, name)(self.turns)) for name in ("optimal", "myopic", "deaf", "bits")}


@dataclass(frozen=True)
class Arm:
    """One way of training; without an algorithm, none."""

    algorithm: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    episodes: int = EPISODES


GRID: Final = (
    *(Setting("geometric", 7, 3, lies) for lies in (0, 10, 25, 50)),
    Setting("uniform", 7, 3, 0),
    Setting("peaks", 15, 4, 0),
)
SETTINGS: Final = (GRID[0], GRID[2])
"""What transformers are trained on."""
ARMS: Final[Mapping[str, Arm]] = {
    UNTRAINED: Arm(),
    "turn alone": Arm("clipped_reinforce", {"discount": 0.0}),
    "from the turn on": Arm("clipped_reinforce", {"discount": 1.0}),
    "episode (GRPO)": Arm("grpo", {"group_size": 8}),
    # A branch plays up to three turns from each context: an episode takes about seven times the ids.
    "branching": Arm("branching:Branching", {"branches": 4}, EPISODES // 8),
}


EXACT: Final = {"exact, turn alone": False, "exact, from the turn on": True}
"""Tables that are trained by exact gradients; whether a turn is credited with later ones."""
SAMPLED: Final = ("sampled, turn alone", "sampled, from the turn on", "sampled, episode", "sampled, branching")
"""Tables that are trained from sampled episodes, by their credit."""
STEPS, IDS, BATCH, GROUP, BRANCHES, RATE = 1_000, 300_000, 64, 8, 4, 0.05
IDS_PER_GUESS: Final = 2
"""A number and the end of the turn."""


class Tables:
    """Policies with a probability for each history, that is, for each sequence of (guess, hint) pairs; one for each seed.

    Level k of the tree has (2N)^k histories; history h, guess g and hint u (0 above, 1 below) lead to (h N + g) 2 + u.
    `reach[k][h, n]` is the probability that n is hidden and that the hints of history h follow its guesses. Arrays of
    play are (seeds, episodes).
    """

    def __init__(self, setting: Setting, seeds: Sequence[int]) -> None:
        n, lies = setting.highest, setting.lies / 100
        self.n, self.lies, self.turns = n, lies, setting.turns
        self.prior = np.array([float(p) for p in prior_of(setting.prior, n)])
        numbers = torch.arange(n)
        wrong = (numbers[None, :] != numbers[:, None]).double()
        above = torch.where(numbers[None, :] > numbers[:, None], 1.0 - lies, float(lies)) * wrong
        hints = torch.stack([above, wrong - above], 1)  # [guess, above or below, number]
        self.reach = [torch.from_numpy(self.prior)[None, :]]
        for _ in range(setting.turns - 1):
            self.reach.append((self.reach[-1][:, None, None, :] * hints).reshape(-1, n))
        starts = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.rows = np.arange(len(seeds))[:, None]
        self.rng = np.random.default_rng(list(seeds))
        self.logits = [
            torch.stack([0.1 * torch.randn(*one.shape, generator=start, dtype=torch.float64) for start in starts])
            for one in self.reach
        ]
        for logits in self.logits:
            logits.requires_grad_()

    def value(self, *, later: bool = True) -> tuple[torch.Tensor, list[float]]:
        """What exact gradients ascend, and the exact values. Without `later`, no turn is credited with those after it."""
        weight = torch.ones(len(self.rows), 1, dtype=torch.float64)
        objective, values = torch.zeros((), dtype=torch.float64), torch.zeros(len(self.rows), dtype=torch.float64)
        for logits, reach in zip(self.logits, self.reach, strict=True):
            chance = logits.softmax(2)
            right = (chance * reach).sum(2)
            objective = objective + ((weight if later else weight.detach()) * right).sum()
            values += (weight * right).sum(1).detach()
            weight = (weight[:, :, None] * chance)[..., None].expand(-1, -1, -1, 2).reshape(len(self.rows), -1)
        return objective, values.tolist()

    def play(self, numbers: Any, histories: Any, first: int, chances: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Plays on from histories of level `first`, -1 for episodes that are over: histories, guesses, rewards by turn."""
        seen, guesses, rewards = [], [], []
        for k in range(first, self.turns):
            live, at = histories >= 0, np.maximum(histories, 0)
            drawn = self.rng.random(numbers.shape)[..., None]
            guess = np.minimum((chances[k][self.rows, at] < drawn).sum(2), self.n - 1)
            right = live & (guess == numbers)
            below = (numbers < guess) != (self.rng.random(numbers.shape) < self.lies)
            seen.append(histories)
            guesses.append(guess)
            rewards.append(right)
            histories = np.where(live & ~right, (at * self.n + guess) * 2 + below, -1)
        return np.stack(seen, 2), np.stack(guesses, 2), np.stack(rewards, 2).astype(float)

    def batch(self, credit: str) -> tuple[list[tuple[Any, Any, Any]], Any]:
        """Histories, guesses and advantages by turn of a sampled batch (0 where an episode is over), and its ids."""
        chances = [logits.detach().softmax(2).numpy().cumsum(2) for logits in self.logits]
        several = GROUP if credit == "episode" else 1
        drawn = self.rng.choice(self.n, (len(self.rows), BATCH // several), p=self.prior)
        numbers = np.repeat(drawn, several, 1)
        seen, guesses, rewards = self.play(numbers, np.zeros_like(numbers), 0, chances)
        played = seen >= 0
        ids = played.sum((1, 2)) * IDS_PER_GUESS
        returns = rewards[..., ::-1].cumsum(2)[..., ::-1]
        if credit == "branching":
            values = np.zeros((*numbers.shape, self.turns + 1))  # the value after the last turn is 0
            for k in range(self.turns):
                tried, _, won = self.play(
                    np.repeat(numbers, BRANCHES, 1), np.repeat(seen[..., k], BRANCHES, 1), k, chances
                )
                values[..., k] = won.sum(2).reshape(*numbers.shape, BRANCHES).mean(2)
                ids = ids + (tried >= 0).sum((1, 2)) * IDS_PER_GUESS
            advantages = rewards + values[..., 1:] - values[..., :-1]
        elif credit == "episode":
            groups = returns[..., 0].reshape(len(self.rows), -1, GROUP)
            scaled = (groups - groups.mean(2, keepdims=True)) / (groups.std(2, ddof=1, keepdims=True) + 1e-4)
            advantages = np.repeat(scaled.reshape(*numbers.shape, 1), self.turns, 2)
        else:  # against the mean of the batch at this turn
            own = rewards if credit == "turn alone" else returns
            advantages = own - (own * played).sum(1, keepdims=True) / np.maximum(1, played.sum(1, keepdims=True))
        advantages = advantages * played
        spread = np.sqrt((advantages**2).sum((1, 2), keepdims=True) / played.sum((1, 2), keepdims=True)) + 1e-8
        advantages = advantages / spread
        return [(np.maximum(seen[..., k], 0), guesses[..., k], advantages[..., k]) for k in range(self.turns)], ids


def tables(setting: Setting, label: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Trains tables by exact gradients, or from sampled episodes within a budget of ids; values are exact."""
    policies, used, step = Tables(setting, seeds), np.zeros(len(seeds)), 0
    optimizer = torch.optim.Adam(policies.logits, lr=RATE)
    credit, exact = label.partition(", ")[2], label in EXACT
    curves: list[list[list[float]]] = [[] for _ in seeds]
    budget, points = STEPS if exact else IDS, 0
    while True:
        if used.mean() >= budget * points / 20:
            for curve, ids, value in zip(curves, used.tolist(), policies.value()[1], strict=True):
                curve.append([ids, round(value, 5)])
            points += 1
            if points == 21:
                break
        optimizer.zero_grad()
        if exact:
            loss, used = -policies.value(later=EXACT[label])[0], used + 1
        else:
            turns, ids = policies.batch(credit)
            rows = torch.from_numpy(policies.rows)
            terms = [
                (policies.logits[k][rows, at].log_softmax(2).gather(2, guesses[..., None])[..., 0] * gains).sum()
                for k, (at, guesses, gains) in enumerate(tuple(map(torch.from_numpy, turn)) for turn in turns)
            ]
            loss, used = -torch.stack(terms).sum() / BATCH, used + ids
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
    guesses = (1 + policies.logits[0].detach()[:, 0].argmax(1)).tolist()
    shared = {"setting": setting.name, "arm": label, "steps": step}
    return [
        {
            **shared,
            "seed": seed,
            f"acc@{setting.turns}": curve[-1][1],
            "first guess": guess,
            "ids": curve[-1][0],
            "curve": curve,
        }
        for seed, guess, curve in zip(seeds, guesses, curves, strict=True)
    ]


def warm_start(path: Path, setting: Any, seed: int) -> Path:
    """A policy that names a number at random in every turn: the format, and nothing of use."""
    if path.is_dir():
        return path
    tokenizer = train_tokenizer([*PHRASES, " Hint: it is above ", " Hint: it is below "])
    model: Any = make_tiny_model(tokenizer, Shape(64, 2, 4, 128), seed=derive_seed("init", seed) % 2**32)
    rng = np.random.default_rng(derive_seed("guesses", seed))
    policy = ScriptedPolicy(lambda text: str(rng.integers(1, setting.highest + 1)), Dialogue(tokenizer))
    config = EnvConfig(test="train", tokenizer=tokenizer, **setting.env())
    env: Any = config.make("test", 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    steps = 60
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min((step + 1) / 6, (steps - step) / steps)
        batch = pack(collect(env, policy, 64, seed=derive_seed("warm", seed, step)))
        logprobs, _ = token_logprobs(model(input_ids=batch.input_ids).logits, batch)
        optimizer.zero_grad()
        (-logprobs[batch.loss_mask].mean()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    env.close()
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def measured(policy: Any, config: Any, seed: int, setting: Setting) -> dict[str, float]:
    """Success within each number of turns, the same without hints, and the first guess."""
    found = {}
    for name, feedback in (("", None), ("no hints ", "plain")):
        env: Any = EnvConfig(test="test", **setting.env(feedback)).make("test", 128, policy=policy)
        episodes = collect(env, policy, PLAYED, seed=derive_seed(seed, "test"))
        env.close()
        figures = summarize(episodes, by=()).figures
        found.update({f"{name}acc@{k}": float(figures[f"acc@{k}"].value or 0) for k in range(1, setting.turns + 1)})
        if not name:
            first = [int(e.verdicts[0].answer or 0) if (e.verdicts[0].answer or "").isdigit() else 0 for e in episodes]
            found["first guess"] = float(np.bincount(first, minlength=2).argmax())
    return found


def one(setting: Setting, label: str, seed: int, out: Path) -> dict[str, Any]:
    """Trains one policy and plays it; what an earlier call has done with the same settings is read."""
    arm = ARMS[label]
    model = warm_start(out / "warm" / f"{setting.prior}{setting.highest}-{seed}", setting, seed)
    rate: dict[str, Any] = {"learning_rate": 1.5e-3}
    rate |= {"evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0}
    env = {f"env.{name}": value for name, value in setting.env().items()}
    given = {"seed": seed, "policy.model": str(model), "optimization.batch_episodes": 64, **rate, **env}
    settings = {**given, **({} if arm.algorithm is None else arm.settings)}
    config = load_task("guess8").config(arm.algorithm, settings, budget={"episodes": arm.episodes})
    run_dir = out / setting.name / f"{label.replace(' ', '-')}-{seed}"

    def make() -> dict[str, Any]:
        used: dict[str, float] = {}
        with cpu_threads(1):
            if arm.algorithm is None:
                run_dir.mkdir(parents=True, exist_ok=True)
                policy: Any = load_policy(config.policy)
            else:
                result = train(config, run_dir=run_dir, overwrite=True)
                policy = result.policy
                branches = result.history[-1].get("train/branch_tokens", 0.0)
                used = {"ids": result.tokens + branches, "cpu_s": result.cpu_s}
            figures = measured(policy, config, seed, setting)
        return {"setting": setting.name, "arm": label, "seed": seed, **figures, **used}

    return kept_row(run_dir, config.to_json(), make)


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """The tables, in Markdown."""
    lines = []
    for setting in GRID:
        of = {(row["arm"], row["seed"]): row for row in rows if row["setting"] == setting.name}
        bounds, last = setting.bounds(), f"acc@{setting.turns}"
        lines += ["", f"**{setting.name}** " + ", ".join(f"{k} {v:.3f}" for k, v in bounds.items()), ""]
        lines += ["| arm | seeds | solved | without hints | above the myopic | ids |", "|---|---|---|---|---|---|"]
        for label in dict.fromkeys(arm for arm, _ in of):
            found = [row for (arm, _), row in sorted(of.items(), key=str) if arm == label]
            if found:
                solved = [row[last] for row in found]
                cells = [
                    label,
                    str(len(found)),
                    shown(solved),
                    shown([row.get(f"no hints {last}", np.nan) for row in found]),
                ]
                above = shown([value - bounds["myopic"] for value in solved], "+")
                ids = np.mean([row.get("ids", 0) for row in found])
                lines.append(f"| {' | '.join([*cells, above, f'{ids:,.0f}'])} |")
    return "\n".join(lines)


def picture(rows: Sequence[Mapping[str, Any]], setting: Setting) -> str:
    """The curves of sampled tables over ids, with the exact values as dashed lines: an SVG document."""
    bounds, series = setting.bounds(), []
    for number, label in enumerate(SAMPLED, 1):
        found = [row["curve"] for row in rows if (row["setting"], row["arm"]) == (setting.name, label)]
        points = []
        for at in range(len(found[0])) if found else ():
            values = np.array([curve[at][1] for curve in found])
            half = float(values.std(ddof=1)) / len(values) ** 0.5 * float(stdtrit(len(values) - 1, 0.975))
            mean = float(values.mean())
            points.append(
                (
                    float(np.mean([curve[at][0] for curve in found])),
                    Estimate(mean, mean - half, mean + half, len(values)),
                )
            )
        series.append(Series(label.removeprefix("sampled, "), points, color=number))
    for number, name in enumerate(("optimal", "myopic"), len(series) + 1):
        level = [(x, Estimate(bounds[name], None, None, 0)) for x in (0.0, float(IDS))]
        series.append(Series(name, level, dashed=True, color=number))
    return standalone(
        lines([one for one in series if one.points], "ids sampled, those of branches included", bands=True)
    )


def main() -> None:
    """Trains, plays, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/asking"))
    parser.add_argument("--rows", type=Path, default=Path("docs/benchmarks/asking.json"))
    parser.add_argument("--picture", type=Path, help="write the curves of the first setting to this file")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--tables", action="store_true", help="policies with a table, in place of transformers")
    parser.add_argument("--settings", nargs="+", default=[setting.name for setting in GRID])
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text(encoding="utf-8"))["rows"] if options.rows.exists() else []
    done = {(row["setting"], row["arm"], row["seed"]) for row in rows}
    found: Iterator[list[dict[str, Any]]]
    if options.report:
        found = iter(())
    elif options.tables:
        grid = [
            (setting, label) for setting in GRID for label in (*EXACT, *SAMPLED) if setting.name in options.settings
        ]
        missing = [(*job, options.seeds) for job in grid if (job[0].name, job[1], options.seeds[0]) not in done]
        found = (tables(*job) for job in missing)
    else:
        jobs = [(setting, label, seed) for seed in options.seeds for setting in SETTINGS for label in options.arms]
        found = ([one(*job, options.out)] for job in jobs if job[0].name in options.settings)
    for those in found:
        keys = {(row["setting"], row["arm"], row["seed"]) for row in those}
        rows = [row for row in rows if (row["setting"], row["arm"], row["seed"]) not in keys] + those
        write_json(options.rows, {"bounds": {s.name: s.bounds() for s in GRID}, "rows": rows})
    if options.picture is not None:
        options.picture.write_text(picture(rows, GRID[0]), encoding="utf-8")
    print(report(rows))


if __name__ == "__main__":
    main()
