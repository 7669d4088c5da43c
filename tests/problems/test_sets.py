"""Different problems: so many of them, how many there are, which are shared."""

from __future__ import annotations

import pytest

from mathturn_gym.errors import InvalidValueError, SharedPromptsError
from mathturn_gym.problems import Mixture, check_disjoint, count_distinct, distinct, load_problems, overlap
from mathturn_gym.problems.families import Family
from mathturn_gym.types import Problem


def listed(*numbers: int) -> list[Problem]:
    return [Problem(f"p{i}", f"q{i}", str(i)) for i in numbers]


class TestDistinct:
    def test_so_many_problems_are_so_many_different_ones(self) -> None:
        chosen = distinct(load_problems("add2:test"), 400, seed=3)
        assert len({(problem.prompt, problem.gold) for problem in chosen}) == len(chosen) == 400
        assert {problem.metadata["split"] for problem in chosen} == {"test"}
        assert [p.id for p in distinct(load_problems("add2:test"), 100, seed=3)] == [p.id for p in chosen][:100]

    def test_they_come_in_the_order_of_the_stream(self) -> None:
        source = load_problems("lins")
        assert [problem.id for problem in distinct(source, 5)] == [source.get(0, i).id for i in range(5)]
        assert [problem.id for problem in distinct(load_problems(listed(3, 1, 2)), 2, seed=9)] == ["p3", "p1"]

    def test_too_few_are_an_error_or_all_there_are(self) -> None:
        with pytest.raises(
            InvalidValueError, match=r"'lins:test' has 87 different problems \(looked for in [\d,]+ draws\)"
        ):
            distinct(load_problems("lins:test"), 88)
        assert len(distinct(load_problems("lins:test"), 10**6, fewer=True)) == 87
        assert len(distinct(load_problems(listed(1, 2)), 5, fewer=True)) == 2


class TestCount:
    @pytest.mark.parametrize(
        ("name", "expected"), [("lins:all", 800), ("add1:all", 55), ("guess8", 8), ("lins:test", 87)]
    )
    def test_small_sources_are_counted(self, name: str, expected: int) -> None:
        found = count_distinct(load_problems(name))
        assert (found.found, found.complete, str(found)) == (expected, True, str(expected))

    def test_large_ones_are_estimated(self) -> None:
        found = count_distinct(load_problems("mul2:all"), draws=6_000)
        assert not found.complete
        assert found.found < 6_000 < found.estimate
        assert abs(found.estimate - 8_100) < 400
        assert str(found).startswith("more than ")

    def test_lists_are_as_long_as_they_are(self) -> None:
        assert str(count_distinct(load_problems(listed(*range(1_234))))) == "1,234"


class TestOverlap:
    def test_lists_are_compared_completely(self) -> None:
        a, b = load_problems(listed(1, 2, 3)), load_problems(listed(4, 3, 2))
        assert overlap(a, b) == ("q2", "q3")
        assert overlap(a, load_problems(listed(9))) == ()

    def test_splits_of_a_family_share_nothing_and_all_of_it_does(self) -> None:
        assert overlap(load_problems("linear@1"), load_problems("linear@1:test")) == ()
        assert overlap(load_problems("linear@1+lins"), load_problems("add1+lins:validation")) == ()
        assert len(overlap(load_problems("lins:all"), load_problems("lins:test"))) > 60

    def test_a_hidden_number_is_no_shared_prompt(self) -> None:
        assert overlap(load_problems("guess8"), load_problems("guess8:test")) == ()

    def test_training_and_testing_on_the_same_prompts_is_refused_unless_asked_for(self) -> None:
        rows = load_problems(listed(*range(10)))
        with pytest.raises(
            SharedPromptsError, match=r"share 10 prompts, the first of them 'q0'.*':all' in both, or allow=True"
        ):
            check_disjoint(rows, rows)
        check_disjoint(rows, rows, allow=True)
        check_disjoint(rows.part("all"), rows.part("all"))
        with pytest.raises(SharedPromptsError):
            check_disjoint(load_problems("lins:all"), load_problems("lins:test"))
        check_disjoint(load_problems("families"), load_problems("families:test"), draws=500)
        with pytest.raises(SharedPromptsError, match="share"):
            check_disjoint(Mixture([Family("primes", 1)]), load_problems("primes@1"))
