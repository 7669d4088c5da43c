"""Splits, parts and ids of what is drawn."""

from __future__ import annotations

import multiprocessing
from collections import Counter

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.problems import Generator, ProblemSource, base, load_problems
from mathturn_gym.problems.base import SPLITS, split_of
from mathturn_gym.problems.families import NAMES
from mathturn_gym.types import Problem


class Counted(ProblemSource):
    """A user's source: `index + 100 * seed`, without splits."""

    name = "counted"

    def get(self, seed: int, index: int) -> Problem:
        return Problem(f"c/{seed}/{index}", f"How much is {index + 100 * seed}?", str(index))

    def by_id(self, problem_id: str) -> Problem:
        _, seed, index = problem_id.split("/")
        return self.get(int(seed), int(index))


def testbase_take_eight_one_and_one_tenth() -> None:
    counts = Counter(split_of(f"question {i}") for i in range(20_000))
    assert [round(counts[split] / 20_000, 2) for split in SPLITS] == [0.8, 0.1, 0.1]


@pytest.mark.parametrize("name", NAMES)
def testbase_of_a_name_share_no_prompt_and_no_stream(name: str) -> None:
    sets = [{load_problems(f"{name}:{split}").get(0, i).prompt for i in range(300)} for split in ("train", "test")]
    if not load_problems(name).prompts_tell_answers:  # one prompt; its numbers are drawn apart
        golds = [[load_problems(f"{name}:{split}").get(0, i).gold for i in range(50)] for split in ("train", "test")]
        assert golds[0] != golds[1]
    else:
        assert not sets[0] & sets[1]


@pytest.mark.parametrize(
    "name", [*NAMES, "quadratic@2", "words", "linear@3:latex", "lins+add2", "curriculum:lins,integers@1-2"]
)
def test_the_parts_of_a_source_are_what_their_names_say(name: str) -> None:
    source = load_problems(name)
    assert source.split is None
    for split in SPLITS:
        part = source.part(split)
        assert part.split == split
        assert {part.get(3, i).metadata["split"] for i in range(30)} == {split}
        assert part.part(split) is part


def test_a_source_without_a_split_plays_train_problems() -> None:
    assert [load_problems("lins").get(2, i) for i in range(9)] == [
        load_problems("lins:train").get(2, i) for i in range(9)
    ]


def test_a_source_that_was_chosen_to_be_one_split_has_no_other() -> None:
    with pytest.raises(InvalidValueError, match="'lins:test' is the split 'test', and has no part 'train'"):
        load_problems("lins:test").part("train")
    everything = load_problems("add1:all")
    assert everything.part("train") is everything is everything.part("test")
    with pytest.raises(InvalidValueError, match="unknown split 'tset': did you mean 'test'"):
        everything.part("tset")


def test_a_source_of_a_user_has_parts_too() -> None:
    source = Counted()
    parts = {split: source.part(split) for split in SPLITS}
    for split, part in parts.items():
        found = [part.get(1, i) for i in range(40)]
        assert {split_of(problem.prompt) for problem in found} == {split}
        assert found == [part.get(1, i) for i in range(40)]
        assert part.by_id(found[7].id) == found[7]
    with pytest.raises(InvalidValueError, match="is not in split 'test'"):
        parts["test"].by_id(parts["train"].get(0, 0).id)
    assert source.part("all").get(1, 5) == source.get(1, 5)


class TestIds:
    @pytest.mark.parametrize("name", [*NAMES, "quadratic@3", "words", "primes@1:latex"])
    def test_equal_questions_have_equal_ids_and_different_ones_do_not(self, name: str) -> None:
        found: dict[str, Problem] = {}
        for i in range(400):
            problem = load_problems(f"{name}:all" if ":" not in name else name).get(i % 3, i)
            content = problem.prompt, problem.gold, problem.hints, problem.false_hints
            first = found.setdefault(problem.id, problem)
            assert (first.prompt, first.gold, first.hints, first.false_hints) == content
        contents = {(p.prompt, p.gold, p.hints, p.false_hints) for p in found.values()}
        assert len(contents) == len(found)

    def test_a_question_has_one_id_in_every_split_seed_and_level(self) -> None:
        everything, train = load_problems("lins:all"), load_problems("lins")
        by_prompt = {problem.prompt: problem for problem in (everything.get(4, i) for i in range(2_000))}
        same = [(by_prompt[p.prompt], p) for p in (train.get(9, i) for i in range(200)) if p.prompt in by_prompt]
        assert len(same) > 150
        assert all(one == other for one, other in same)

    def test_ids_begin_with_the_family_alone(self) -> None:
        assert load_problems("limits@2:validation:latex").get(5, 7).id.startswith("limits/")
        assert load_problems("add2:test").get(0, 0).id.startswith("add2/")

    @pytest.mark.parametrize("name", [*NAMES, "quadratic", "words@4", "gcd-lcm@1:test", "limits@2:validation:latex"])
    def test_problems_are_found_again_by_id(self, name: str) -> None:
        source = load_problems(name)
        problem = source.get(5, 7)
        assert source.by_id(problem.id) == problem  # it was drawn before
        assert load_problems(name).by_id(problem.id) == problem  # it has to be looked for

    def test_every_problem_of_a_small_source_is_found(self) -> None:
        wanted = {(problem := load_problems("lins:test").get(10**6 + i, i)).id: problem for i in range(600)}
        assert len(wanted) == 87
        fresh = load_problems("lins:test")
        assert {problem_id: fresh.by_id(problem_id) for problem_id in wanted} == wanted

    def test_what_was_drawn_lately_is_found_in_a_source_too_large_to_look_through(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = load_problems("multiplication@5")
        problems = [source.get(2**61, i) for i in range(1_000)]
        assert load_problems("multiplication@5:all").by_id(problems[0].id) == problems[0]
        assert load_problems("multiplication").by_id(problems[0].id) == problems[0]
        for other in ("multiplication@4", "multiplication@5:test", "multiplication@5:latex"):
            with pytest.raises(InvalidValueError, match="was not found"):
                load_problems(other).by_id(problems[0].id)
        monkeypatch.setattr(base, "_places", base._Recent(1))  # as in another process
        monkeypatch.setattr(base, "_streams", base._Recent(1))
        with pytest.raises(InvalidValueError, match=r"was not found in source 'multiplication@5:train'.*reset\(seed=…"):
            load_problems("multiplication@5").by_id(problems[0].id)

    @pytest.mark.parametrize("bad", ["", "lins", "add1/0123456789abcdef", "lins:train/0/0", "x" * 10_000])
    def test_ids_of_other_sources_are_refused_at_once(self, bad: str) -> None:
        with pytest.raises(InvalidValueError, match="is not of source 'lins:train', whose ids are 'lins/HASH'"):
            load_problems("lins").by_id(bad)

    def test_looking_for_an_id_does_not_change_what_is_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("_places", "_streams"):
            monkeypatch.setattr(base, name, base._Recent(100))
        source = load_problems("linear@3")
        first = source.get(2**61, 5)
        with pytest.raises(InvalidValueError, match="was not found"):
            source.by_id(f"linear/{1:016x}")
        assert [problem_id for problem_id, _ in base._places.items()] == [first.id]
        assert base._streams.items() == [(("linear", 2**61), 5)]

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "_places", base._Recent(100))
        source = load_problems("linear@3")
        problems = [source.get(0, i) for i in range(1_000)]
        assert 100 <= len(base._places.items()) <= 200
        assert base._places.get(problems[-100].id) is not None
        assert base._places.get(problems[0].id) is None

    def test_another_process_gives_the_same_ids(self) -> None:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(first_id, ["words@2", "guess8"]) == [first_id("words@2"), first_id("guess8")]

    def test_texts_that_are_no_unicode_have_ids_too(self) -> None:
        class Odd(Generator):
            def draw(self, rng: np.random.Generator) -> Problem:
                return Problem("-", f"\ud800 {rng.integers(1000)}", "\udfff")

        source = Odd("odd")
        assert source.by_id(source.get(0, 0).id) == source.get(0, 0)


def first_id(name: str) -> str:
    return load_problems(name).get(3, 4).id
