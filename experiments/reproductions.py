"""Three published claims about training over turns, reproduced in small: claim, setting, figures with intervals.

    python experiments/reproductions.py                                  # the first three, 5 seeds: about 50 CPU minutes
    python experiments/reproductions.py --claims tool                    # 15 CPU minutes, after its warm starts
    python experiments/reproductions.py --claims correction --seeds 3    # one of them; the rest can follow
    python experiments/reproductions.py --claims unary --task smol-add2 --tokens 20000 --seeds 3

    unary        Liu et al. 2025, arXiv:2507.14295: training on one turn makes retries repeat the answer; training over
                 turns with no more feedback than "wrong" does not, and solves more within k turns
    correction   Kumar et al. 2024, arXiv:2409.12917 (SCoRe): plain training over two turns ends in a policy that does not
                 correct itself; a reward for the improvement and a KL that holds the first turn make one that does
    credit       Zeng et al. 2025, arXiv:2505.11821: credit for each turn learns better than credit for the trajectory
    tool         the same where a turn is of use to the next: a calculator's feedback. The warm starts of
                 experiments/tasks/calculator.toml come first, one per seed (the file has the line)

What each setting leaves out of the paper's stands in docs/reproductions. Every run is kept with its settings, and is not
trained again; differences are paired by seed, with Student's 95 % intervals over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
from rows import kept_row
from seeds import shown

from mathturn_gym.base.files import write_json
from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.env.feedback._calculator import last_calculation
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode
from mathturn_gym.wrappers import load_policy

PLAYED: Final = 1024
UNTRAINED: Final = "untrained"


@dataclass(frozen=True)
class Arm:
    """One way of training; without an algorithm, none."""

    algorithm: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """What is claimed, and the runs that would show it.

    Args:
        text: The claim.
        task: Where it is looked for, unless another task is named.
        tokens: Budget of a run.
        arms: By label.
        figures: Measured on the test split, all arms played alike.
        differences: What should be above 0 if the claim holds here: figure, arm, arm.
        played: Settings of training and test alike.
        afterwards: Differences that were asked for when the figures had been seen.
    """

    text: str
    task: str
    tokens: int
    arms: Mapping[str, Arm]
    figures: Sequence[str]
    differences: Sequence[tuple[str, str, str]]
    played: Mapping[str, Any] = field(default_factory=dict)
    afterwards: Sequence[tuple[str, str, str]] = ()


_CREDIT: Final[Mapping[str, Any]] = {"entropy_weight": 0.005, "learning_rate": 1e-3, "group_size": 4}
_TOOL: Final[Mapping[str, Any]] = {"entropy_weight": 0.0, "group_size": 4}
CLAIMS: Final[Mapping[str, Claim]] = {
    "unary": Claim(
        "training on one turn makes retries repeat; training over turns on 'wrong' alone solves more within k turns",
        "lins",
        60_000,
        {
            UNTRAINED: Arm(),
            "one turn": Arm("clipped_reinforce", {"num_turns": 1}),
            "over turns": Arm("clipped_reinforce", {}),
            "over turns, repeats cost": Arm("clipped_reinforce", {"env.reward_terms": {"repeated_answer": 0.5}}),
        },
        ("acc@1", "acc@K", "repeated_answer"),
        (
            ("repeated_answer", "one turn", UNTRAINED),
            ("repeated_answer", "one turn", "over turns"),
            ("acc@K", "over turns", "one turn"),
            ("acc@K", "over turns, repeats cost", "over turns"),
        ),
        afterwards=(
            ("repeated_answer", "over turns", "over turns, repeats cost"),
            ("acc@K", "over turns, repeats cost", "one turn"),
        ),
    ),
    "correction": Claim(
        "plain training over two turns does not learn to correct; reward for improvement and a first-turn KL do",
        "lins",
        60_000,
        {
            UNTRAINED: Arm(),
            "plain": Arm("clipped_reinforce", {"discount": 1.0}),
            "improvement": Arm("clipped_reinforce", {"discount": 1.0, "env.reward_terms": {"improvement": 1.0}}),
            "improvement, first turn held": Arm(
                "clipped_reinforce",
                {"discount": 1.0, "env.reward_terms": {"improvement": 1.0}, "kl_weight": [0.1, 0.0]},
            ),
        },
        ("right@1", "right@2", "delta_1_2", "wrong_to_right", "right_to_wrong"),
        (
            ("delta_1_2", "plain", UNTRAINED),
            ("delta_1_2", "improvement, first turn held", "plain"),
            ("delta_1_2", "improvement", "plain"),
            ("right@2", "improvement, first turn held", "plain"),
        ),
        # As in the paper, there is a second turn whatever the first was, and nobody says whether that was right.
        {"num_turns": 2, "stop_on_success": False, "env.feedback": "none"},
        afterwards=(
            ("wrong_to_right", "improvement, first turn held", "plain"),
            ("right_to_wrong", "improvement, first turn held", "plain"),
        ),
    ),
    "credit": Claim(
        "credit for each turn learns better than one credit for the whole trajectory",
        "lins",
        60_000,
        {
            UNTRAINED: Arm(),
            "trajectory": Arm("reinforce_pp_baseline", {**_CREDIT, "discount": 1.0}),
            "from the turn on": Arm("turn_rloo", {**_CREDIT, "discount": 1.0}),
            "turn": Arm("turn_rloo", {**_CREDIT, "discount": 0.0}),
            "turn, shrunk baseline": Arm("shrunk_rloo", {**_CREDIT, "discount": 0.0}),
        },
        ("acc@1", "acc@K"),
        (
            ("acc@1", "turn", "trajectory"),
            ("acc@K", "turn", "trajectory"),
            ("acc@K", "from the turn on", "trajectory"),
            ("acc@1", "turn, shrunk baseline", "turn"),
            ("acc@K", "turn, shrunk baseline", "turn"),
        ),
        afterwards=(
            ("acc@1", "from the turn on", "trajectory"),
            ("acc@1", "turn", "from the turn on"),
        ),
    ),
    "tool": Claim(
        "the same where a wrong answer can be of use to the next turn: it is credited with that, or it is not",
        "experiments/tasks/calculator.toml",
        60_000,
        {
            UNTRAINED: Arm(),
            "trajectory": Arm("reinforce_pp_baseline", {**_TOOL, "discount": 1.0}),
            "from the turn on": Arm("turn_rloo", {**_TOOL, "discount": 1.0}),
            "from the turn on, shrunk baseline": Arm("shrunk_rloo", {**_TOOL, "discount": 1.0}),
            "turn": Arm("turn_rloo", {**_TOOL, "discount": 0.0}),
        },
        ("acc@1", "acc@K", "calls"),
        (
            ("acc@K", "from the turn on", "trajectory"),
            ("acc@K", "from the turn on, shrunk baseline", "trajectory"),
            ("acc@K", "from the turn on", "turn"),
            ("calls", "from the turn on", "turn"),
            ("calls", "turn", UNTRAINED),
        ),
        afterwards=(("acc@K", "turn", UNTRAINED),),
    ),
}
"""The turns of one batch are the same whatever they are credited with: 128 episodes, in as many steps as the task says."""


def calls(policy: Any, episode: Episode) -> bool:
    """True where the first answer has a calculation that a calculator can repeat."""
    first, last = episode.turn_spans[0]
    return last_calculation(policy.tokenizer.decode(episode.ids[first:last], skip_special_tokens=True)) is not None


def measured(policy: Any, config: RunConfig, names: Sequence[str]) -> dict[str, float]:
    """Figures on the test split; `acc@K` is that of the last turn, `calls` the share of first answers with a calculation."""
    env: Any = config.env.make("test", 128, policy=policy)
    try:
        episodes = collect(env, policy, PLAYED, seed=derive_seed(config.seed, "test"))
    finally:
        env.close()
    found = summarize(episodes, by=()).figures
    at_last = f"acc@{int(config.env.value('num_turns'))}"
    row = {}
    for name in names:
        if name == "calls":
            row[name] = float(np.mean([calls(policy, episode) for episode in episodes]))
            continue
        value = found[at_last if name == "acc@K" else name].value
        row[name] = float("nan") if value is None else float(value)
    return {**row, "problems": float(len({episode.problem_id for episode in episodes}))}


def one(claim: str, label: str, seed: int, task: str, tokens: int, out: Path) -> dict[str, Any]:
    """Trains one policy and plays it; what an earlier call has done with the same settings is read."""
    asked, arm = CLAIMS[claim], CLAIMS[claim].arms[label]
    unseen = {"seed": seed, "evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0}
    whole = load_task(task).config(settings={**unseen, **asked.played})
    config = load_task(task).config(
        arm.algorithm, {**unseen, **asked.played, **arm.settings}, budget={"tokens": tokens}
    )
    run_dir = out / claim / Path(task).stem / f"{label.replace(', ', '-').replace(' ', '-')}-{seed}"

    def make() -> dict[str, Any]:
        with cpu_threads(1):
            if arm.algorithm is None:
                run_dir.mkdir(parents=True, exist_ok=True)
                policy: Any = load_policy(config.policy)
            else:
                policy = train(config, run_dir=run_dir, overwrite=True).policy
            return {"claim": claim, "arm": label, "seed": seed, **measured(policy, whole, asked.figures)}

    return kept_row(run_dir, config.to_json(), make)


def report(claim: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A claim's tables, in Markdown."""
    asked = CLAIMS[claim]
    of = {(row["arm"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = [f"**{claim}**: {asked.text}", "", f"| {len(seeds)} seeds | {' | '.join(asked.figures)} |"]
    lines.append("|---" * (1 + len(asked.figures)) + "|")
    for arm in asked.arms:
        lines.append(f"| {arm} | {' | '.join(shown([of[arm, s][name] for s in seeds]) for name in asked.figures)} |")
    for what, differences in (("", asked.differences), (", asked for afterwards", asked.afterwards)):
        lines += ["", f"| difference, paired by seed{what} | |", "|---|---|"]
        for name, a, b in differences:
            lines.append(f"| {name}: {a} - {b} | {shown([of[a, s][name] - of[b, s][name] for s in seeds])} |")
    return "\n".join(lines)


def main() -> None:
    """Trains, plays, prints the tables, writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", nargs="+", choices=list(CLAIMS), default=["unary", "correction", "credit"])
    parser.add_argument("--task", help="a name or a file, in place of the claims' own")
    parser.add_argument("--tokens", type=int, help="budget of a run, in place of the claims' own")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/reproductions"))
    options = parser.parse_args()
    for claim in options.claims:
        for seed in range(options.seeds):
            model = load_task(options.task or CLAIMS[claim].task).config(settings={"seed": seed}).policy.model
            if model.endswith(f"-{seed}") and not Path(model).is_dir():
                parser.error(
                    f"{claim} needs {model}: python experiments/warmup.py {model} --recipe calculator --seed {seed}"
                )
    jobs = [
        (claim, arm, seed, options.task or CLAIMS[claim].task, options.tokens or CLAIMS[claim].tokens)
        for seed in range(options.seeds)
        for claim in options.claims
        for arm in CLAIMS[claim].arms
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [f.result() for f in [pool.submit(one, *job, options.out) for job in jobs]]
    for claim in options.claims:
        text = report(claim, [row for row in rows if row["claim"] == claim])
        (options.out / f"{claim}.md").write_text(text + "\n", encoding="utf-8")
        print(f"\n{text}")
    write_json(
        options.out / "rows.json", {claim: [row for row in rows if row["claim"] == claim] for claim in options.claims}
    )


if __name__ == "__main__":
    main()
