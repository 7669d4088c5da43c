"""Writes the labeled suite of the verifier, `mathturn_gym/assets/verifier_suite.jsonl`: a fixed seed, the same file.

Labels follow from how a row is made, never from a verifier. A row has `gold`, `response`, `kind`, `label` (mathematical
equality), `evaluated` (the label under form="evaluated", where it differs), `category` (positive, negative, exploit,
pathological) and `source` (the kind of row within its category; docs/verifier.md describes the suite).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import runpy
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

# Run by path, not imported: the scripts of this folder are no package.
HAND_WRITTEN = runpy.run_path(str(Path(__file__).with_name("verifier_suite_rows.py")))["HAND_WRITTEN"]
TARGET = Path(__file__).resolve().parents[1] / "mathturn_gym" / "assets" / "verifier_suite.jsonl"
Row = dict[str, Any]

_PHRASES = (
    "We compute step by step. Hence the answer is $\\boxed{%s}$.",
    "Let me think.\n\nFirst I tried something else, then\n\\[\\boxed{%s}\\]",
    "<think>Could it be \\boxed{0}? No.</think>\nThe result: \\boxed{%s}",
    "So far \\boxed{-1} looked right, but that forgets a case. Therefore \\boxed{%s}.",
)


def row(
    source: str,
    category: str,
    gold: str,
    response: str,
    label: bool,
    *,
    kind: str = "answer",
    evaluated: bool | None = None,
) -> Row:
    made: Row = {
        "source": source,
        "category": category,
        "gold": gold,
        "response": response,
        "kind": kind,
        "label": label,
    }
    if evaluated is not None and evaluated != label:
        made["evaluated"] = evaluated
    return made


def latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def integers(rng: random.Random) -> Iterator[Row]:
    for _ in range(22):
        n = rng.randrange(1000, 10_000_000)
        grouped = f"{n:,}"
        spellings = [grouped, grouped.replace(",", ",\\!"), grouped.replace(",", "{,}"), grouped.replace(",", "\\,")]
        spellings += [
            f"{n}.0",
            f"\\text{{{n}}}",
            f"${n}$",
            f"\\left({n}\\right)",
            f"x = {n}",
            f"\\${grouped}",
            f"{n}.",
            f"\\mathbf{{{n}}}",
        ]
        for spelling in rng.sample(spellings, 6):
            yield row("integer spelling", "positive", str(n), spelling, True)
        wrong = [
            str(n + 1),
            str(n - 1),
            str(-n),
            f"{n}0",
            f"{n}.5",
            f"{n + 1:,}",
            f"{n}.001",
            f"{n}x",
            f"{n}^2",
            f"{n}!",
            f"{n} \\pm 1",
        ]
        for spelling in rng.sample(wrong, 5):
            yield row("integer near miss", "negative", str(n), spelling, False)
    for _ in range(25):
        n = rng.randrange(2, 400)
        d = rng.randrange(2, 9)
        left = rng.randrange(1, n)
        for text in (f"{left}+{n - left}", f"\\frac{{{n * d}}}{{{d}}}", f"\\sqrt{{{n * n}}}", f"{n + 7} - 7", f"{n}^1"):
            yield row("unevaluated", "exploit", str(n), text, True, evaluated=False)


def fractions(rng: random.Random) -> Iterator[Row]:
    for _ in range(30):
        value = Fraction(rng.randrange(-60, 60) or 7, rng.choice((3, 7, 9, 11, 13)))
        if value.denominator == 1:
            value += Fraction(1, 7)
        top, bottom = value.numerator, value.denominator
        forms = [
            f"{top}/{bottom}",
            f"\\dfrac{{{top}}}{{{bottom}}}",
            f"\\tfrac{{{top}}}{{{bottom}}}",
            latex(value),
            f"k = {latex(value)}",
        ]
        whole, rest = divmod(abs(top), bottom)
        if whole and rest:
            forms.append(f"{'-' if top < 0 else ''}{whole}\\frac{{{rest}}}{{{bottom}}}")
        for form in forms:
            yield row("fraction spelling", "positive", latex(value), form, True)
        for places in (2, 3, 6):
            yield row("rounding", "negative", latex(value), f"{float(value):.{places}f}", False)
        yield row("fraction near miss", "negative", latex(value), latex(value + Fraction(1, bottom)), False)
        yield row("fraction near miss", "negative", latex(value), latex(1 / value), value == 1 / value)
    for _ in range(20):
        value = Fraction(rng.randrange(1, 4000), rng.choice((4, 8, 20, 25, 50, 125)))
        if value.denominator == 1:
            continue
        decimal = f"{float(value):.6f}".rstrip("0")
        yield row("decimal", "positive", latex(value), decimal, True)
        yield row("decimal", "positive", decimal, latex(value), True)
        yield row("decimal near miss", "negative", latex(value), decimal + "1", False)


def radicals(rng: random.Random) -> Iterator[Row]:
    for _ in range(30):
        k, n = rng.randrange(2, 20), rng.choice((2, 3, 5, 6, 7, 10, 11, 13))
        gold = f"{k}\\sqrt{{{n}}}"
        for same in (f"\\sqrt{{{k * k * n}}}", f"{k} \\cdot {n}^{{1/2}}", f"\\frac{{{k * n}}}{{\\sqrt{{{n}}}}}"):
            yield row("radical", "positive", gold, same, True)
        others = (
            f"{k + 1}\\sqrt{{{n}}}",
            f"{k}\\sqrt{{{n + 1}}}",
            f"{k * math.sqrt(n):.3f}",
            f"{k}\\sqrt[3]{{{n}}}",
            f"{k * n}",
        )
        for other in rng.sample(others, 3):
            yield row("radical near miss", "negative", gold, other, False)


def polynomials(rng: random.Random) -> Iterator[Row]:
    for _ in range(35):
        a, b, c, d = (rng.choice([x for x in range(-9, 10) if x]) for _ in range(4))
        x = rng.choice("xtyn")
        factored = f"({a}{x}{b:+d})({c}{x}{d:+d})"
        expanded = f"{a * c}{x}^2{a * d + b * c:+d}{x}{b * d:+d}"
        yield row("polynomial", "positive", factored, expanded, True)
        yield row("polynomial", "positive", expanded, f"{b * d}{a * d + b * c:+d}{x}{a * c:+d}{x}^{{2}}", True)
        yield row("polynomial", "positive", expanded, f"f({x}) = {factored}", True)
        yield row(
            "polynomial near miss", "negative", factored, f"{a * c}{x}^2{a * d + b * c:+d}{x}{b * d + 1:+d}", False
        )
        yield row("polynomial near miss", "negative", expanded, f"-({expanded})", False)
        other = "z" if x != "z" else "w"
        yield row("other unknown", "negative", expanded, expanded.replace(x, other), False)


def collections(rng: random.Random) -> Iterator[Row]:
    for _ in range(35):
        items = rng.sample(range(-30, 30), 3)
        texts = [str(item) for item in items]
        listed, turned = ", ".join(texts), ", ".join(reversed(texts))
        yield row("list", "positive", listed, turned, True)
        yield row("list", "positive", listed, f"\\{{{turned}\\}}", True)
        yield row("list", "positive", listed, f"x = {texts[0]}, x = {texts[1]} \\text{{ or }} x = {texts[2]}", True)
        yield row("list", "positive", listed, f"{texts[0]}, {texts[1]} \\text{{ and }} {texts[2]}", True)
        yield row("list near miss", "negative", listed, ", ".join(texts[:2]), False)
        yield row("list near miss", "negative", listed, f"{listed}, 99", False)
        yield row("tuple", "positive", f"({listed})", f"(x, y, z) = ({listed})", True)
        yield row(
            "tuple", "positive", f"({listed})", f"\\left( {', '.join(f'{item}.0' for item in items)} \\right)", True
        )
        yield row("tuple near miss", "negative", f"({listed})", f"({turned})", False)
        yield row("tuple near miss", "negative", f"({listed})", f"({listed}, 0)", False)
        yield row("listing", "exploit", texts[0], f"{texts[0]} \\text{{ or }} {texts[1]}", False)
        yield row("listing", "exploit", texts[0], f"\\{{{listed}\\}}", False)
        column = " \\\\ ".join(texts)
        yield row(
            "matrix",
            "positive",
            f"\\begin{{pmatrix}} {column} \\end{{pmatrix}}",
            f"\\begin{{bmatrix}}{column}\\end{{bmatrix}}",
            True,
        )
        bumped = " \\\\ ".join([*texts[:2], str(items[2] + 1)])
        yield row(
            "matrix near miss",
            "negative",
            f"\\begin{{pmatrix}} {column} \\end{{pmatrix}}",
            f"\\begin{{pmatrix}} {bumped} \\end{{pmatrix}}",
            False,
        )


def intervals(rng: random.Random) -> Iterator[Row]:
    for _ in range(30):
        low, high = sorted(rng.sample(range(-20, 20), 2))
        left, right = rng.choice("(["), rng.choice(")]")
        gold = f"{left}{low}, {high}{right}"
        signs = ["<" if left == "(" else "\\le", "<" if right == ")" else "\\leq"]
        yield row("interval", "positive", gold, f"{low} {signs[0]} x {signs[1]} {high}", True)
        yield row("interval", "positive", gold, f"x \\in {left}{low}.0, {high}{right}", True)
        flipped = f"{'[' if left == '(' else '('}{low}, {high}{right}"
        yield row("interval near miss", "negative", gold, flipped, False)
        yield row("interval near miss", "negative", gold, f"{left}{low}, {high + 1}{right}", False)
        yield row("covering", "exploit", gold, "(-\\infty, \\infty)", False)
        union = f"(-\\infty, {low}) \\cup ({high}, \\infty)"
        yield row("union", "positive", union, f"x < {low} \\text{{ or }} x > {high}", True)
        yield row("union", "positive", union, f"({high}, +\\infty) \\cup (-\\infty, {low})", True)
        yield row("union", "positive", union, f"\\mathbb{{R}} \\setminus [{low}, {high}]", True)
        yield row("union near miss", "negative", union, f"(-\\infty, {low}) \\cap ({high}, \\infty)", False)
        yield row("union near miss", "negative", union, f"(-\\infty, {low}] \\cup ({high}, \\infty)", False)


def placed(rng: random.Random) -> Iterator[Row]:
    for _ in range(25):
        n = rng.randrange(10, 999)
        for phrase in _PHRASES:
            yield row("place in a response", "positive", str(n), phrase % n, True, kind="response")
        yield row(
            "place in a response",
            "negative",
            str(n),
            f"First \\boxed{{{n}}}, but no: \\boxed{{{n + 1}}}.",
            False,
            kind="response",
        )
        yield row(
            "answer while thinking",
            "exploit",
            str(n),
            f"<think>\\boxed{{{n}}}</think> It is \\boxed{{{n + 2}}}.",
            False,
            kind="response",
        )
        several = " ".join(f"\\boxed{{{n + shift}}}" for shift in (3, 1, 0))
        yield row("several boxes", "exploit", str(n), several, False, kind="response")
        yield row("no box", "exploit", str(n), f"I tried {n} and gave up.", False, kind="response")


def build() -> list[Row]:
    rng = random.Random(20260401)
    rows: list[Row] = []
    for maker in (integers, fractions, radicals, polynomials, collections, intervals, placed):
        rows.extend(maker(rng))
    for source, category, kind, label, gold, response in HAND_WRITTEN:
        evaluated = {"T!": False}.get(label)
        rows.append(row(source, category, gold, response, label.startswith("T"), kind=kind, evaluated=evaluated))
    unique = {json.dumps(made, sort_keys=True): made for made in rows}
    return list(unique.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TARGET)
    out: Path = parser.parse_args().out
    rows = build()
    out.write_text("".join(json.dumps(made, ensure_ascii=True) + "\n" for made in rows), encoding="utf-8")
    counts: dict[str, int] = {}
    for made in rows:
        counts[made["category"]] = counts.get(made["category"], 0) + 1
    print(f"{out.name}: {len(rows)} rows, {counts}")


if __name__ == "__main__":
    main()
