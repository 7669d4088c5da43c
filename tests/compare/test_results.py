"""Scores, limits and footnotes, from outcomes written by hand."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mathturn_gym.compare import Results
from mathturn_gym.compare.cells import Outcome, Point
from mathturn_gym.compare.matrix import Cell
from mathturn_gym.compare.results import area, place_of, value_at
from mathturn_gym.compare.summary import (
    aggregate_table,
    best_first,
    cell_table,
    curve_table,
    improvement_table,
    planning_table,
    remarks,
    seed_table,
    task_table,
)
from mathturn_gym.compare.verdict import brief_table, difference_table, paired_differences, verdict
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.pages import Section, write_report_page
from mathturn_gym.show.tables import Table, as_latex, as_markdown, as_rich


def cell(label: str = "a", task: str = "t", seed: int = 0, tokens: int | None = 1000, **settings: Any) -> Cell:
    return Cell(label, label, task, seed, tokens, 10.0, settings)


def outcome(
    of: Cell,
    status: str = "finished",
    tokens: float = 1000,
    cpu_s: float = 5.0,
    test: Mapping[str, float] | None = None,
    message: str = "",
    last: float = 0.8,
) -> Outcome:
    """Evaluated at 0, half of its tokens and all of them; from 0.2 to `last` in a straight line."""
    share = (0.0, 0.5, 1.0)
    points = [Point(tokens * s, cpu_s * s, {"acc@1": 0.1 + 0.1 * s, "acc@4": 0.2 + (last - 0.2) * s}) for s in share]
    given = {"acc@1": 0.3, "acc@4": last} if test is None and status != "diverged" else test
    done = status in ("finished", "stopped_early", "diverged")
    return Outcome(of, status, message, tokens, cpu_s, tokens / 10, given if done else None, points)


def test_area_and_place_of_a_curve() -> None:
    one = outcome(cell())  # a straight line from 0.2 to 0.8
    assert area(one, "tokens", 1000, 4) == pytest.approx(0.5)
    assert area(one, "tokens", 500, 4) == pytest.approx(0.35)
    assert place_of(one, "tokens", 0.5, 4) == pytest.approx(500)
    assert place_of(one, "tokens", 0.35, 4) == pytest.approx(250)
    assert place_of(one, "tokens", 0.1, 4) == 0.0, "from the start"
    assert place_of(one, "tokens", 0.9, 4) is None
    assert area(outcome(cell(), "diverged"), "tokens", 2000, 4) == pytest.approx(0.15), "in a straight line to 0"


def test_the_curve_table_ranks_by_area_and_counts_who_reaches_the_level() -> None:
    runs = [outcome(cell("slow", seed=seed), last=0.4 + 0.01 * seed) for seed in range(3)]
    runs += [outcome(cell("fast", seed=seed), last=0.8 + 0.02 * seed) for seed in range(3)]
    table = curve_table(Results(runs), "t")
    assert [row[0] for row in table.rows] == ["fast", "slow"]
    assert [row[-1] for row in table.rows] == ["3/3", "0/3"]
    assert table.columns[3] == "tokens to 0.738", "0.9 of 0.82"
    assert table.rows[1][3] == "–"


def test_the_planning_table_has_a_line_for_each_other_row() -> None:
    runs = [outcome(cell("a", seed=seed), last=0.5 + 0.05 * seed) for seed in range(4)]
    runs += [outcome(cell("b", seed=seed), last=0.6 - 0.02 * seed) for seed in range(4)]
    rows = planning_table(Results(runs), "a").rows
    assert [row[:3] for row in rows] == [["b", "t", "4"]]
    assert [int(count) for count in rows[0][4:]] == sorted((int(count) for count in rows[0][4:]), reverse=True)


def test_between_evaluations_accuracy_is_interpolated() -> None:
    one = outcome(cell())
    assert value_at(one, "tokens", 0, 4) == pytest.approx(0.2)
    assert value_at(one, "tokens", 250, 4) == pytest.approx(0.35)
    assert value_at(one, "cpu_s", 2.5, 4) == pytest.approx(0.5)
    assert value_at(one, "tokens", 250, 1) == pytest.approx(0.125)
    assert value_at(one, "tokens", 5000, 4) == pytest.approx(0.8), "the last one holds on"
    assert value_at(one, "tokens", 250, 3) == pytest.approx(0.125), "a missing turn: the one before"
    assert value_at(Outcome(cell(), "finished"), "tokens", 0, 4) is None


def test_a_diverged_run_counts_as_0_from_there_on() -> None:
    one = outcome(cell(), "diverged", tokens=600)
    assert value_at(one, "tokens", 300, 4) == pytest.approx(0.5)
    assert value_at(one, "tokens", 599, 4) == pytest.approx(0.799)
    assert value_at(one, "tokens", 600, 4) == 0.0
    results = Results([one, outcome(cell(seed=1))])
    assert results.score(one, "tokens") == 0.0
    assert results.score(one, "test") == 0.0
    assert results.scores("a", "tokens", "t").tolist() == [0.0, pytest.approx(0.8)]


def test_the_smallest_use_of_a_finished_run_is_the_common_budget() -> None:
    outcomes = [
        outcome(cell(seed=0), tokens=1000, cpu_s=3.0),
        outcome(cell(seed=1), tokens=900, cpu_s=9.0),
        outcome(cell(seed=2), "diverged", tokens=10, cpu_s=0.1),
        outcome(cell(seed=3), "failed", tokens=20, cpu_s=0.2),
        outcome(cell(seed=4), "stopped_early", tokens=500, cpu_s=2.0),
        outcome(cell("b", "u"), tokens=50),
    ]
    results = Results(outcomes)
    tokens, seconds = results.limit("t", "tokens"), results.limit("t", "cpu_s")
    assert tokens is not None
    assert seconds is not None
    assert (tokens.tokens, tokens.cell.seed) == (900, 1)
    assert (seconds.cpu_s, seconds.cell.seed) == (3.0, 0)
    assert results.score(outcomes[0], "tokens") == pytest.approx(0.2 + 0.6 * 0.9)
    assert results.score(outcomes[1], "cpu_s") == pytest.approx(0.4)
    assert results.score(outcomes[3], "tokens") is None
    assert results.score(outcomes[4], "tokens") == pytest.approx(0.8)
    assert results.complete("tokens") == []


def test_runs_are_compared_at_equal_total_tokens_where_all_have_counted_them() -> None:
    """Rows that sample alike and read differently: at equal samples they are level, at equal total tokens not."""
    plain = [outcome(cell(seed=seed)) for seed in (0, 1)]
    assert Results(plain).views == ("tokens", "cpu_s", "test")

    def counted(one: Outcome, times: float) -> Outcome:
        curve = [dataclasses.replace(point, total_tokens=point.tokens * times) for point in one.curve]
        return dataclasses.replace(one, curve=curve, total_tokens=one.tokens * times)

    short, long = counted(outcome(cell()), 2.0), counted(outcome(cell("b")), 4.0)
    results = Results([short, long])
    assert results.views == ("tokens", "total_tokens", "cpu_s", "test")
    assert [results.score(one, "tokens") for one in (short, long)] == pytest.approx([0.8, 0.8])
    assert [results.score(one, "total_tokens") for one in (short, long)] == pytest.approx([0.8, 0.5])
    limit = results.limit("t", "total_tokens")
    assert limit is not None
    assert (limit.total_tokens, limit.cell.label) == (2000, "a")
    table = task_table(results, "t", "total_tokens", resamples=10, seed=0)
    assert table.title == "t at 2,000 total tokens"
    assert table.columns[-4:] == ["tokens used", "total tokens used", "CPU s used", "ended by"]
    assert Results([short, plain[0]]).axes == ("tokens", "cpu_s"), "one has not counted"
    begun_before = dataclasses.replace(short, curve=[plain[0].curve[0], *short.curve[1:]])
    assert Results([begun_before]).axes == ("tokens", "cpu_s"), "one has not counted from its beginning"


def test_figures() -> None:
    one = outcome(cell())
    assert Results([one]).score(one, "test") == 0.8
    assert Results([one], "acc@1").score(one, "test") == 0.3
    assert Results([one]).score(one, "test", "acc@1") == 0.3
    assert Results([one], "acc@9").score(one, "test") == 0.8
    for wrong in ("acc@0", "acc", "acc@", "reward", "acc@x"):
        with pytest.raises(InvalidValueError, match=r"figure must be acc@1, acc@2, \.\.\. or acc@K, got"):
            Results([one], wrong)
    with pytest.raises(InvalidValueError, match="no cell to report"):
        Results([])


def test_nothing_is_dropped_silently() -> None:
    outcomes = [
        outcome(cell("a", seed=0)),
        outcome(cell("a", seed=1), "diverged", tokens=400, message="the loss is nan"),
        outcome(cell("a", seed=2), "failed", tokens=200, message="ValueError: no"),
        Outcome(cell("a", seed=3), "missing"),
        outcome(cell("a", seed=4), "unfinished", tokens=300),
        outcome(cell("b", seed=0, tokens=2000), tokens=2000),
        outcome(cell("b", seed=1, tokens=2000), tokens=1500),
        outcome(cell("b", seed=2, tokens=2000), "stopped_early", tokens=800, message="no better for 5 evaluations"),
    ]
    results = Results(outcomes)
    assert remarks(results, "a", "t") == [
        "1 of 5 runs diverged (seed 1 at 400 tokens: the loss is nan): counted as 0 from there on, and on the test split",
        "1 of 5 runs failed (seed 2 at 200 tokens: ValueError: no): not counted",
        "1 of 5 runs unfinished (seed 4 at 300 tokens): not counted",
        "not run: seed 3",
        "unequal budgets on this task: here 1,000 tokens",
    ]
    assert remarks(results, "b", "t") == [
        "1 of 5 runs stopped early (seed 2 at 800 tokens: no better for 5 evaluations): its last evaluation counts from there on",
        "not run: seed 3, 4",
        "unequal budgets on this task: here 2,000 tokens",
        "ended before a budget was used up (seed 1: after 1,500 tokens and 5.0 CPU seconds)",
    ]
    table = task_table(results, "t", "tokens", resamples=50, seed=0)
    assert table.title == "t at 1,000 tokens"
    assert [row[:2] for row in table.rows] == [["b ¹˒²˒³˒⁴", "3/5"], ["a ⁵˒⁶˒⁷˒⁸˒⁹", "2/5"]]
    assert len(table.notes) == 9
    assert table.rows[1][-3:] == ["400–1,000", "5.0", "tokens 1, diverged 1"]
    assert table.rows[0][-1] == "tokens 1, itself 1, stopped early 1"
    over_all = aggregate_table(results, "test", resamples=50, seed=0)
    assert [row[0] for row in over_all.rows] == ["b ¹", "a ¹˒²"]
    assert over_all.notes == [
        "fewer runs than seeds on t: see the task's table",
        "diverged runs on t count as 0",
    ]
    assert [row[1] for row in cell_table(results).rows] == [one.status for one in outcomes]


def test_a_row_without_a_score_on_one_task_is_not_ranked_over_all() -> None:
    results = Results(
        [outcome(cell("a", "t")), outcome(cell("a", "u")), outcome(cell("b", "t")), Outcome(cell("b", "u"), "failed")]
    )
    table = aggregate_table(results, "tokens", resamples=50, seed=0)
    assert table.columns == ["algorithm", "runs", "mean"], "median, IQM and optimality gap say the same"
    assert table.rows[1] == ["b ¹", "1/2", "–"]
    assert table.notes == ["no score on u: not comparable over all tasks"]
    assert results.complete("tokens") == ["a"]


def test_the_best_rows_come_first_and_those_without_a_score_last() -> None:
    given = [outcome(cell(label, seed=s), last=last) for label, last in (("low", 0.3), ("high", 0.9)) for s in (0, 1)]
    results = Results([Outcome(cell("none"), "missing"), *given, outcome(cell("middle"), last=0.5)])
    ranked = ["high", "middle", "low", "none"]
    for table in (
        task_table(results, "t", "tokens", resamples=10, seed=0),
        aggregate_table(results, "test", resamples=10, seed=0),
    ):
        assert [row[0].split()[0] for row in table.rows] == ranked
    assert best_first(results, "test") == ranked[:3]
    assert improvement_table(results, "test").columns == ["", *ranked[:3]]


def test_fewer_turns_are_said() -> None:
    short = outcome(cell("one"), test={"acc@1": 0.7})
    short = Outcome(short.cell, "finished", "", 1000, 5.0, 100, {"acc@1": 0.7}, [Point(0, 0, {"acc@1": 0.4})])
    results = Results([short, outcome(cell("four"))])
    assert results.score(short, "test") == 0.7
    assert "played with 1 turn: acc@1 stands for acc@4" in remarks(results, "one", "t")
    assert remarks(results, "four", "t") == []


def test_nothing_finished_yet() -> None:
    results = Results([Outcome(cell("a"), "missing"), outcome(cell("b"), "unfinished")])
    assert results.limit("t", "tokens") is None
    table = task_table(results, "t", "cpu_s", resamples=10, seed=0)
    assert table.title == "t at equal CPU seconds"
    assert [row[1] for row in table.rows] == ["0/1", "0/1"]
    assert "not run: seed 0" in table.notes
    assert aggregate_table(results, "test", resamples=10, seed=0).rows[0][2] == "–"


def test_improvement_table_stresses_what_the_interval_says() -> None:
    better = [outcome(cell("a", seed=s), last=0.9 + s / 100) for s in range(5)]
    worse = [outcome(cell("b", seed=s), last=0.5 + s / 100) for s in range(5)]
    table = improvement_table(Results(better + worse), "test")
    assert table.rows == [["a", "", "1.00 [0.56, 1.00]"], ["b", "0.00 [0.00, 0.44]", ""]]
    assert table.best == {(0, 2), (1, 1)}


def as_html(tmp_path: Path, table: Table) -> str:
    """The table as a report shows it."""
    write_report_page(tmp_path / "t.html", title="", verdict=[], sections=[Section(title="", tables=[table])])
    return (tmp_path / "t.html").read_text(encoding="utf-8").split("<body>")[1].split("<script>")[0]


def printed(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(as_rich(table, width))
    return console.export_text()


def test_texts_are_shown_as_they_are(tmp_path: Path) -> None:
    table = Table("<b>t</b> [red]", ["a|b", "c"], "lead", [["x_y* [bold]", "<script>"]], ["see `it`"], {(0, 1)})
    page = as_html(tmp_path, table)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;t" in page
    assert r"x_y\* [bold]" in as_markdown(table)
    assert r"| a\|b | c |" in as_markdown(table)
    assert "x_y* [bold]" in printed(table, 100)
    hostile = Table("\x1b[31m\u202et", ["\x1b[31m\u202e"], "\x1b[31m\u202e", [["\x1b[31m\u202e"]], ["\x1b[31m\u202e"])
    assert r"x\_y* [bold]" in as_latex(table)
    assert as_latex(Table("t", ["\\input{/etc/passwd} $x$ 5% ~^"])).count("\\input") == 0
    for shown in (as_html(tmp_path, hostile), as_markdown(hostile), printed(hostile, 100)):
        assert shown.count("␛[31m⟨U+202E⟩") == 5
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_intervals_stand_below_their_values_on_a_page(tmp_path: Path) -> None:
    page = as_html(tmp_path, Table("t", ["a", "b"], rows=[["x [y]", "0.5 [0.4, 0.6]"], ["z", "tokens 3"]]))
    assert '<td class="">x [y]</td><td class="">0.5<small>[0.4, 0.6]</small></td>' in page
    assert '<td class="">tokens 3</td>' in page


def test_a_wide_table_is_shown_in_pieces() -> None:
    table = Table("t", ["name", *(f"column {i}" for i in range(9))], rows=[["row", *(str(i) * 12 for i in range(9))]])
    shown = printed(table, 60)
    assert all(str(i) * 12 in shown for i in range(9))
    assert shown.count("name") == 3


# ---- tasks with ends of their own


def test_scores_of_tasks_with_different_ends_are_put_on_one_scale_before_they_are_pooled() -> None:
    """.6 is nearly all there is to win on one task, and half of what blind guessing leaves on the other."""
    outcomes = [outcome(cell("a", task, seed), last=0.6 + 0.01 * seed) for task in ("t", "hidden") for seed in range(3)]
    scales = {"hidden": {"acc@1": (0.125, 0.125), "acc@4": (0.35, 0.625)}}
    results = Results(outcomes, scales=scales)
    assert results.normalized("a", "test")[0].tolist() == pytest.approx([0.6, 0.61, 0.62])
    assert results.normalized("a", "test")[1].tolist() == pytest.approx([0.25 / 0.275, 0.26 / 0.275, 0.27 / 0.275])
    table = aggregate_table(results, "test", resamples=200, seed=0)
    mean = table.rows[0][list(table.columns).index("mean")]
    assert mean.startswith("0.778 ["), mean
    assert "t (0 to 1), hidden (0.35 to 0.625)" in table.lead
    plain = aggregate_table(Results(outcomes), "test", resamples=200, seed=0)
    assert plain.rows[0][list(plain.columns).index("mean")].startswith("0.610 ["), "without ends they are what they are"


def test_a_task_on_which_no_policy_can_be_better_is_not_pooled() -> None:
    outcomes = [outcome(cell("a", task, seed)) for task in ("t", "hidden") for seed in range(2)]
    results = Results(outcomes, "acc@1", {"hidden": {"acc@1": (0.125, 0.125)}})
    assert results.pooled_tasks == ("t",)
    table = aggregate_table(results, "test", resamples=200, seed=0)
    assert table.rows[0][1] == "2/2"
    assert "Left out, for there every policy does the same: hidden." in table.lead


def test_tables_say_how_many_different_problems_the_test_was_on() -> None:
    found = {"acc@1": 0.3, "acc@4": 0.8, "episodes": 1024.0, "problems": 87.0}
    results = Results([outcome(cell(seed=seed), test=found) for seed in range(2)])
    assert "on 87 different problems" in task_table(results, "t", "tokens", resamples=200, seed=0).lead


# ---- a row that the others are held against, and runs that were measured at their end alone


def test_rows_are_held_against_one_seed_by_seed() -> None:
    """Seeds differ by more than rows do: only runs of the same seed tell the rows apart."""
    levels = {0: 0.3, 1: 0.5, 2: 0.7}
    outcomes = [outcome(cell("base", seed=seed), last=level) for seed, level in levels.items()]
    outcomes += [outcome(cell("better", seed=seed), last=level + 0.1 + seed / 1000) for seed, level in levels.items()]
    outcomes += [outcome(cell("same", seed=seed), last=level) for seed, level in levels.items()]
    outcomes += [outcome(cell("short", seed=2), last=0.6), outcome(cell("short", seed=7), last=0.1)]
    outcomes += [Outcome(cell("lost"), "failed", "no luck")]
    results = Results(outcomes)
    assert results.by_seed("short", "test", "t").tolist()[2:] == [0.6, 0.1]
    found = paired_differences(results, "base")
    assert found is not None
    table = difference_table(results, found)
    assert table.title == "Differences from base"
    rows = {row[0].split()[0]: row[1:] for row in table.rows}
    assert list(rows) == ["base", "better", "same", "short", "lost"]
    assert rows["base"] == ["", "0.500", ""]
    assert rows["better"] == ["3", "0.601", "+0.101 [+0.099, +0.103]"]
    assert rows["same"] == ["3", "0.500", "+0.000"]
    assert rows["short"] == ["1", "0.350", "-0.100"]
    assert rows["lost"] == ["0", "–", "–"]
    assert table.best == {(1, 3)}
    assert "each run scores exactly what base's with the same seed does" in table.notes
    assert any("failed" in note for note in table.notes)
    said = verdict(results, found)
    assert said[0].startswith("base is behind better by 0.101 [0.099, 0.103] and differs from same (+0.000), short")
    assert said[0].endswith("on t (acc@4, 3 seeds).")
    assert said[-1] == "Of 12 runs, 1 failed: the tables say which."


def two_tasks(gaps: Mapping[str, float], seeds: int, noise: float = 0.02) -> Results:
    """Rows that lie apart by `gaps` on task "t" and are level on "u"; seeds differ by more than that."""
    rng = np.random.default_rng(0)
    outcomes = []
    for task in ("t", "u"):
        for seed in range(seeds):
            luck = 0.1 * float(rng.normal())
            for label, gap in gaps.items():
                last = 0.5 + luck + (gap if task == "t" else 0.0) + noise * float(rng.normal())
                outcomes.append(outcome(cell(label, task, seed), last=last))
    return Results(outcomes)


def test_the_verdict_says_which_row_is_ahead_and_where_none_is() -> None:
    results = two_tasks({"low": 0.0, "high": 0.2}, seeds=10)
    found = paired_differences(results)
    assert found is not None
    assert (found.reference, found.labels, found.columns) == ("high", ["low"], ["t", "u", "all tasks"])
    assert found.looked_at == 2
    over_all, on_t, on_u, limit = verdict(results, found)
    assert re.fullmatch(
        r"high is ahead of low by 0\.\d{3} \[0\.\d{3}, 0\.\d{3}\] on all tasks \(normalized score, 10 seeds\)\.",
        over_all,
    )
    assert on_t.startswith("high is ahead of low by 0.")
    assert on_t.endswith("on t (acc@4, 10 seeds).")
    assert on_u.startswith("high is not distinguishable from low (")
    assert re.fullmatch(r"With 10 seeds, differences below about 0\.0\d+ cannot be shown\.", limit)
    one, other = found.found["low", "t"].difference, found.found["low", "all tasks"].difference
    assert one.value is not None
    assert other.value is not None
    assert other.value == pytest.approx((one.value + (found.found["low", "u"].difference.value or 0)) / 2)


def test_two_seeds_show_little_and_say_so() -> None:
    results = two_tasks({"low": 0.0, "high": 0.05}, seeds=2)
    said = verdict(results, paired_differences(results))
    assert "is not distinguishable from" in said[0]
    assert re.fullmatch(r"With 2 seeds, differences below about 0\.\d+ cannot be shown\.", said[-1])
    single = two_tasks({"low": 0.0, "high": 0.05}, seeds=1)
    assert "of which the spread between seeds is not known" in verdict(single, paired_differences(single))[0]
    alone = two_tasks({"low": 0.0}, seeds=3)
    assert paired_differences(alone) is None
    assert verdict(alone, None) == ["No two rows have a result that can be compared."]


def test_the_more_differences_are_looked_at_the_larger_they_must_be() -> None:
    """The best of twelve level rows is ahead of some of them by chance; corrected, it is not."""
    results = two_tasks({f"row {k}": 0.0 for k in range(12)}, seeds=5)
    found = paired_differences(results)
    assert found is not None
    assert found.looked_at == 12 * 11 / 2 * 2, "the best was chosen among all pairs, on two tasks"
    p_values = [one.p_value for one in found.found.values()]
    assert min(p for p in p_values if p is not None) < 0.05
    assert difference_table(results, found).best == set()
    named = paired_differences(results, "row 3")
    assert named is not None
    assert named.looked_at == 22


def test_a_terminal_sees_the_best_rows_and_what_is_pooled() -> None:
    results = two_tasks({f"a row with a long name {k}": 0.01 * k for k in range(12)}, seeds=3)
    found = paired_differences(results)
    assert found is not None
    table = difference_table(results, found)
    brief = brief_table(table, 80)
    assert brief.columns == ["algorithm", "seeds", "all tasks, normalized", "difference"]
    assert [row[0] for row in brief.rows] == [row[0] for row in table.rows[:8]]
    assert brief.notes[-1] == "and 4 more rows"
    assert brief_table(table, 400).columns == list(table.columns)


def test_what_seeds_share_is_computed_on_the_seeds_that_all_rows_have() -> None:
    luck = {0: 0.3, 1: 0.5, 2: 0.7, 3: 0.4}
    outcomes = [
        outcome(cell(label, seed=seed), last=level + 0.01 * ((seed + k) % 3))
        for k, label in enumerate("abc")
        for seed, level in luck.items()
        if (label, seed) != ("c", 3)
    ]
    outcomes += [outcome(cell("once", seed=1), last=0.1), Outcome(cell("lost"), "failed", "no luck")]
    results = Results(outcomes)
    assert results.crossed("test", "t", "acc@4").shape == (3, 3)
    table = seed_table(results)
    assert [row[:4] for row in table.rows] == [["t", "acc@1", "3", "3"], ["t", "acc@4", "3", "3"]]
    assert table.rows[0][-1] == "–", "all first turns are alike"
    assert float(table.rows[1][-1]) > 0.95, "seeds differ by .2, rows of one seed by .01"
    assert seed_table(Results([outcome(cell(seed=seed)) for seed in range(3)])).rows == [], "one row shares with nobody"
    assert seed_table(Results([outcome(cell(label)) for label in "ab"])).rows == [], "one seed does not vary"


def test_runs_that_were_not_evaluated_on_the_way_have_no_curves_to_compare() -> None:
    outcomes = [
        dataclasses.replace(outcome(cell(label, seed=seed)), curve=[], total_tokens=5000.0)
        for label in "ab"
        for seed in range(2)
    ]
    results = Results(outcomes)
    assert results.views == ("test",)
    assert results.budgets == ("tokens", "total_tokens", "cpu_s"), "what was used is known all the same"
    table = task_table(results, "t", "test", resamples=10, seed=0)
    assert table.title == "t, final policies (test split)"
    used = ["tokens used", "total tokens used", "CPU s used", "ended by"]
    assert table.columns == ["algorithm", "runs", "test acc@1", "test acc@4", *used]
    assert table.rows[0] == ["a", "2/2", "0.300", "0.800", "1,000", "5,000", "5.0", "tokens 2"]
    assert Results([*outcomes, outcome(cell("c"))]).axes == ("tokens", "cpu_s"), "one was"
    assert Results([Outcome(cell(), "missing")]).axes != (), "nothing has ended: nobody knows"
