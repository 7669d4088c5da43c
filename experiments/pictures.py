"""Draws the pictures of the documentation from the package and from the raw rows in docs/benchmarks.

    python experiments/pictures.py                  # all of them, into docs/images
    python experiments/pictures.py credit groups    # some of them

They are deterministic: tests/test_pictures.py draws them again and compares. asking.svg is made by asking.py, feedback.svg
by benchmarks/feedback.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from listeners import blind, deaf, hints_of, listener
from reproductions import CLAIMS

from mathturn_gym.base.text import html_text
from mathturn_gym.episodes.metrics import Estimate
from mathturn_gym.episodes.metrics.intervals import Pivot
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.returns import advantages
from mathturn_gym.show.charts import Series, lines, ranges, standalone
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

ROOT: Final = Path(__file__).resolve().parents[1]
RAW: Final = ROOT / "docs" / "benchmarks"
PROMPT, ACTION, FEEDBACK, TEXT = "#7a8ba3", "#2f7d5b", "#b7791f", "#6b7280"


def over_seeds(values: Sequence[float]) -> Estimate:
    """Returns the mean over seeds with Student's 95 % interval."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    if error == 0.0:
        return Estimate(mean, None, None, len(values))
    low, high = Pivot(mean, error, len(values) - 1).interval(0.95)
    return Estimate(mean, low, high, len(values))


def exact(value: float) -> Estimate:
    """Returns a computed value, which has no interval."""
    return Estimate(value, None, None, 0)


def differences(rows: Iterable[tuple[str, Sequence[float]]], x_name: str) -> str:
    """Returns a chart of paired differences, a row each."""
    shown = [(label, [over_seeds(values)]) for label, values in rows]
    return standalone(ranges(shown, [x_name], percent=False, x_name=x_name))


def scores(name: str, metric: str, task: str = "") -> dict[str, dict[int, float]]:
    """Returns a metric on the test split from a comparison's `results.csv`, by row and seed.

    Args:
        name: Of the file.
        metric: Of the final policies.
        task: Only the runs on this task, by its short name; all runs without one.
    """
    found: dict[str, dict[int, float]] = {}
    with (RAW / name).open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if Path(row["task"]).stem == task or not task:
                found.setdefault(row["label"], {})[int(row["seed"])] = float(row[f"test/{metric}"])
    return found


def paired(of: Mapping[str, Mapping[int, float]], one: str, other: str) -> list[float]:
    """Returns a row minus another one, seed by seed."""
    return [of[one][seed] - of[other][seed] for seed in sorted(of[one].keys() & of[other].keys())]


def read(name: str) -> Any:
    """Returns a JSON file of raw rows."""
    return json.loads((RAW / name).read_text(encoding="utf-8"))


# ---- findings


def turns() -> str:
    """Training and answering over turns, on equations and with hints."""
    labels = {
        "acc@K: multi-turn (discount {d}) - single-turn": "− single-turn",
        "acc@K: discount {d} - trained deaf": "− no feedback",
        "own acc@K - own fresh@K (discount {d})": "− independent",
        "own acc@K - own distinct@K (discount {d})": "− no repeats",
    }
    rows = []
    for file, task, discount in (("questions_005.json", "lins", 0), ("questions.json", "guess8", 1)):
        found = {row["what"]: row["by seed"] for row in read(file)["differences"] if row["task"] == task}
        rows += [(f"{task} {label}", found[what.format(d=discount)]) for what, label in labels.items()]
    return differences(rows, "accuracy within all turns, over turns minus the other")


def turns_chat_model() -> str:
    """The same of the chat model."""
    labels = {
        "acc@K: multi-turn (discount 0) - single-turn": "− single-turn",
        "own acc@K - own fresh@K (discount 0)": "− independent",
        "own acc@K - told hints that lie (discount 0)": "− false hints",
        "acc@K (discount 0) - deaf@K": "− bound .375",
    }
    rows = []
    for task in ("sums", "guess8"):
        found = {
            row["what"]: row["by seed"]
            for row in read("questions_smollm2.json")["differences"]
            if Path(row["task"]).stem == f"smollm2_{task}"
        }
        rows += [(f"{task} {label}", found[what]) for what, label in labels.items() if what in found]
    return differences(rows, "accuracy within all turns, over turns minus the other")


def bounds() -> str:
    """The three bounds of `guess8`, and what training reaches."""
    found = [row for row in read("questions.json")["rows"] if row["task"] == "guess8"]

    def of(trained: str, metric: str) -> list[Estimate]:
        return [over_seeds([row[metric] for row in found if row["trained"] == trained])]

    rows = [
        ("best possible", [exact(float(listener(8, 3, hints_of(8))))]),
        ("trained with hints", of("discount 1", "acc@K")),
        ("best ignoring hints", [exact(float(deaf(8, 3)))]),
        ("with random hints", of("discount 1", "acc@K hint-random")),
        ("blind guessing", [exact(float(blind(8, 3)))]),
        ("untrained", of("untrained", "acc@K")),
        ("with inverted hints", of("discount 1", "acc@K hint-flipped")),
    ]
    return standalone(ranges(rows, ["found"], percent=False, x_name="share of numbers found in three guesses"))


def noise() -> str:
    """How often a policy repeats its answer after "wrong", over the share of false negatives."""
    found = [row for row in read("noise.json")["rows"] if row["arm"] == "table, 1000 steps"]
    series = []
    for place in ("feedback", "both", "reward"):
        points = []
        for share in (0.0, 0.1, 0.3, 0.5):
            cell = [row["repeats"] for row in found if row["cell"] == f"{place} {share:g} 0.3"]
            points.append((share, exact(float(np.mean(cell)))))
        series.append(Series(f"in {place}", points))
    return standalone(lines(series, "share of right answers called wrong (and .3 of the wrong ones right)", bands=True))


def algorithms() -> str:
    """Language-model trainers minus clipped REINFORCE, on three tasks."""
    rows = []
    for task, turns in (("calculator", 2), ("guess8_warm", 3), ("sums_products", 2)):
        of = scores("matrix.csv", f"acc@{turns}", task)
        for name, short in (("rft_episodes", "RFT"), ("ppo", "PPO"), ("shrunk_rloo", "RLOO"), ("grpo", "GRPO")):
            label = f"{task.partition('_')[0]}: {short}"
            rows.append((label, paired(of, name, "clipped_reinforce")))
    return differences(rows, "accuracy within all turns, minus clipped REINFORCE")


def algorithms_chat_model() -> str:
    """Algorithms minus GRPO on the chat model."""
    of = scores("smollm2_mixed.csv", "acc@2")
    names = ("online_rft", "shrunk_rloo", "reinforce_pp_baseline", "turn_rloo", "clipped_reinforce")
    return differences(
        [(name.replace("reinforce", "reinf"), paired(of, name, "grpo")) for name in names], "acc@2, minus GRPO"
    )


def groups() -> str:
    """First-turn accuracy by the number of episodes per problem."""
    of = scores("factorial.csv", "acc@1")
    kinds = {"running": "running mean", "shrunk": "shrunk mean", "loo": "others' mean"}
    series = []
    for kind, name in kinds.items():
        sizes = [size for size in (1, 2, 4, 8) if f"{kind}_{size}" in of]
        series.append(Series(name, [(size, over_seeds(list(of[f"{kind}_{size}"].values()))) for size in sizes]))
    return standalone(lines(series, "episodes per problem, at equal tokens", bands=True))


def tricks() -> str:
    """Each trick added to GRPO, minus plain GRPO."""
    of = scores("tricks.csv", "acc@1")
    first = {name: {seed: value for seed, value in found.items() if seed < 5} for name, found in of.items()}
    rows = [(name, paired(first, name, "grpo_4")) for name in first if name not in ("grpo_4", "overlong")]
    return differences(rows, "acc@1, minus plain GRPO (five seeds)")


def reproductions() -> str:
    """The differences that decide each published claim."""
    raw, rows = read("reproductions.json"), []
    asked = (
        ("unary", 0, "one turn: repeats"),
        ("unary", 2, "over turns: acc@4"),
        ("correction", 1, "SCoRe: delta"),
        ("credit", 0, "turn credit: acc@1"),
        ("tool", 2, "tool, later: acc@2"),
    )
    for claim, place, label in asked:
        metric, one, other = CLAIMS[claim].differences[place]
        of = {arm: {row["seed"]: row[metric] for row in raw[claim] if row["arm"] == arm} for arm in (one, other)}
        rows.append((label, paired(of, one, other)))
    return differences(rows, "difference that the claim says is above 0")


# ---- how it works


def drawing(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Returns an SVG document that can be read on a light and on a dark page."""
    style, inside = f"text{{fill:{TEXT}}} .on{{fill:#fff}}", "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img"><title>{html_text(title)}</title><style>{style}</style>\n{inside}\n</svg>\n'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    """Returns a line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{html_text(words)}</text>'


def box(x: float, y: float, width: float, height: float, color: str, words: str = "") -> str:
    """Returns a colored box, with words in its middle."""
    label = text(x + width / 2, y + height / 2 + 5, words, anchor="middle", kind="on") if words else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{color}"/>{label}'


def arrow(points: Sequence[tuple[float, float]]) -> str:
    """Returns a line through points with a head at its end."""
    path = " ".join(f"{'L' if k else 'M'}{x:g} {y:g}" for k, (x, y) in enumerate(points))
    (x1, y1), (x2, y2) = points[-2:]
    length = math.hypot(x2 - x1, y2 - y1)
    u, v = (x2 - x1) / length, (y2 - y1) / length
    head = (
        f"M{x2:g} {y2:g} L{x2 - 8 * u + 4 * v:g} {y2 - 8 * v - 4 * u:g} L{x2 - 8 * u - 4 * v:g} {y2 - 8 * v + 4 * u:g}Z"
    )
    return f'<path d="{path}" fill="none" stroke="#9ca3af" stroke-width="1.5"/><path d="{head}" fill="#9ca3af"/>'


def flow() -> str:
    """An episode from problem to loss."""
    return drawing(
        "A problem becomes an episode, and episodes a loss",
        720,
        214,
        [
            box(10, 20, 90, 34, PROMPT, "problem"),
            arrow([(100, 37), (150, 37)]),
            text(125, 30, "reset", anchor="middle"),
            box(150, 20, 130, 34, PROMPT, "all ids so far"),
            arrow([(280, 37), (330, 37)]),
            box(330, 20, 90, 34, ACTION, "policy"),
            arrow([(420, 37), (480, 37)]),
            text(450, 30, "ids", anchor="middle"),
            box(480, 20, 100, 34, ACTION, "completion"),
            arrow([(530, 54), (530, 92)]),
            text(538, 78, "step"),
            box(480, 92, 100, 34, FEEDBACK, "verifier"),
            arrow([(580, 109), (630, 109)]),
            box(630, 92, 80, 34, FEEDBACK, "reward"),
            arrow([(480, 109), (420, 109)]),
            text(450, 102, "verdict", anchor="middle"),
            box(330, 92, 90, 34, FEEDBACK, "feedback"),
            arrow([(330, 109), (215, 109), (215, 56)]),
            text(272, 102, "its ids", anchor="middle"),
            text(10, 152, "until solved, or the last turn:"),
            box(10, 170, 90, 34, PROMPT, "episode"),
            arrow([(100, 187), (150, 187)]),
            box(150, 170, 130, 34, PROMPT, "advantages"),
            arrow([(280, 187), (330, 187)]),
            text(305, 180, "pack", anchor="middle"),
            box(330, 170, 90, 34, PROMPT, "batch"),
            arrow([(420, 187), (480, 187)]),
            box(480, 170, 100, 34, ACTION, "loss"),
            arrow([(580, 187), (630, 187)]),
            box(630, 170, 80, 34, ACTION, "update"),
        ],
    )


def group_of_four() -> list[Episode]:
    """Returns four episodes on one problem: solved in turn 3, 1, 2 and never."""
    rewards = [(-1.0, -1.0, 1.0), (1.0,), (-1.0, 1.0), (-1.0, -1.0, -1.0)]
    return [
        synthetic_episode(0, k, [3] * len(each), group="g", rewards=np.array(each)) for k, each in enumerate(rewards)
    ]


def credit() -> str:
    """The weight of each turn in the loss, for three kinds of credit."""
    episodes = group_of_four()
    kinds = [
        ("credit for the episode", advantages(episodes, "rloo", discount=1.0)),
        ("credit from the turn on", advantages(episodes, "turn_rloo", discount=1.0)),
        ("credit for the turn alone", advantages(episodes, "turn_rloo", discount=0.0)),
    ]
    parts = []
    for row, episode in enumerate(episodes):
        y = 52 + row * 34
        parts.append(text(10, y + 18, " ".join("✓" if reward > 0 else "✗" for reward in episode.rewards)))
    for panel, (name, found) in enumerate(kinds):
        left = 70 + panel * 220
        parts.append(text(left, 22, name))
        parts += [text(left + 30 + 64 * turn, 44, f"turn {turn + 1}", anchor="middle") for turn in range(3)]
        for row, values in enumerate(found):
            for turn, value in enumerate(values):
                color = ACTION if value > 0 else "#b4452f" if value < 0 else "#9ca3af"
                parts.append(box(left + 64 * turn, 52 + row * 34, 60, 28, color, f"{value:+.2f}"))
    return drawing("Advantages of one group of four episodes, by credit", 720, 196, parts)


def packing() -> str:
    """The rows of a batch in each layout, for two episodes of one group."""
    episodes = [synthetic_episode(0, k, [3, 4], prompt=8, group="g", vocab_size=400) for k in range(2)]
    parts, y = [], 10
    for layout in ("turns", "episode", "tree"):
        batch = pack(episodes, layout)
        there = batch.branch_index >= 0  # the others are padding
        parts.append(text(10, y + 14, f'"{layout}": rows {len(there)}, ids {int(there.sum())}'))
        y += 22
        for row in range(len(there)):
            for column in np.flatnonzero(there[row].numpy()).tolist():
                trained, position = bool(batch.loss_mask[row, column]), int(batch.position_ids[row, column])
                color = ACTION if trained else PROMPT if position < 8 else FEEDBACK
                parts.append(box(10 + 21 * column, y, 19, 18, color))
            y += 24
        y += 10
    for k, (color, name) in enumerate(((PROMPT, "prompt"), (ACTION, "completion"), (FEEDBACK, "feedback, history"))):
        parts += [box(370 + 110 * k, 8, 14, 14, color), text(390 + 110 * k, 20, name)]
    return drawing("Two episodes of one group as rows of a batch, in each layout", 720, y, parts)


PICTURES: Final[dict[str, Callable[[], str]]] = {
    draw.__name__: draw
    for draw in (
        flow,
        credit,
        packing,
        bounds,
        turns,
        turns_chat_model,
        noise,
        algorithms,
        algorithms_chat_model,
        groups,
        tricks,
        reproductions,
    )
}


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    for name in options.names or PICTURES:
        (options.out / f"{name}.svg").write_text(PICTURES[name](), encoding="utf-8")


if __name__ == "__main__":
    main()
