"""Tables in the terminal: 80 columns are enough, and what is in them is inert."""

from __future__ import annotations

import io

from rich.console import Console

from mathturn_gym.cli.report import comparison_table, report_summary, report_tables
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.episodes.metrics.figures import MEANING, QUESTIONS
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

HOSTILE = "[/x] [red]\x1b[31m$\\frac{1$ \u202eabc " + "A" * 300


def printed(shown: object, *, color: bool = False) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=color, legacy_windows=False).print(shown)
    return file.getvalue().splitlines()


def episodes(families: int) -> list[Episode]:
    return [
        synthetic_episode(0, i, [3, 2], metadata={"family": f"family number {i % families}", "level": i % 10})
        for i in range(3 * families)
    ]


def test_many_families_fit_80_columns() -> None:
    report = summarize(episodes(32))
    lines = printed(report_tables(report, "builtin on everything"))
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    for name, part in report.by["family"].items():
        (line,) = (one for one in lines if one.split()[:3] == name.split())
        assert str(part["acc@1"]) in line
        assert str(part["acc@2"]) in line


def test_the_summary_is_a_sentence_and_aligned_numbers() -> None:
    lines = printed(report_summary(summarize(episodes(4)), "builtin on everything"))
    assert lines[0].startswith("Solves ")
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    cards = [line for line in lines if "[" in line and line.index("[") < 14]
    assert len(cards) >= 4
    assert len({line.index("[") for line in cards}) == 1


def test_what_repeats_another_metric_is_left_out() -> None:
    text = "\n".join(printed(report_tables(summarize(episodes(4)))))
    assert "acc@1" in text
    assert "right@1" not in text, "it is acc@1"


def test_figures_stand_below_the_question_that_they_answer() -> None:
    lines = [line.strip() for line in printed(report_tables(summarize(episodes(4))))]
    at = {question: lines.index(question) for question in QUESTIONS if question in lines}
    assert len(at) >= 4
    where = next(i for i, line in enumerate(lines) if line.startswith("corrected "))
    assert max((start, question) for question, start in at.items() if start < where)[1] == "Does it use the feedback?"


def test_every_figure_answers_one_question() -> None:
    assert sorted(name for names in QUESTIONS.values() for name in names) == sorted(MEANING)


def test_hostile_names_are_inert_in_the_terminal() -> None:
    known = [synthetic_episode(0, i, [2], metadata={"family": f"{HOSTILE}{i}", HOSTILE: i % 2}) for i in range(4)]
    report = summarize(known, by=("family", HOSTILE))
    for shown in (
        report_summary(report, HOSTILE),
        report_tables(report, HOSTILE),
        comparison_table({HOSTILE[:20]: report, "b": report}, ["acc@1"], HOSTILE),
    ):
        text = "\n".join(printed(shown))
        assert "[/x] [red]␛[31m" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert max(map(len, printed(shown))) <= 80
