"""What are a policy's answers worth that know nothing of the problem? Each is judged on all the other problems as well.

    mathturn eval --task smol-lins --policy runs/smol-lins-0 --episodes 512 --out runs/after
    python experiments/swapped_answers.py runs/after [runs/before ...]

A problem set whose answers are few can be "solved" by saying what is often right: of the test equations of `lins`, one in
six has the answer 1. Here every answer is held against the accepted answers of every other problem; accuracy on these
is what the same answers earn without having read the question, whatever their distribution is. `acc@k` against others counts
an episode where any of its first k answers, up to where the episode ended, is the other problem's: more tries count for it too.

The difference is what reading the problem brings. Its interval is by problem, of a U-statistic: a problem counts with its
answers on the others' golds and with its gold under the others' answers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from mathturn_gym.episodes.metrics.intervals import Estimate, Floats, ratio_estimate
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.types import Episode
from mathturn_gym.verifier import Verifier


def matches(problems: Sequence[Sequence[Episode]], golds: Sequence[tuple[str, ...]], turns: int) -> Floats:
    """Share of each problem's episodes that hold each problem's answer within so many turns.

    Args:
        problems: Episodes by problem.
        golds: Each problem's accepted answers.
        turns: Of each episode.

    Returns:
        float64 (problems, problems): row answers, column golds.

    Raises:
        ValueError: the judge here and the one of the evaluation differ on a problem's own answers.
    """
    verifier = Verifier()

    @cache
    def right(answer: str, gold: tuple[str, ...]) -> bool:
        return verifier.verify(answer, gold, kind="answer").correct

    table = np.zeros((len(problems), len(problems)))
    for i, episodes in enumerate(problems):
        for episode in episodes:
            said = [verdict.answer for verdict in episode.verdicts[:turns] if verdict.answer is not None]
            table[i] += [any(right(answer, gold) for answer in said) for gold in golds]
        recorded = sum(any(verdict.correct for verdict in episode.verdicts[:turns]) for episode in episodes)
        if recorded != table[i, i]:
            raise ValueError(
                f"{recorded} of {len(episodes)} episodes on {episodes[0].prompt!r} were judged right, and {table[i, i]:g} of "
                f"their answers are {golds[i]!r} to the built-in verifier: this control needs answers that it can compare"
            )
        table[i] /= len(episodes)
    return table


def difference(table_PP: Floats, episodes_P: Floats) -> tuple[float, float, Estimate]:
    """Accuracy on the problems that were asked, on the others, and the difference.

    Args:
        table_PP: From `matches`.
        episodes_P: Episodes of each problem; at least two problems.
    """
    total = float(episodes_P.sum())
    own = np.diag(table_PP)
    pairs = np.outer(episodes_P, episodes_P)
    np.fill_diagonal(pairs, 0.0)
    weight = pairs.sum() / total
    others = table_PP - np.diag(own)
    answers = others @ episodes_P / weight
    as_gold = episodes_P @ others / weight
    swapped = float((pairs * others).sum() / pairs.sum())
    top = episodes_P * (own - answers - as_gold + swapped)
    found = ratio_estimate(top, episodes_P, (-1.0, 1.0), units=total, confidence=0.95)
    return float(episodes_P @ own / total), swapped, found


def table(folder: Path) -> list[str]:
    """Lines of a Markdown table for an evaluation."""
    by_problem: dict[str, list[Episode]] = {}
    for episode in read_episodes(folder / "episodes.jsonl"):
        by_problem.setdefault(episode.problem_id, []).append(episode)
    problems = list(by_problem.values())
    if len(problems) < 2:
        raise ValueError(
            f"{folder}: there must be at least two different problems to swap answers, got {len(problems)}"
        )
    golds = [one[0].gold for one in problems]
    counts = np.array([len(one) for one in problems], np.float64)
    most = max(len(one.verdicts) for episodes in problems for one in episodes)
    lines = []
    for turns in sorted({1, most}):
        asked, others, found = difference(matches(problems, golds, turns), counts)
        lines.append(
            f"| {folder.name}, {len(problems)} problems | acc@{turns} | {asked:.3f} | {others:.3f} | {found} |"
        )
    return lines


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", type=Path, nargs="+", help="folders of `mathturn eval`")
    parser.add_argument("--out", type=Path, help="writes the rows as JSON")
    options = parser.parse_args()
    print("| evaluation | | on the problem asked | on all others | difference |\n|---|---|---|---|---|")
    lines = [line for folder in options.evaluations for line in table(folder)]
    print("\n".join(lines))
    if options.out:
        options.out.write_text(json.dumps(lines, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
