from collections import Counter

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import Curriculum, Family, FiniteSource, Mixture, filter_by_pass_rate, load_problems
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
    assert mixture.select(family="linear", level=4).get(0, 0).id.startswith("linear@4")
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
        load_problems("linear@1+primes@1").by_id("words@1:train/0/0")


def source_of(count: int) -> FiniteSource:
    return FiniteSource([Problem(f"p{i}", f"q{i}", str(i), metadata={"level": i % 2}) for i in range(count)])


def test_filtering_by_pass_rate_keeps_what_can_be_learned_from() -> None:
    kept = filter_by_pass_rate(source_of(4), {"p0": 0.0, "p1": 0.25, "p2": 1.0})
    assert [problem.id for problem in kept.problems] == ["p1"]
    with pytest.raises(InvalidValueError, match=r"between 0.5 and 0.9 \(3 of 4 have one\)"):
        filter_by_pass_rate(source_of(4), {"p0": 0.0, "p1": 0.25, "p2": 1.0}, low=0.5, high=0.9)


def test_a_list_of_problems_is_selected_by_its_metadata() -> None:
    part = source_of(6).select(level=1)
    assert isinstance(part, FiniteSource)
    assert [problem.id for problem in part.problems] == ["p1", "p3", "p5"]
    with pytest.raises(InvalidValueError, match="no problem of family None and level '7'; it has"):
        source_of(6).select(level=7)


def test_a_list_of_problems_is_split_by_a_stable_hash() -> None:
    source = source_of(200)
    parts = {split: source.part(split) for split in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == 200
    assert 140 < len(parts["train"]) < 180
    assert parts["test"].name == "problems:test"
    assert source_of(100).part("test").problems == parts["test"].problems[: len(source_of(100).part("test"))]


class TestCurriculum:
    def curriculum(self, **kwargs: object) -> Curriculum:
        return Curriculum(["integers", "linear"], minimum=4, window=8, **kwargs)  # type: ignore[arg-type]

    def feed(self, curriculum: Curriculum, family: str, level: int, outcomes: str) -> None:
        for outcome in outcomes:
            curriculum.record(family, level, solved=outcome == "+")

    def test_begins_with_the_first_level(self) -> None:
        weights = self.curriculum(explore=0.0).weights()
        assert {cell for cell, weight in weights.items() if weight} == {"integers@1", "linear@1"}

    def test_moves_on_once_a_level_is_mastered(self) -> None:
        curriculum = self.curriculum(explore=0.0)
        self.feed(curriculum, "integers", 1, "++++++++")
        weights = curriculum.weights()
        assert weights["integers@2"] > 10 * weights["integers@1"]
        assert weights["integers@3"] == 0

    def test_goes_back_where_a_level_is_too_hard(self) -> None:
        curriculum = self.curriculum(explore=0.0)
        self.feed(curriculum, "integers", 1, "+-+-+-+-")
        self.feed(curriculum, "integers", 2, "--------")
        assert curriculum.rates()["integers@1"] == 0.5
        assert curriculum.weights()["integers@1"] > 10 * curriculum.weights()["integers@2"]

    def test_weighs_cells_outside_the_band_by_their_distance(self) -> None:
        curriculum = self.curriculum(explore=0.0, band=(0.4, 0.6))
        self.feed(curriculum, "integers", 1, "++++--")  # 4/6
        self.feed(curriculum, "linear", 1, "+++++-")  # 5/6
        weights = curriculum.weights()
        assert weights["integers@1"] / weights["linear@1"] == pytest.approx(2.718281828 ** ((5 / 6 - 4 / 6) / 0.1))

    def test_forgets_what_is_older_than_the_window(self) -> None:
        curriculum = self.curriculum()
        self.feed(curriculum, "integers", 1, "--------++++++++")
        assert curriculum.rates()["integers@1"] == 1.0

    def test_explores_every_cell(self) -> None:
        weights = self.curriculum(explore=0.5).weights()
        assert min(weights.values()) == pytest.approx(0.05)
        assert sum(weights.values()) == pytest.approx(1.0)

    def test_is_deterministic_given_the_history(self) -> None:
        first, second = self.curriculum(), self.curriculum()
        for curriculum in (first, second):
            self.feed(curriculum, "integers", 1, "++++")
        second.get(0, 99)
        assert [first.get(3, i) for i in range(30)] == [second.get(3, i) for i in range(30)]
        self.feed(second, "integers", 2, "++++")
        assert [first.get(3, i) for i in range(30)] != [second.get(3, i) for i in range(30)]

    def test_a_checkpoint_restores_it(self) -> None:
        first, second = self.curriculum(), self.curriculum()
        self.feed(first, "linear", 1, "+++-")
        second.load_state_dict(first.state_dict())
        assert second.weights() == first.weights()
        with pytest.raises(InvalidValueError, match="state has the cells"):
            second.load_state_dict({"linear@1": []})

    def test_finds_its_problems_again(self) -> None:
        curriculum = self.curriculum()
        problem = curriculum.get(0, 5)
        assert curriculum.by_id(problem.id) == problem
        assert curriculum.select(family="linear", level=3).get(0, 0).id == "linear@3:train/0/0"

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"families": []}, "at least one name"),
            ({"families": "linear"}, "at least one name"),
            ({"families": ["linaer"]}, "did you mean 'linear'"),
            ({"band": (0.7, 0.3)}, "low < high"),
            ({"explore": 2}, "explore"),
            ({"window": 4, "minimum": 5}, "minimum"),
        ],
    )
    def test_refuses_what_cannot_be(self, kwargs: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidValueError, match=message):
            Curriculum(**kwargs)  # type: ignore[arg-type]

    def test_refuses_outcomes_of_other_cells(self) -> None:
        with pytest.raises(InvalidValueError, match="no cell words@1"):
            self.curriculum().record("words", 1, solved=True)
