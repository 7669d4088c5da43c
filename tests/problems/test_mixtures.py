from collections import Counter

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import Mixture, filter_by_pass_rate, load_problems
from mathturn_gym.problems.families import Family
from mathturn_gym.problems.lists import ProblemList
from mathturn_gym.types import Problem


def test_a_mixture_draws_its_sources_by_their_weights() -> None:
    mixture = Mixture([Family("linear", 1), Family("primes", 1), Family("words", 1)], [3, 1, 0])
    drawn = Counter(mixture.get(0, i).metadata["family"] for i in range(2_000))
    assert set(drawn) == {"linear", "primes"}
    assert abs(drawn["linear"] / 2_000 - 0.75) < 0.04  # four standard errors


def test_a_mixture_item_depends_on_seed_and_index_alone() -> None:
    first, again = (load_problems("3*linear@1+primes") for _ in range(2))
    assert [first.get(1, i) for i in range(20)] == [again.get(1, i) for i in reversed(range(20))][::-1]
    assert first.by_id(first.get(1, 3).id) == first.get(1, 3)


def test_a_written_mixture_has_the_weights_it_says() -> None:
    mixture = load_problems("3*linear@1+0.5*primes:test+words")
    assert isinstance(mixture, Mixture)
    assert mixture.weights == (3.0, 0.5, 1.0)
    assert [source.name for source in mixture.sources] == ["linear@1:train", "primes:test", "words:train"]


def test_selecting_from_a_mixture_keeps_what_fits() -> None:
    mixture = load_problems("linear+primes@2+words@3")
    assert mixture.select(family="linear", level=4).get(0, 0).metadata["level"] == 4
    both = mixture.select(level=2)
    assert {both.get(0, i).metadata["family"] for i in range(40)} == {"linear", "primes"}
    with pytest.raises(InvalidValueError, match="no source of"):
        mixture.select(family="words", level=2)


@pytest.mark.parametrize(
    ("sources", "weights", "message"),
    [
        ([], None, "at least one source"),
        ([Family("linear", 1), Family("linear", 1)], None, "comes twice"),
        ([Family("linear", 1)], [1, 2], "2 for 1"),
        ([Family("linear", 1)], [-1], r"weights\[0\]"),
        ([Family("linear", 1)], [0], "not all be 0"),
        ([Family("linear", 1)], [float("nan")], "finite"),
    ],
)
def test_impossible_mixtures_are_refused(sources: list[Family], weights: list[float] | None, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        Mixture(sources, weights)


def test_unknown_ids_name_the_mixture() -> None:
    with pytest.raises(InvalidValueError, match="none of the 2 sources"):
        load_problems("linear@1+primes@1").by_id("words/0")


def source_of(count: int) -> ProblemList:
    return ProblemList([Problem(f"p{i}", f"q{i}", str(i), metadata={"level": i % 2}) for i in range(count)])


def test_filtering_by_pass_rate_keeps_what_can_be_learned_from() -> None:
    kept = filter_by_pass_rate(source_of(4), {"p0": 0.0, "p1": 0.25, "p2": 1.0})
    assert [problem.id for problem in kept.problems] == ["p1"]
    with pytest.raises(InvalidValueError, match=r"between 0.5 and 0.9 \(3 of 4 have one\)"):
        filter_by_pass_rate(source_of(4), {"p0": 0.0, "p1": 0.25, "p2": 1.0}, low=0.5, high=0.9)


def test_the_parts_of_a_mixture_are_the_mixture_of_the_parts() -> None:
    mixture = load_problems("3*linear@1+lins")
    part = mixture.part("test")
    assert isinstance(part, Mixture)
    assert (part.weights, part.split, mixture.split) == ((3.0, 1.0), "test", None)
    assert [source.name for source in part.sources] == ["linear@1:test", "lins:test"]
    assert load_problems("3*linear@1+lins", "test").get(4, 4) == part.get(4, 4)


def test_a_mixture_has_the_leaves_of_its_parts() -> None:
    assert [leaf.name for leaf in Mixture([load_problems("lins+add1"), Family("primes", 1)]).leaves()] == [
        "lins:train",
        "add1:train",
        "primes@1:train",
    ]
