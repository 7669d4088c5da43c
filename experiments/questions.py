r"""Does training over turns help? Three questions with the controls that they need, answered with intervals over seeds.

    python experiments/questions.py                                            # lins and guess8, 5 seeds
    python experiments/questions.py --tasks lins --seeds 10 --set entropy_weight=0.005 --out runs/benchmarks/questions-005
    python experiments/questions.py --tasks experiments/tasks/smollm2_sums.toml experiments/tasks/smollm2_guess8.toml \
        --tokens 8000 --seeds 3 --episodes 256 --tries 8                      # a chat model; --report: what is there

1. Does multi-turn training beat single-turn training at equal sampled ids?
2. Does answering over turns beat the same number of tries without a dialogue?
3. Which discount moves success to the first turn?

All policies are trained by clipped REINFORCE within the same budget of ids. Whatever is chosen (the discount that
stands for multi-turn training) is chosen on the validation split; the test split is played once by every policy.

Controls, on the test split:

* acc@K by mode     the same policy told nothing (none), anything (random), the opposite (flipped); for problems with
                    hints also hints that lie (hint-flipped) and of which half lie (hint-random)
* fresh@K           K tries in fresh contexts, until one is right: what the extra tries are worth without a dialogue
                    (the unbiased estimate of pass@K)
* distinct@K        the same without repeats: a memory of what was tried, and nothing else
* deaf@K            the best policy that ignores feedback, computed (`listeners.py`), where every problem has one prompt
* trained deaf      a policy trained over turns on neutral feedback, and played on it (its `acc@K none`)
* untrained         the policy that all begin with

Differences are paired by seed; intervals are Student's, 95 %, over the seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from listeners import deaf
from rows import kept_row, read_row
from seeds import shown

from mathturn_gym.baselines import RunConfig, load_task, train
from mathturn_gym.baselines.overrides import parse_settings
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.metrics.figures import pass_at_k
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Episode, Policy
from mathturn_gym.verifier import answer_key
from mathturn_gym.wrappers import load_policy

TOKENS: Final = {"lins": 60_000, "guess8": 30_000}
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    # On validation problems, at this budget, better than .005 and no worse than .01 for both kinds of training.
    "lins": {"entropy_weight": 0.02},
}
TRAINED: Final[Mapping[str, Mapping[str, Any] | None]] = {
    "untrained": None,
    "single-turn": {"num_turns": 1},
    "discount 0": {"discount": 0.0},
    "discount 1": {"discount": 1.0},
    "trained deaf": {"env.feedback": "none"},
}
COMPARED: Final = tuple(kind for kind, changes in TRAINED.items() if changes is not None)
MULTI_TURN: Final = ("discount 0", "discount 1")
MODES: Final = ("none", "random", "flipped")
HINT_MODES: Final = ("hint-random", "hint-flipped")


def play(policy: Policy, config: RunConfig, split: str, episodes: int, group: int = 1, **changes: Any) -> list[Episode]:
    """Episodes on a split; the same problems and samples for every policy of a seed."""
    env: Any = config.env.make(split, 128, policy=policy, **changes)
    try:
        return collect(env, policy, episodes, seed=derive_seed(config.seed, split), group_size=group)
    finally:
        env.close()


def solved(episodes: Sequence[Episode], k: int) -> float:
    """Share solved within k turns."""
    return float(np.mean([any(v.correct for v in episode.verdicts[:k]) for episode in episodes]))


def by_problem(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Episodes by the group that they were sampled in."""
    found: dict[object, list[Episode]] = {}
    for episode in episodes:
        found.setdefault(episode.group, []).append(episode)
    return list(found.values())


def fresh(groups: Sequence[Sequence[Episode]], k: int) -> float:
    """Solved within k tries in fresh contexts: pass@k, the unbiased estimate."""
    return float(np.mean([pass_at_k(len(g), sum(e.verdicts[0].correct for e in g), k) for g in groups]))


def without_repeats(groups: Sequence[Sequence[Episode]], k: int) -> float:
    """Solved by the first k *different* answers, averaged over where one begins to read a problem's answers.

    No answer at all is an answer here, which is not given twice either.
    """

    def one(group: Sequence[Episode], start: int) -> bool:
        seen: set[str] = set()
        for i in range(len(group)):
            verdict = group[(start + i) % len(group)].verdicts[0]
            if len(seen) == k:
                break
            seen.add("" if verdict.answer is None else answer_key(verdict.answer))
            if verdict.correct:
                return True
        return False

    return float(np.mean([one(group, start) for group in groups for start in range(len(group))]))


def figures(policy: Policy, task: str, seed: int, played: int, tries: int) -> dict[str, float]:
    """Everything that is measured of a policy, in plays of `played` episodes and with `tries` answers to each of half as many problems."""
    config = load_task(task).config(settings={"seed": seed})
    turns = int(config.env.value("num_turns"))
    found = {"validation acc@K": solved(play(policy, config, "validation", played), turns)}
    dialogues = play(policy, config, "test", played)
    found |= {"acc@1": solved(dialogues, 1), "acc@K": solved(dialogues, turns)}
    summary = summarize(dialogues, by=()).figures
    if "repeated_answer" in summary and summary["repeated_answer"].value is not None:
        found["repeated_answer"] = summary["repeated_answer"].value
    hinted = str(config.env.value("feedback")).startswith("hint")
    for mode in (*MODES, *(HINT_MODES if hinted else ())):
        found[f"acc@K {mode}"] = solved(play(policy, config, "test", played, feedback=mode), turns)
    # Fresh tries are the first turns of these same dialogues: their problems are equally hard, and so is their luck.
    groups = by_problem(play(policy, config, "test", played // 2 * tries, group=tries))
    found["acc@K in groups"] = float(np.mean([solved(group, turns) for group in groups]))
    found |= {"fresh@K": fresh(groups, turns), "distinct@K": without_repeats(groups, turns)}
    return {**found, "problems": float(len({episode.problem_id for episode in dialogues}))}


@dataclass(frozen=True)
class Job:
    """One policy: how it is trained, and how much it is played."""

    task: str
    trained: str
    seed: int
    tokens: int
    settings: Mapping[str, Any]
    played: int
    tries: int
    out: Path

    @property
    def run_dir(self) -> Path:
        """Its folder."""
        return self.out / f"{Path(self.task).stem}-{self.trained.replace(' ', '-')}-{self.seed}"

    def config(self) -> RunConfig:
        """Its run; nothing is evaluated on the way."""
        unseen = {"evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0}
        own = {**unseen, **SETTINGS.get(self.task, {}), **self.settings, **(TRAINED[self.trained] or {})}
        changes = {"seed": self.seed, **own}
        return load_task(self.task).config("clipped_reinforce", changes, budget={"tokens": self.tokens})

    def row(self) -> dict[str, Any] | None:
        """What an earlier call has found with the same settings."""
        return read_row(self.run_dir, self._decides())

    def run(self) -> dict[str, Any]:
        """Trains the policy and plays it, unless that was done."""
        return kept_row(self.run_dir, self._decides(), self._make)

    def _decides(self) -> dict[str, Any]:
        return {**self.config().to_json(), "played": self.played, "tries": self.tries}

    def _make(self) -> dict[str, Any]:
        config = self.config()
        with cpu_threads(1):
            if TRAINED[self.trained] is None:
                self.run_dir.mkdir(parents=True, exist_ok=True)
                policy = load_policy(config.policy)
                used = 0
            else:
                before = self.run_dir / "config.json"
                same = before.exists() and json.loads(before.read_text(encoding="utf-8")) == config.to_json()
                more = same and any(self.run_dir.glob("checkpoint*"))
                done = train(config, run_dir=self.run_dir, resume=more, overwrite=not more)
                policy, used = done.policy, done.tokens
            facts = {"task": self.task, "trained": self.trained, "seed": self.seed, "tokens": used}
            # Played in the precision of their training, as trainers evaluate.
            mixed = config.optimization.precision == "bfloat16"
            with torch.autocast(policy.device.type, torch.bfloat16, enabled=mixed):
                return {**facts, **figures(policy, self.task, self.seed, self.played, self.tries)}


def deaf_at(task: str, turns: int) -> float | None:
    """The best policy that ignores feedback, where the prompt says nothing about the answer; None elsewhere."""
    name = str(load_task(task).env.value("problems"))
    number = name.removeprefix("guess")
    if number == name or not number.isdecimal():
        return None
    return float(deaf(int(number), turns))


def whole(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The seeds of which every policy that is compared is there."""
    there = {(row["trained"], row["seed"]) for row in rows}
    return [s for s in sorted({row["seed"] for row in rows}) if all((kind, s) in there for kind in COMPARED)]


def chosen(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which discount stands for multi-turn training: the one with the higher acc@K on the validation split."""
    return max(
        MULTI_TURN, key=lambda name: float(np.mean([r["validation acc@K"] for r in rows if r["trained"] == name]))
    )


def answers(rows: Sequence[Mapping[str, Any]], deaf: float | None) -> list[tuple[str, str, list[float]]]:
    """Question, comparison, and the differences by seed.

    Args:
        rows: Of one task.
        deaf: What the best policy that ignores feedback reaches, where that is known.
    """
    of = {(row["trained"], row["seed"]): row for row in rows}
    seeds = whole(rows)
    best = chosen(rows)

    def minus(a: tuple[str, str], b: tuple[str, str]) -> list[float]:
        return [of[a[0], seed][a[1]] - of[b[0], seed][b[1]] for seed in seeds]

    found = [
        ("1 training", f"acc@1: multi-turn ({best}) - single-turn", minus((best, "acc@1"), ("single-turn", "acc@1"))),
        ("1 training", f"acc@K: multi-turn ({best}) - single-turn", minus((best, "acc@K"), ("single-turn", "acc@K"))),
        (
            "1 training",
            f"acc@K ({best}) - distinct@K (single-turn)",
            minus((best, "acc@K in groups"), ("single-turn", "distinct@K")),
        ),
        # Each is told what it was trained on.
        ("1 training", f"acc@K: {best} - trained deaf", minus((best, "acc@K"), ("trained deaf", "acc@K none"))),
        ("2 answering", f"own acc@K - own fresh@K ({best})", minus((best, "acc@K in groups"), (best, "fresh@K"))),
        ("2 answering", f"own acc@K - own distinct@K ({best})", minus((best, "acc@K in groups"), (best, "distinct@K"))),
        ("2 answering", f"own acc@K - told nothing ({best})", minus((best, "acc@K"), (best, "acc@K none"))),
        ("2 answering", f"own acc@K - told anything ({best})", minus((best, "acc@K"), (best, "acc@K random"))),
        ("3 discount", "acc@1: discount 0 - discount 1", minus(("discount 0", "acc@1"), ("discount 1", "acc@1"))),
        ("3 discount", "acc@K: discount 0 - discount 1", minus(("discount 0", "acc@K"), ("discount 1", "acc@K"))),
    ]
    if all("acc@K hint-flipped" in row for row in rows if row["trained"] == best):
        lies = minus((best, "acc@K"), (best, "acc@K hint-flipped"))
        found.insert(8, ("2 answering", f"own acc@K - told hints that lie ({best})", lies))
    if deaf is not None:
        found.insert(4, ("1 training", f"acc@K ({best}) - deaf@K", [of[best, seed]["acc@K"] - deaf for seed in seeds]))
    return found


def main() -> None:
    """Trains, plays, prints the tables, writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["lins", "guess8"], help="names, or files of tasks of your own")
    parser.add_argument("--tokens", type=int, help="budget of a run (default: by task)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=512, help="of every play")
    parser.add_argument(
        "--tries", type=int, default=16, help="answers to the first turn of a problem, without a dialogue"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--report", action="store_true", help="run nothing: the tables of what is there")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of every run; repeatable")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/questions"))
    options = parser.parse_args()
    for task in options.tasks:
        if options.tokens is None and task not in TOKENS:
            parser.error(f"--tokens must be given for task {task!r}")
    tokens = {task: options.tokens or TOKENS[task] for task in options.tasks}
    settings = parse_settings(options.set)
    # Seed by seed: whoever stops it early has whole seeds. The policy that all begin with is in no difference: last.
    jobs = [
        Job(task, kind, seed, tokens[task], settings, options.episodes, options.tries, options.out)
        for kinds in (COMPARED, sorted(set(TRAINED) - set(COMPARED)))
        for seed in range(options.seeds)
        for task in options.tasks
        for kind in kinds
    ]
    if not options.report:
        # A process for each: what a run of a real model leaves behind adds up to gigabytes.
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            for future in [pool.submit(job.run) for job in jobs]:
                future.result()
    rows = [row for job in jobs if (row := job.row()) is not None]
    facts: dict[str, Any] = {"rows": rows, "differences": []}
    for task in options.tasks:
        own = [row for row in rows if row["task"] == task]
        if not (seeds := whole(own)):
            print(f"\n{task}: no seed is whole yet")
            continue
        own = [row for row in own if row["seed"] in seeds]
        turns = int(load_task(task).env.value("num_turns"))
        deaf = deaf_at(task, turns)
        print(f"\n{task}: mean and 95 % interval over {len(seeds)} seeds, {tokens[task]:,} ids each, K = {turns},")
        print(f"  {min(row['problems'] for row in own):.0f} different test problems or more")
        for name in [name for name in own[0] if name not in ("task", "trained", "seed", "tokens", "problems")]:
            of_kind = {kind: [row[name] for row in own if row["trained"] == kind and name in row] for kind in TRAINED}
            print(f"  {name:22}" + "   ".join(f"{kind} {shown(v)}" for kind, v in of_kind.items() if v))
        if deaf is not None:
            print(f"  {'deaf@K':22}{deaf:.3f}, computed")
        for question, what, differences in answers(own, deaf):
            print(f"  {question:12} {what:58} {shown(differences, '+')}")
            facts["differences"].append({"task": task, "question": question, "what": what, "by seed": differences})
    out = options.out / "questions.json"
    out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
