"""What (seed, index) gives has not changed since the first release: runs keep their figures."""

from __future__ import annotations

import hashlib
import json

import pytest

from mathturn_gym.problems import Curriculum, ProblemSource, load_problems
from mathturn_gym.problems.base import SPLITS

# Digests of prompts, gold answers and hints, taken before problems had ids of their content.
DRAWS = {
    "lins": "f1db06404f5bf435a8079d8c0b01d211",
    "add1": "b5e2767563dcf61c1e09e584d7484624",
    "add2": "06c0f73d8fd3800d2d87aae55b742baa",
    "add3": "4f085b0fbd83d4398461d9c93abf02a0",
    "mul1": "3a44e30e1a9891205bd62f0db42660b2",
    "mul2": "d1af413e50d1300aab330d33d36e241f",
    "guess8": "29c5f9e206c7039f6c340939c6c8eace",
    "guess12": "370e16ef7b1c64cc1c11411809f52954",
    "story1": "20f10c12a22d029955262147e2c80066",
    "story2": "9a0f1f349d4ba708452c8038ce252019",
    "bases": "0ede549e885a715487616460391783b9",
    "combinatorics": "c6575a52c1e62af39bd55aa00e9603d9",
    "derivatives": "c21f72c891c1d73ebe34800245f43182",
    "division": "4b30d8050b7196034f6588410e93648b",
    "expansion": "ed0603a179949e042d363772a5edea67",
    "factoring": "a642ec3376ea83f9523f98aecc81229c",
    "gcd-lcm": "efdfbef7e3f86b83ad4058577c3c2154",
    "geometry": "1b111eaafa116d3a972e1d03f5838347",
    "inequalities": "85ab651a5f6777860374be27408d0007",
    "integers": "cfcd4a0a54b2c36679c965a344b2a5ce",
    "integrals": "dc742ac416c6fe1bf57767f54071426b",
    "limits": "6bd32564d11d161abf964641179ebe28",
    "linear": "0deb26cfd215b5d21ad575a82a61640d",
    "logarithms": "d70632f8612a3a57b1281dfc2fd7b03c",
    "matrices": "2ea2678132138dccf1bedbdea9b51849",
    "modular": "ec1425a455211aec8b54c2b10b6980c9",
    "multiplication": "fad34a3bbf5cfbef86d6065927b59049",
    "percentages": "421995ebe1efb9da0595c3a8ca33f02c",
    "primes": "62fe61e57b80d95c89e6f3724543dfd2",
    "probability": "caaf1976c730891e22c6084768c701d3",
    "quadratic": "b3ff7023dbba3852571ac192ad770f76",
    "rationals": "bb383e716d0de79a9aab37a6ee0c899c",
    "sequences": "2cb010b915a7910845547ec7936c2227",
    "systems": "2438d996dc17c50abd29af336e8ccb25",
    "trigonometry": "97872694ce0bd9c7502765919de46beb",
    "words": "aa7cfd261b9f32405d57920fcb024220",
    "3*linear@1+primes": "f4c3bd67bc159f17",
    "families": "4750bb4c2ff4e0bf",
    "families@3": "61861e8921fb0b8e",
    "quadratic@2": "679a49895f82d04d",
    "words@4": "7ad7bc068507cc52",
    "curriculum": "9dc390ae59d26fd3",
    "curriculum:validation": "db642b12eb4ce605",
}
CURRICULUM = "curriculum:integers,linear,division,gcd-lcm@1-3"


def digest(source: ProblemSource, seeds: tuple[int, ...], items: int, *, hints: bool = True) -> str:
    found = hashlib.blake2b(digest_size=8)
    for seed in seeds:
        for index in range(items):
            problem = source.get(seed, index)
            content = [problem.prompt, problem.gold]
            found.update(json.dumps([*content, problem.hints, problem.false_hints] if hints else content).encode())
    return found.hexdigest()


@pytest.mark.parametrize("name", [name for name in DRAWS if len(DRAWS[name]) == 32])
def test_generators_and_families_draw_what_they_always_drew(name: str) -> None:
    splits = (*SPLITS, "all")
    assert "".join(digest(load_problems(name, split), (0, 11, 2**40), 20)[:8] for split in splits) == DRAWS[name]


@pytest.mark.parametrize("name", ["families", "families@3", "quadratic@2", "words@4"])
def test_so_do_levels_and_all_families_together(name: str) -> None:
    assert digest(load_problems(name), (0, 11, 2**40), 20) == DRAWS[name]


def test_so_do_mixtures_and_curricula() -> None:
    assert digest(load_problems("3*linear@1+primes"), (5,), 60, hints=False) == DRAWS["3*linear@1+primes"]
    assert digest(load_problems(CURRICULUM, "validation"), (5,), 100, hints=False) == DRAWS["curriculum:validation"]
    curriculum = load_problems(CURRICULUM, "train")
    assert isinstance(curriculum, Curriculum)
    found = hashlib.blake2b(digest_size=8)
    for index in range(200):
        problem = curriculum.get(5, index)
        found.update(json.dumps([problem.prompt, problem.gold]).encode())
        if index % 2:
            curriculum.record(problem.metadata["cell"], solved=index % 3 > 0)
    assert found.hexdigest() == DRAWS["curriculum"]
