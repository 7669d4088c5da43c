"""Run in an environment where nothing of the heavy three is installed (`make test-light`): the verifier does all of its work."""

from __future__ import annotations

import importlib.util
import sys

from mathturn_gym.verifier import Verifier


def main() -> None:
    for library in ("torch", "transformers", "stable_baselines3", "typer", "rich"):
        assert importlib.util.find_spec(library) is None, f"{library} is installed here: this shows nothing"
    rows = [
        (r"so it is \boxed{42}", "42", "right", None),
        (r"\boxed{0.5}", r"\frac{1}{2}", "right", None),
        (r"\boxed{x+1}", "1+x", "right", None),
        (r"\boxed{\sum_{k=1}^{3} k}", "6", "right", "symbolic"),  # a worker process with sympy and math-verify
        (r"\boxed{7}", "42", "wrong", None),
        ("no idea", "42", "no_answer", None),
    ]
    with Verifier(form="equivalent", timeout=30.0) as verifier:
        for response, gold, status, tier in rows:
            verdict = verifier.verify(response, gold)
            assert verdict.status.value == status, (response, verdict)
            assert tier is None or verdict.tier == tier, verdict
    sys.stdout.write(f"{len(rows)} verdicts without torch, transformers and stable-baselines3\n")


if __name__ == "__main__":  # workers are spawned: they import this file
    main()
