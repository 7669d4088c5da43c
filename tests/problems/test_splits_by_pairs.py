"""`lins-pairs`: a test that is no interpolation."""

from __future__ import annotations

from mathturn_gym.problems import load_problems
from mathturn_gym.problems.base import SPLITS


def pairs(name: str) -> set[str]:
    source = load_problems(name)
    return {source.get(0, index).prompt.partition("=")[0] for index in range(1_500)}


def test_no_pair_of_coefficients_is_in_two_splits() -> None:
    found = [pairs(f"lins-pairs:{split}") for split in SPLITS]
    assert [len(one) for one in found] == [61, 10, 9]
    assert len(set.union(*found)) == 80, "disjoint, and all of them"
    assert len(pairs("lins:test") & pairs("lins:train")) > 40, "which lins does not promise"
