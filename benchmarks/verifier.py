"""The verifier against math-verify on the same cases in the same run: accuracy, speed, and what bombs do to a batch.

    python benchmarks/verifier.py [--cases FOLDER] [--limit 1500] [--out runs/benchmarks/verifier.json]

Without a folder of labeled cases (`../shared/cases` where it exists) the suite of the package is used. All speeds are
ratios to math-verify, taken in one run, in turns of some dozens of cases; machines are noisy, ratios less.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mathturn_gym.verifier import Verifier
from mathturn_gym.verifier.audit import Case, load_cases, run_audit

SHARED = Path(__file__).resolve().parents[2] / "shared"
LEFT_OUT = {"adversarial", "policy", "gsm8k_ref", "mathverify_tests_nobox"}
BOMB = "\\prod_{k=1}^{10000000} k + %d"


def labeled(folder: Path | None) -> list[Case]:
    """All labeled cases that are to be judged as mathematical equality."""
    if folder is None:
        return [case for case in load_cases() if case.category != "pathological"]
    return [case for path in sorted(folder.glob("*.jsonl")) if path.stem not in LEFT_OUT for case in load_cases(path)]


def spread(cases: list[Case], limit: int) -> list[Case]:
    """At most `limit` cases, taken evenly from all."""
    step = max(1.0, len(cases) / limit)
    return [cases[int(index * step)] for index in range(min(limit, len(cases)))]


def math_verify_check(response: str, gold: str, kind: str) -> bool:
    """math-verify on boxed answers, as it is meant to be called."""
    from math_verify import parse, verify

    return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{response}}}" if kind == "answer" else response)))


def race(cases: list[Case], chunk: int = 50) -> dict[str, Any]:
    """Both on the same cases in this process, in turns of a chunk: milliseconds a case, wall clock, and their ratios.

    `median_cpu` is the calling thread's processor time, which other programs on the machine disturb less.
    """
    # Keeps the workers running while the verifier that is timed starts with nothing remembered.
    keep_alive = Verifier(form="equivalent")
    keep_alive.warm()
    verifier = Verifier(form="equivalent")
    checks: dict[str, Callable[[Case], bool]] = {
        "mathturn": lambda case: verifier.verify(case.response, case.gold, kind=case.kind).correct,  # type: ignore[arg-type]
        "math-verify": lambda case: math_verify_check(case.response, case.gold, case.kind),
    }
    times: dict[str, list[float]] = {name: [] for name in checks}
    cpu_times: dict[str, list[float]] = {name: [] for name in checks}
    right = dict.fromkeys(checks, 0)
    for check in checks.values():
        for case in cases[:20]:
            check(case)
    verifier = Verifier(form="equivalent")
    for start in range(0, len(cases), chunk):
        for name, check in checks.items():
            for case in cases[start : start + chunk]:
                cpu, begin = time.thread_time(), time.perf_counter()
                right[name] += check(case) == case.label
                times[name].append(1e3 * (time.perf_counter() - begin))
                cpu_times[name].append(1e3 * (time.thread_time() - cpu))
    found: dict[str, Any] = {"cases": len(cases), "as_labeled": right}
    for key, figure in (("median", 0.5), ("p99", 0.99), ("mean", None)):
        row = {name: mean(values) if figure is None else quantile(values, figure) for name, values in times.items()}
        found[key] = row | {"ratio": row["mathturn"] / row["math-verify"]}
    row = {name: statistics.median(values) for name, values in cpu_times.items()}
    found["median_cpu"] = row | {"ratio": row["mathturn"] / row["math-verify"]}
    keep_alive.close()
    return found


def throughput(cases: list[Case], rounds: int = 5) -> dict[str, float]:
    """Cases a second of processor time, by turns in loops over all cases, both warm: medians, and their ratio.

    Each of our loops begins with a verifier that remembers nothing. One takes two milliseconds, so that it would be over
    before the processor's caches have forgotten math-verify: a turn of ours is fifty of them.
    """
    right, passes = 0, 50
    seconds: dict[str, list[float]] = {"mathturn": [], "math-verify": []}
    for number in range(rounds + 1):
        chosen = cases if number else cases[:20]
        start = time.process_time()
        for _ in range(passes):
            verifier = Verifier(form="equivalent")
            right = sum(verifier.verify(case.response, case.gold).correct for case in chosen)
        seconds["mathturn"].append((time.process_time() - start) / passes)
        start = time.process_time()
        for case in chosen:
            math_verify_check(case.response, case.gold, case.kind)
        seconds["math-verify"].append(time.process_time() - start)
    found = {name: len(cases) / statistics.median(times[1:]) for name, times in seconds.items()}
    return found | {"ratio": found["mathturn"] / found["math-verify"], "right": right, "cases": len(cases)}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def gsm8k(limit: int) -> list[Case]:
    """GSM8K's answers, boxed after their solutions; made up where there is no data."""
    path = SHARED / "data" / "gsm8k_test.jsonl"
    if not path.exists():
        return [
            Case(str(n), f"We add {n - 3} and 3. The answer is \\boxed{{{n}}}.", True) for n in range(10, 10 + limit)
        ]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line][:limit]
    cases = []
    for row in rows:
        solution, _, answer = row["answer"].rpartition("####")
        cases.append(
            Case(answer.strip().replace(",", ""), f"{solution}The answer is \\boxed{{{answer.strip()}}}.", True)
        )
    return cases


def repeated_us() -> dict[str, float]:
    """Microseconds of a verdict on a (gold, answer) pair that was seen before."""
    found = {}
    for gold, answer in (("17", "17"), ("x^2+2x+1", "(x+1)^2"), ("(1, \\frac{9}{2})", "(1, 4.5)")):
        verifier = Verifier(form="equivalent")
        times = []
        for _ in range(7):
            start = time.process_time()
            for _ in range(5_000):
                verifier.verify(answer, gold, kind="answer")
            times.append((time.process_time() - start) / 5_000 * 1e6)
        found[answer] = min(times)
    return found


def bombs(limit_s: float = 1.0) -> dict[str, Any]:
    """A batch of 1,000 ordinary cases with and without ten that never end, on two workers."""
    chosen = [case for case in load_cases() if case.category in ("positive", "negative") and case.kind == "answer"][
        :1000
    ]
    responses, golds = [case.response for case in chosen], [case.gold for case in chosen]

    def run(extra: int) -> tuple[float, list[Any]]:
        with Verifier(form="equivalent", timeout=limit_s, workers=2) as verifier:
            verifier.warm()
            start = time.perf_counter()
            verdicts = verifier.verify_batch(
                [BOMB % n for n in range(extra)] + responses, ["42"] * extra + golds, kind="answer"
            )
            return time.perf_counter() - start, verdicts

    run(0)
    alone, plain = run(0)
    together, mixed = run(10)
    allowed = 10 * limit_s / 2 + 1.3 * alone
    return {
        "alone_s": alone,
        "with_bombs_s": together,
        "allowed_s": allowed,
        "undecided": sum(verdict.reason == "time limit" for verdict in mixed[:10]),
        "same_verdicts": plain == mixed[10:],
        "slowest_ordinary_s": max(verdict.seconds for verdict in mixed[10:]),
        "slowest_bomb_s": max(verdict.seconds for verdict in mixed[:10]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = SHARED / "cases"
    parser.add_argument("--cases", type=Path, default=shared if shared.is_dir() else None)
    parser.add_argument("--limit", type=int, default=1500, help="cases on which math-verify is timed as well")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/verifier.json"))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # math-verify tells of each of its time limits

    everything = labeled(arguments.cases)
    accuracy = run_audit("mathturn", everything).summary()
    print(f"accuracy on {accuracy['cases']} cases: {accuracy['accuracy']['share']:.4f}, "
          f"false positives {accuracy['false_positives']['share']:.5f}, false negatives {accuracy['false_negatives']['share']:.5f}, "
          f"calling process {accuracy['memory_mb']:.0f} MiB")  # fmt: skip
    report: dict[str, Any] = {
        "machine": platform.machine(),
        "cases": str(arguments.cases or "suite"),
        "mathturn": accuracy,
    }
    report["speed"] = race(spread(everything, arguments.limit))
    for key, limit in (("median", 1 / 50), ("median_cpu", 1 / 50), ("mean", 1 / 8), ("p99", 1 / 4)):
        row = report["speed"][key]
        print(
            f"{key}: {row['mathturn']:.3f} ms against {row['math-verify']:.3f} ms: ratio {row['ratio']:.4f} (at most {limit:.4f})"
        )
    report["gsm8k"] = throughput(gsm8k(arguments.limit))
    print(f"GSM8K throughput: {report['gsm8k']['ratio']:.0f} x math-verify's (at least 300)")
    report["repeated_us"] = repeated_us()
    print("repeated pairs:", {key: f"{value:.2f} us" for key, value in report["repeated_us"].items()}, "(below 5)")
    report["bombs"] = bombs()
    found = report["bombs"]
    print(f"10 bombs among 1,000: {found['with_bombs_s']:.2f} s, allowed {found['allowed_s']:.2f} s; "
          f"same verdicts: {found['same_verdicts']}; slowest ordinary {found['slowest_ordinary_s']:.3f} s")  # fmt: skip
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
