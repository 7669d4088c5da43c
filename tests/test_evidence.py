"""What the experiments in `experiments/` and `benchmarks/` compute by themselves: controls, choices, and what is known exactly."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny import train_tokenizer
from warmup import CALCULATOR

from mathturn_gym.baselines import train
from mathturn_gym.baselines.algorithms import registered
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.compare import load_matrix
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Status, Verdict

# ---- who listens


def test_the_best_that_ignores_hints_is_better_than_a_policy_trained_into_a_corner(
    benchmark: Callable[[str], Any],
) -> None:
    bench = benchmark("listeners")
    hint = bench.hints_of(8)
    assert (bench.blind(8, 3), bench.deaf(8, 3), bench.listener(8, 3, hint)) == (
        Fraction(169, 512),
        Fraction(3, 8),
        Fraction(5, 8),
    )
    fixed = max(len(set(guesses)) for guesses in itertools.product(range(1, 9), repeat=3))
    assert bench.deaf(8, 3) == Fraction(fixed, 8), "every fixed sequence of guesses"
    assert bench.listener(8, 3, lambda number: "no hint") == bench.deaf(8, 3), "who is told nothing can hear nothing"
    assert bench.listener(8, 2, str) == 1, "told the number"


def test_the_tasks_scale_is_that_of_the_guessers(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("listeners")
    hint = bench.hints_of(8)
    for turn in (1, 2, 3):
        floor, ceiling = load_task("guess8").scale[f"acc@{turn}"]
        assert floor == float(bench.blind(8, turn))
        assert ceiling == float(bench.listener(8, turn, hint))


@pytest.mark.parametrize(
    ("prior", "highest", "turns", "lies", "values"),
    [
        ("geometric", 7, 3, 0.0, (1.0, 0.667, 0.667)),
        ("geometric", 7, 3, 0.5, (0.667, 0.667, 0.667)),
        ("uniform", 3, 2, 0.0, (1.0, 0.778, 0.667)),
    ],
)
def test_the_values_of_asking_guessing_and_ignoring_hints(
    benchmark: Callable[[str], Any], prior: str, highest: int, turns: int, lies: float, values: tuple[float, ...]
) -> None:
    bench = benchmark("listeners")
    asker = bench.Asker(bench.prior_of(prior, highest), lies)
    found = [float(one(turns)) for one in (asker.optimal, asker.myopic, asker.deaf)]
    assert found == pytest.approx(values, abs=6e-4)


def test_the_values_of_asking_are_those_of_every_policy_written_out(benchmark: Callable[[str], Any]) -> None:
    """Three numbers, two turns, hints that lie in a tenth of the cases: 3 first guesses, 3 answers to each of 2 hints."""
    bench = benchmark("listeners")
    prior, lies = bench.prior_of("geometric", 3), 0.1

    def value(first: int, after_above: int, after_below: int) -> float:
        total = 0.0
        for number, mass in enumerate(map(float, prior), 1):
            says_above = 1 - lies if number > first else lies
            second = says_above * (number == after_above) + (1 - says_above) * (number == after_below)
            total += mass * (1.0 if number == first else second)
        return total

    best = max(value(*guesses) for guesses in itertools.product((1, 2, 3), repeat=3))
    assert float(bench.Asker(prior, lies).optimal(2)) == pytest.approx(best)


@pytest.mark.slow
def test_the_values_of_asking_with_two_peaks(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("listeners")
    asker = bench.Asker(bench.prior_of("peaks", 15))
    found = [float(one(4)) for one in (asker.optimal, asker.myopic, asker.deaf)]
    assert found == pytest.approx([1.0, 0.466, 0.421], abs=6e-4)


def test_tables_are_worth_what_their_play_finds(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benchmark("asking")
    setting = bench.Setting("geometric", 5, 3, 25)
    policies = bench.Tables(setting, [3, 4])
    monkeypatch.setattr(bench, "BATCH", 20_000)
    chances = [logits.detach().softmax(2).numpy().cumsum(2) for logits in policies.logits]
    numbers = policies.rng.choice(5, (2, 20_000), p=policies.prior)
    found = policies.play(numbers, np.zeros_like(numbers), 0, chances)[2].sum(2).mean(1)
    assert found.tolist() == pytest.approx(policies.value()[1], abs=0.014), "four standard errors"


def test_exact_gradients_of_the_turn_alone_end_at_the_myopic_value(
    benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benchmark("asking")
    monkeypatch.setattr(bench, "STEPS", 200)
    setting = bench.Setting("geometric", 3, 2, 0)
    alone, later = (bench.tables(setting, label, [0])[0]["acc@2"] for label in bench.EXACT)
    assert alone == pytest.approx(setting.bounds()["myopic"], abs=2e-3)
    assert later > alone + 0.1


def test_beliefs_after_a_false_verdict_are_those_of_counting(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("noise")
    stays, changes = bench.Cell("feedback", 0.5).beliefs()
    assert (stays, changes) == pytest.approx((0.445, 0.356), abs=5e-4)
    assert bench.Cell("reward", 0.5, 0.5).beliefs()[0] == 0.0, "the policy reads the truth"
    threshold = bench.Cell("both", bench.RATIO * (1 - 0.3), 0.3).beliefs()
    assert threshold[0] == pytest.approx(threshold[1]), "repeating is right above fn = .4 (1 - fp)"


# ---- more tries without a dialogue


def answered(index: int, answer: str | None, right: bool, group: str) -> Episode:
    verdict = (
        Verdict(Status.NO_ANSWER) if answer is None else Verdict(Status.RIGHT if right else Status.WRONG, answer=answer)
    )
    return synthetic_episode(0, index, [1], group=group, verdicts=(verdict,))


def test_fresh_tries_and_tries_without_repeats(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("questions")
    group = [answered(i, a, a == "7", "p") for i, a in enumerate(["1", "1", "1", "7"])]
    groups = bench.by_problem([*group, *(answered(9 + i, None, False, "q") for i in range(4))])
    assert [len(one) for one in groups] == [4, 4]
    assert bench.fresh(groups, 2) == pytest.approx((1 - (3 / 4) * (2 / 3)) / 2)
    assert bench.without_repeats(groups, 1) == pytest.approx(0.25 / 2)
    assert bench.without_repeats(groups, 2) == pytest.approx(1.0 / 2), "the other answer comes next, whatever was first"
    spelled = [answered(i, a, False, "r") for i, a in enumerate(["2", " 2 ", "2.0"])]
    assert bench.without_repeats([[*spelled, answered(5, "7", True, "r")]], 2) == 1.0, "three spellings of one answer"


# ---- what is chosen is chosen on validation problems


def rows(figures: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    names = ("acc@1", "acc@K in groups", "fresh@K", "distinct@K", "acc@K none", "acc@K random")
    return [
        {"trained": kind, "seed": seed, "validation acc@K": validation, "acc@K": test, **dict.fromkeys(names, 0.1)}
        for kind, (validation, test) in figures.items()
        for seed in range(3)
    ]


def test_the_discount_is_chosen_where_the_answer_is_not_measured(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("questions")
    luckier = {
        "discount 0": (0.6, 0.5),
        "discount 1": (0.5, 0.9),
        "single-turn": (0.2, 0.2),
        "trained deaf": (0.3, 0.3),
    }
    found = rows(luckier)
    assert bench.chosen(found) == "discount 0", "the better one on the test split is not taken for that"
    by_name = {what: values for _, what, values in bench.answers(found, 0.375)}
    np.testing.assert_allclose(by_name["acc@K: multi-turn (discount 0) - single-turn"], 0.3)
    np.testing.assert_allclose(by_name["acc@K (discount 0) - deaf@K"], 0.125)
    np.testing.assert_allclose(by_name["acc@K: discount 0 - trained deaf"], 0.4)  # told nothing, as it was trained
    assert not any("deaf@K" in what for _, what, _ in bench.answers(found, None))
    assert not any("lie" in name for name in by_name), "nothing lies where there are no hints"
    hinted = [{**row, "acc@K hint-flipped": row["acc@K"] - 0.2} for row in found]
    told = {what: values for _, what, values in bench.answers(hinted, None)}
    np.testing.assert_allclose(told["own acc@K - told hints that lie (discount 0)"], 0.2)
    part = [row for row in found if (row["trained"], row["seed"]) != ("trained deaf", 1)]
    assert bench.whole(part) == [0, 2], "a seed without one of the policies is in no difference"
    assert {len(values) for _, _, values in bench.answers(part, 0.375)} == {2}
    assert bench.deaf_at("guess8", 3) == 0.375
    assert bench.deaf_at("lins", 4) is None


# ---- comparisons

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_run_of_every_comparison_has_a_config(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `mathturn compare` would begin it, from the repository's root; warm starts come later."""
    monkeypatch.chdir(EXPERIMENTS.parent)
    seen = set()
    for cell in load_matrix(file, seeds=[11]).cells():
        config = load_task(cell.task).config(
            cell.algorithm, {**cell.settings, "seed": cell.seed}, budget={"tokens": cell.tokens}
        )
        assert "{" not in config.policy.model
        if "{seed}" in load_task(cell.task).tables["policy"]["model"]:
            assert config.policy.model.endswith("-11")
        seen.add((cell.label, cell.task))
    assert seen


# ---- published claims


@pytest.mark.parametrize("claim", ["unary", "correction", "credit", "tool"])
def test_every_arm_of_a_claim_is_a_run_and_every_difference_is_between_two_of_them(
    claim: str, benchmark: Callable[[str], Any]
) -> None:
    asked = benchmark("reproductions").CLAIMS[claim]
    for arm in asked.arms.values():
        config = load_task(asked.task).config(arm.algorithm, {**asked.played, **arm.settings})
        if "env.reward_terms" in arm.settings:
            assert config.env.value("reward_terms") == arm.settings["env.reward_terms"]
    for figure, one, other in (*asked.differences, *asked.afterwards):
        assert figure in asked.figures
        assert {one, other} <= set(asked.arms)


def test_a_claims_report_pairs_by_seed(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("reproductions")
    asked = bench.CLAIMS["credit"]
    found = [
        {"claim": "credit", "arm": arm, "seed": seed, "acc@1": seed / 10 + 0.02 * i, "acc@K": 0.5}
        for i, arm in enumerate(asked.arms)
        for seed in range(3)
    ]
    text = bench.report("credit", found)
    assert "| acc@1: turn - trajectory | 0.040 |" in text, (
        "seeds differ by more, and that cancels: no interval without width"
    )
    assert "| untrained | 0.100 [-0.148, 0.348] | 0.500 |" in text


def test_who_calls_the_calculator_is_seen_in_the_first_answer(benchmark: Callable[[str], Any]) -> None:
    bench, tokenizer = benchmark("reproductions"), train_tokenizer(CALCULATOR.phrases)
    end = tokenizer.eos_token_id

    def called(*responses: str) -> bool:
        ids, spans = [1], []
        for response in responses:
            said = [*tokenizer.encode(response), end]
            spans.append((len(ids), len(ids) + len(said)))
            ids += said
        episode = SimpleNamespace(ids=np.array(ids), turn_spans=np.array(spans))
        return bool(bench.calls(SimpleNamespace(tokenizer=tokenizer), episode))

    assert called("154+382=\\boxed{1}", "\\boxed{536}")
    assert not called("\\boxed{1}", "154+382=\\boxed{536}")
    assert not called("536=\\boxed{1}")


def test_a_run_of_a_claim_is_not_trained_again(
    tmp_path: Path, benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benchmark("reproductions")
    monkeypatch.setattr(bench, "PLAYED", 16)
    job = ("correction", "improvement, first turn held", 0, "lins", 1)  # its kl_weight is a list in JSON
    first = bench.one(*job, tmp_path)

    def again(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(bench, "train", again)
    assert bench.one(*job, tmp_path) == first


# ---- what an answer says first


@pytest.mark.parametrize(
    ("text", "cut_off", "said"),
    [
        ("77 + 9 = 86, but 77", True, "86"),
        ("77 + 9 = 8", True, None),
        ("77 + 9 = 8", False, "8"),
        ("It is 86.", False, "86"),
        ("86", True, None),
        ("3 - 9 = -6\n\nThe", True, "-6"),
        ("To add 77 and", True, "77"),
        ("x = ?, then 4", False, None),
        ("No idea", False, None),
    ],
)
def test_the_first_result_of_an_answer(
    text: str, cut_off: bool, said: str | None, benchmark: Callable[[str], Any]
) -> None:
    assert benchmark("first_results").first_result(text, cut_off=cut_off) == said


# ---- answers that know nothing of the problem


def asked(index: int, group: str, gold: str, *answers: str) -> Episode:
    verdicts = tuple(
        Verdict(Status.RIGHT if answer == gold else Status.WRONG, answer=answer, gold=gold) for answer in answers
    )
    return synthetic_episode(0, index, [1] * len(answers), group=group, verdicts=verdicts, gold=(gold,))


def test_answers_are_held_against_the_other_problems(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("swapped_answers")
    problems = [[asked(0, "a", "1", "1"), asked(1, "a", "1", "2", "1")], [asked(2, "b", "2", "1.0", "2")]]
    golds = [("1",), ("2",)]
    first, both = (bench.matches(problems, golds, turns) for turns in (1, 2))
    assert first.tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert both.tolist() == [[1.0, 0.5], [1.0, 1.0]]
    asked_, others, found = bench.difference(first, np.array([2.0, 1.0]))
    assert (asked_, others) == pytest.approx((1 / 3, 0.75)), "two thirds of the way 1 in 2, and 1: pairs count alike"
    assert found.value == pytest.approx(1 / 3 - 0.75)


def test_an_answer_that_the_control_cannot_compare_is_an_error(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("swapped_answers")
    own_verifier = [[synthetic_episode(0, 0, [1], group="a", verdicts=(Verdict(Status.RIGHT, answer="a dozen"),))]]
    with pytest.raises(ValueError, match=r"1 of 1 episodes on .* were judged right, and 0 of"):
        bench.matches(own_verifier, [("1",)], 1)


def test_who_says_what_is_often_right_gains_nothing_by_reading(benchmark: Callable[[str], Any]) -> None:
    """500 sets of 60 problems with four episodes each: one in seven answers is read off the problem, or none is."""
    bench = benchmark("swapped_answers")
    rng, size, each = np.random.default_rng(0), 60, 4
    chances = np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    for knows in (0.0, 1 / 7):
        truth = knows * (1 - chances @ chances)
        inside = 0
        for _ in range(500):
            gold = rng.choice(6, p=chances, size=size)
            said = rng.choice(6, p=chances, size=(size, each))
            said = np.where(rng.random((size, each)) < knows, gold[:, None], said)
            table = (said[:, :, None] == gold).mean(1)
            found = bench.difference(table, np.full(size, float(each)))[2]
            inside += found.low <= truth <= found.high
        assert 0.93 <= inside / 500 <= 0.99, (knows, inside)


# ---- sums the other way round


def test_the_sums_that_a_run_has_drawn_are_drawn_again(tmp_path: Path, benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("mirrored_sums")
    quiet = {"evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0, "evaluation.kept": 16}
    small = {**quiet, "batch_episodes": 16, "minibatches": 2, "group_size": 2}
    train(load_task("add1").config("grpo", small, budget={"episodes": 16}), run_dir=tmp_path / "run")
    kept = read_episodes(tmp_path / "run" / "episodes_train.jsonl")
    seen = bench.trained_sums(tmp_path / "run")
    assert seen == {bench.operands(episode.prompt) for episode in kept}, "one iteration, of which all is kept"
    assert all(len(sum_) == 2 for sum_ in seen)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "env": {**config["env"], "problems": "add2"}}))
    with pytest.raises(ValueError, match="episode 0 was not about"):
        bench.trained_sums(tmp_path / "run")


# ---- the factorial table


def test_the_factorial_table_pairs_by_seed_rows_that_the_comparison_has(
    tmp_path: Path, benchmark: Callable[[str], Any]
) -> None:
    bench = benchmark("factorial")
    rows = [
        ("running_2", 0, "0.7"),
        ("running_2", 1, "0.9"),
        ("loo_2", 0, "0.5"),
        ("loo_2", 1, "0.7"),
        ("loo_4", 0, ""),
    ]
    lines = ["label,seed,test/acc@1", *(f"{label},{seed},{value}" for label, seed, value in rows)]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n")
    of = bench.scores(tmp_path / "results.csv", "acc@1")
    assert of == {"running_2": {0: 0.7, 1: 0.9}, "loo_2": {0: 0.5, 1: 0.7}}, "without the run that has no score"
    (found,) = bench.differences(of)[2:]
    assert "(`running_2` − `loo_2`) | +0.200 | 2 |" in found, "seeds differ by as much, and that cancels"
    assert bench.grid(of, "")[2:] == [
        "| running |  | 0.800 [-0.471, 2.071] |  |  |",
        "| shrunk |  |  |  |  |",
        "| loo |  | 0.600 [-0.671, 1.871] |  |  |",
        "| episode |  |  |  |  |",
    ]
    with pytest.raises(ValueError, match="no run has a test figure 'acc@9'"):
        bench.scores(tmp_path / "results.csv", "acc@9")


def test_every_pair_of_the_factorial_table_is_of_two_rows_of_the_comparison(benchmark: Callable[[str], Any]) -> None:
    labels = {cell.label for cell in load_matrix(Path(__file__).parents[1] / "experiments" / "factorial.toml").cells()}
    asked = [name for _, one, other in benchmark("factorial").pairs() for name in (one, other)]
    assert set(asked) == labels


# ---- the search


def test_every_algorithm_has_a_search_of_the_same_size(benchmark: Callable[[str], Any]) -> None:
    bench = benchmark("tune")
    assert set(bench.GRIDS) - set(bench.VARIANTS) == set(registered())
    for name, grid in bench.GRIDS.items():
        assert np.prod([len(values) for values in grid.values()]) == 6, name
        bench.config_of("lins", name, {option: values[-1] for option, values in grid.items()})  # or it raises


def test_every_row_of_the_small_matrix_has_a_second_search_of_the_same_size_around_its_first(
    benchmark: Callable[[str], Any],
) -> None:
    bench = benchmark("tune")
    matrix = load_matrix(Path(__file__).parents[1] / "experiments" / "matrix.toml")
    assert set(bench.PASSES) == set(matrix.algorithms)
    for task in matrix.tasks:
        for name in matrix.algorithms:
            best = bench.cells_of(task, name)[0]
            found = bench.passes_of(name, best)
            assert len({json.dumps(one, sort_keys=True) for one in found}) == 6, name
            configs = [bench.config_of(task, name, one) for one in found]  # or it raises
            assert bench.config_of(task, name, best) in configs, (task, name)


def test_a_second_search_goes_on_from_the_best_cell_of_the_first(
    tmp_path: Path, benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = benchmark("tune")

    def call(*options: str) -> None:
        monkeypatch.setattr("sys.argv", ["tune.py", "--passes", "--out", str(tmp_path), *options])
        bench.main()

    for options, said in (
        (["--algorithms", "gspo", "ppo"], "--algorithms has gspo"),
        (["--algorithms", "ppo", "--rates", "1"], "give one of them"),
        (["--algorithms", "ppo"], "lins.json has no ppo"),
    ):
        with pytest.raises(SystemExit):
            call(*options)
        assert said in capsys.readouterr().err
    rows = [
        {"algorithm": "ppo", "changes": {"rate": rate}, "seed": seed, "first": first, "last": 0.5}
        for rate, seed, first in ((0.5, 0, 0.2), (0.5, 1, 0.2), (1.0, 0, 0.0), (1.0, 1, 0.5))
    ]
    (tmp_path / "lins.json").write_text(json.dumps({"rows": rows}))
    asked: list[tuple[Any, ...]] = []

    class Pool:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: Any) -> None: ...

        def submit(self, _: Any, *given: Any) -> Any:
            asked.append(given)
            row = {"algorithm": given[1], "changes": given[2], "seed": given[3], "first": 0.1, "last": 0.1}
            return SimpleNamespace(result=lambda: row)

    monkeypatch.setattr(bench, "ProcessPoolExecutor", Pool)
    call("--algorithms", "ppo", "--seeds", "1")
    assert [given[2] for given in asked] == bench.passes_of("ppo", {"rate": 1.0})
    assert len(json.loads((tmp_path / "lins-passes.json").read_text())["rows"]) == 6
    assert json.loads((tmp_path / "lins.json").read_text())["rows"] == rows, "the first search is still there"
    (tmp_path / "lins.json").write_text(json.dumps({"rows": [*rows, {**rows[0], "algorithm": "grpo"}]}))
    call("--algorithms", "grpo", "--seeds", "1")
    names = [row["algorithm"] for row in json.loads((tmp_path / "lins-passes.json").read_text())["rows"]]
    assert names == ["ppo"] * 6 + ["grpo"] * 6, "what another call has found is kept"


def test_a_cell_that_is_finished_is_not_run_again_and_another_one_is(
    tmp_path: Path, benchmark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benchmark("tune")
    ran: list[float] = []

    def counted(config: Any, **options: Any) -> Any:
        ran.append(config.optimization.learning_rate)
        return train(config, **options)

    monkeypatch.setattr(bench, "train", counted)
    cell = {"rate": 2.0}
    first = bench.trial("lins", "turn_rloo", cell, 0, 1, 4, tmp_path)
    assert bench.trial("lins", "turn_rloo", cell, 0, 1, 4, tmp_path) == first
    assert ran == [2 * load_task("lins").tables["optimization"]["learning_rate"]]
    assert bench.trial("lins", "turn_rloo", cell, 0, 1, 8, tmp_path)["changes"] == cell, "on more validation episodes"
    assert len(ran) == 2


def test_the_coverage_of_every_printed_interval_is_on_its_page(benchmark: Callable[[str], Any]) -> None:
    """The page had the sentences that are read from the tables, and no tables."""
    intervals = benchmark("intervals")
    page = (Path(__file__).parents[1] / "benchmarks" / "intervals.md").read_text(encoding="utf-8")
    tables = page.split(intervals.BEGIN)[1].split(intervals.END)[0]
    titles = re.findall(r"^\*\*(.*)\*\*$", tables, re.MULTILINE)
    assert len(titles) == 4
    rows = re.findall(r"^\| (.+?) \| .*? \| .*? \| ([\d.]+)", tables, re.MULTILINE)
    assert len(rows) == 206
    named = {name.split(",")[0].strip("`") for name, _ in rows}
    figures = {
        "corrected",
        "turns",
        "delta_1_2",
        "tokens",
        "tokens_per_solved",
        "tokens_to_success",
        "pass@4",
        "retry_gain@4",
    }
    over_seeds = {*intervals.AGGREGATES, "difference", "probability of improvement", "profile"}
    assert figures | over_seeds <= named
    of_rates, _, of_differences, _ = tables.split("\n**")[1:]
    held = [
        float(value)
        for _, value in re.findall(r"^\| (.+?) \| .*? \| .*? \| ([\d.]+)", of_rates + of_differences, re.MULTILINE)
    ]
    assert len(held) == 62
    assert min(held) > 0.93, "rates and differences"
