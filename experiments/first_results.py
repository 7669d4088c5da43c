"""Does a policy know a sum, whatever it says afterwards? The first result of an answer beside its last number.

    mathturn eval --task smol-add2 --policy runs/smol-add2-0 --episodes 512 --max-completion-tokens 24 --out runs/after-24
    python experiments/first_results.py runs/after-24 [runs/after ...]

"77 + 9 = 86, but 77" is right where it is cut off before the second 77, and wrong by its last number where it is not. The first
result is the number behind the first "=" ("86"), in a text without one the first number; a number that ends where a text was
cut off may be incomplete, and is none.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np

from mathturn_gym.episodes.metrics.intervals import cluster_sums, ratio_estimate
from mathturn_gym.episodes.trajectories import read_episodes


def first_result(text: str, *, cut_off: bool) -> str | None:
    """The number behind the first "=", or the first number of a text that has none."""
    found = re.search(r"=\s*(-?\d+)" if "=" in text else r"(-?\d+)", text)
    if found is None or (cut_off and found.end() == len(text)):
        return None
    return found[1]


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", type=Path, nargs="+", help="folders of `mathturn eval`")
    options = parser.parse_args()
    print("| evaluation, first turn | first result right | last number right | of these, cut off |\n|---|---|---|---|")
    for folder in options.evaluations:
        problems, first, last, cut = [], [], [], 0
        for episode in read_episodes(folder / "episodes.jsonl"):
            problems.append(episode.problem_id)
            said = first_result(episode.responses[0], cut_off=episode.turn_truncated[0])
            first.append(
                said is not None and any(re.fullmatch(r"-?\d+", one) and int(one) == int(said) for one in episode.gold)
            )
            last.append(episode.verdicts[0].correct)
            cut += last[-1] and episode.turn_truncated[0]
        names, clusters = np.unique(problems, return_inverse=True)
        counted = np.stack([first, last, np.ones(len(last))], axis=1).astype(np.float64)
        first_C, last_C, episodes_C = cluster_sums(clusters, counted, len(names)).T
        cells = [
            str(ratio_estimate(top_C, episodes_C, (0.0, 1.0), units=len(last), confidence=0.95))
            for top_C in (first_C, last_C)
        ]
        print(f"| {folder.name}, {len(names)} problems | {' | '.join(cells)} | {cut} of {sum(last)} |")


if __name__ == "__main__":
    main()
