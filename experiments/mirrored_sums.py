"""Has a policy that learned sums seen them the other way round? Accuracy on test sums a+b by whether b+a was trained on.

    mathturn train smol-add2 --run-dir runs/smol-add2-0
    mathturn eval --task smol-add2 --policy runs/smol-add2-0 --episodes 512 --out runs/after
    python experiments/mirrored_sums.py runs/smol-add2-0 runs/after

Splits keep a prompt apart from itself, not "What is 3+4?" from "What is 4+3?". The problems that a run has drawn are drawn
again from its seed, and compared with the episodes that it has kept.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from mathturn_gym.baselines.run_folder import read_config
from mathturn_gym.episodes.metrics.intervals import clopper_pearson
from mathturn_gym.episodes.trajectories import read_episodes


def operands(prompt: str) -> tuple[int, ...]:
    """The numbers of a question, in order."""
    return tuple(int(number) for number in re.findall(r"\d+", prompt))


def trained_sums(run_dir: Path) -> set[tuple[int, ...]]:
    """The sums that a run has drawn.

    Raises:
        ValueError: what is drawn from the seed is not what the run has kept, or the run drew more than it counts.
    """
    config, kept = read_config(run_dir), list(read_episodes(run_dir / "episodes_train.jsonl"))
    if config.optimization.dynamic_sampling:
        raise ValueError(
            f"{run_dir}: with dynamic_sampling a run draws problems that its number of episodes does not count"
        )
    source, group = config.env.problems("train"), getattr(config.algorithm, "episodes_per_problem", 1)
    for episode in kept:
        if episode.seed is None or source.get(episode.seed, episode.index // group).prompt != episode.prompt:
            raise ValueError(f"{run_dir}: episode {episode.index} was not about {episode.prompt!r}")
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    (seed,) = {episode.seed for episode in kept if episode.seed is not None}
    return {operands(source.get(seed, number).prompt) for number in range(last["episodes"] // group)}


def main() -> None:
    """Prints a line for each kind of test sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, help="of a run that is made of sums")
    parser.add_argument("evaluation", type=Path, help="folder of `mathturn eval`")
    options = parser.parse_args()
    seen = trained_sums(options.run_dir)
    played = list(read_episodes(options.evaluation / "episodes.jsonl"))
    for what, mirrored in (("trained on the other way round", True), ("seen neither way", False)):
        right = [e.verdicts[0].correct for e in played if (operands(e.prompt)[::-1] in seen) is mirrored]
        if not right:
            print(f"{what:32}    0 sums")
            continue
        share = sum(right) / len(right)
        low, high = clopper_pearson(share, len(right), 0.95)
        print(f"{what:32} {len(right):4} sums, acc@1 {share:.3f} [{low:.3f}, {high:.3f}]")
    print(f"{'trained on themselves':32} {sum(operands(e.prompt) in seen for e in played):4} sums")


if __name__ == "__main__":
    main()
