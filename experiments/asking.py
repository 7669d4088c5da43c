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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from listeners import Asker, prior_of
from rows import kept_row
from seeds import shown

from mathturn_gym.base.files import write_json
from mathturn_gym.baselines import load_task, train
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.baselines.tiny import PHRASES, Shape, make_tiny_model, train_tokenizer
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.feedback import AboveBelow
from mathturn_gym.episodes.losses import token_logprobs
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.seeding import derive_seed
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


class Table:
    """A policy with a probability for each history, that is, for each sequence of (guess, hint) pairs.

    Level k of the tree has (2N)^k histories; history h, guess g and hint u (0 above, 1 below) lead to (h N + g) 2 + u.
    `reach[k][h, n]` is the probability that n is hidden and that the hints of history h follow its guesses.
    """

    def __init__(self, setting: Setting, seed: int) -> None:
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
        start = torch.Generator().manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.logits = [
            (0.1 * torch.randn(len(one), n, generator=start, dtype=torch.float64)).requires_grad_()
            for one in self.reach
        ]

    def value(self, *, later: bool = True) -> tuple[torch.Tensor, float]:
        """What exact gradients ascend, and the exact value. Without `later`, no turn is credited with those after it."""
        weight, objective, value = torch.ones(1, dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0.0
        for logits, reach in zip(self.logits, self.reach, strict=True):
            chance = logits.softmax(1)
            right = (chance * reach).sum(1)
            objective = objective + ((weight if later else weight.detach()) * right).sum()
            value += float((weight * right).sum().detach())
            weight = (weight[:, None] * chance)[:, :, None].expand(-1, -1, 2).reshape(-1)
        return objective, value

    def play(self, numbers: Any, histories: Any, first: int, chances: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Plays on from histories of level `first`: histories, guesses and rewards by turn; -1 where an episode is over."""
        shape = (len(numbers), self.turns - first)
        seen, guesses, rewards = np.full(shape, -1), np.full(shape, -1), np.zeros(shape)
        live = np.arange(len(numbers))
        for k in range(shape[1]):
            at = histories[live]
            drawn = self.rng.random(len(live))[:, None]
            guess = np.minimum((chances[first + k][at].cumsum(1) < drawn).sum(1), self.n - 1)
            seen[live, k], guesses[live, k] = at, guess
            rewards[live, k] = guess == numbers[live]
            below = (numbers[live] < guess) != (self.rng.random(len(live)) < self.lies)
            histories = histories.copy()
            histories[live] = (at * self.n + guess) * 2 + below
            live = live[guess != numbers[live]]
        return seen, guesses, rewards

    def batch(self, credit: str) -> tuple[list[tuple[Any, Any, Any]], int]:
        """Histories, guesses and advantages by turn of a sampled batch, and its ids."""
        chances = [logits.detach().softmax(1).numpy() for logits in self.logits]
        if credit == "episode":
            numbers = np.repeat(self.rng.choice(self.n, BATCH // GROUP, p=self.prior), GROUP)
        else:
            numbers = self.rng.choice(self.n, BATCH, p=self.prior)
        seen, guesses, rewards = self.play(numbers, np.zeros(BATCH, np.int64), 0, chances)
        played, ids = seen >= 0, int((seen >= 0).sum()) * IDS_PER_GUESS
        returns = rewards[:, ::-1].cumsum(1)[:, ::-1]
        if credit == "branching":
            values = np.zeros((BATCH, self.turns + 1))  # the value after the last turn is 0
            for k in range(self.turns):
                live = np.repeat(np.flatnonzero(played[:, k]), BRANCHES)
                tried, _, won = self.play(numbers[live], seen[live, k], k, chances)
                values[played[:, k], k] = won.sum(1).reshape(-1, BRANCHES).mean(1)
                ids += int((tried >= 0).sum()) * IDS_PER_GUESS
            advantages = rewards + values[:, 1:] - values[:, :-1]
        elif credit == "episode":
            groups = returns[:, 0].reshape(-1, GROUP)
            scaled = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-4)
            advantages = np.repeat(scaled.reshape(-1, 1), self.turns, 1)
        else:  # against the mean of the batch at this turn
            own = rewards if credit == "turn alone" else returns
            advantages = own - (own * played).sum(0) / np.maximum(1, played.sum(0))
        spread = np.sqrt((advantages[played] ** 2).mean()) + 1e-8
        turns = range(self.turns)
        return [
            (seen[played[:, k], k], guesses[played[:, k], k], advantages[played[:, k], k] / spread) for k in turns
        ], ids


def table(setting: Setting, label: str, seed: int) -> dict[str, Any]:
    """Trains a table by exact gradients, or from sampled episodes within a budget of ids; values are exact."""
    policy, used, step, curve = Table(setting, seed), 0, 0, []
    optimizer = torch.optim.Adam(policy.logits, lr=RATE)
    credit, exact = label.partition(", ")[2], label in EXACT
    budget = STEPS if exact else IDS
    places = [budget * k / 20 for k in range(21)]
    while True:
        if used >= places[len(curve)]:
            curve.append([used, policy.value()[1]])
            if len(curve) == len(places):
                break
        optimizer.zero_grad()
        if exact:
            loss, ids = -policy.value(later=EXACT[label])[0], 1
        else:
            turns, ids = policy.batch(credit)
            terms = [
                torch.log_softmax(policy.logits[k][at], 1)[torch.arange(len(at)), guesses] @ torch.from_numpy(gains)
                for k, (at, guesses, gains) in enumerate(turns)
            ]
            loss = -torch.stack(terms).sum() / BATCH
        loss.backward()
        optimizer.step()
        used, step = used + ids, step + 1
    solved = {f"acc@{setting.turns}": curve[-1][1], "first guess": 1.0 + int(policy.logits[0].detach().argmax())}
    return {"setting": setting.name, "arm": label, "seed": seed, **solved, "ids": used, "steps": step, "curve": curve}


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
        (-logprobs[batch.loss_mask].mean()).backward()
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


def main() -> None:
    """Trains, plays, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/asking"))
    parser.add_argument("--rows", type=Path, default=Path("docs/benchmarks/asking.json"))
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--tables", action="store_true", help="policies with a table, in place of transformers")
    parser.add_argument("--settings", nargs="+", default=[setting.name for setting in GRID])
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text(encoding="utf-8"))["rows"] if options.rows.exists() else []
    pairs = [(setting, label) for setting in SETTINGS for label in options.arms]
    if options.tables:
        pairs = [(setting, label) for setting in GRID for label in (*EXACT, *SAMPLED)]
    kept = {(row["setting"], row["arm"], row["seed"]) for row in rows if "curve" in row}
    for seed in [] if options.report else options.seeds:
        for setting, label in pairs:
            if setting.name not in options.settings or (setting.name, label, seed) in kept:
                continue
            row = table(setting, label, seed) if options.tables else one(setting, label, seed, options.out)
            key = (row["setting"], row["arm"], row["seed"])
            rows = [r for r in rows if (r["setting"], r["arm"], r["seed"]) != key] + [row]
            write_json(options.rows, {"bounds": {s.name: s.bounds() for s in GRID}, "rows": rows})
    print(report(rows))


if __name__ == "__main__":
    main()
