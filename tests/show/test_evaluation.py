"""The page of figures: what is in it is counted right, is inert, and can be read in a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.show.view import write_report
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Status, StopReason, Verdict

MARKS = {"+": Status.RIGHT, "-": Status.WRONG, "_": Status.NO_ANSWER, "?": Status.UNDECIDED}


def episode(index: int, *marks: str, stop: StopReason | None = StopReason.TURNS, **metadata: Any) -> Episode:
    """Turns as marks: "4+" right with answer 4, "5-" wrong, "_" no answer, "?" undecided."""
    verdicts = tuple(Verdict(MARKS[mark[-1]], answer=mark[:-1] or None) for mark in marks)
    cut = (False,) * len(marks)
    return synthetic_episode(
        0,
        index,
        [3] * len(marks),
        problem_id=f"p{index}",
        verdicts=verdicts,
        turn_truncated=cut,
        stop_reason=stop,
        metadata=metadata,
    )


class Page(HTMLParser):
    """The tags of a page, its texts, and what every mark tells."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.told: list[str] = []
        self.text = ""
        self.within = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.within = tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.within == "title":
            self.told.append(data)


def page_of(tmp_path: Path, episodes: list[Episode], **options: Any) -> Page:
    return Page(write_report(tmp_path / "report.html", episodes, **options))


def test_what_turns_did_with_their_feedback_is_counted(tmp_path: Path) -> None:
    episodes = [
        episode(0, "1-", "1-", "2-", "3+"),  # after wrong: repeated, another wrong, right
        episode(1, "4+", "4+", "5-", "_"),  # after right: right, another wrong; after wrong: no answer
        episode(2, "_", "?"),
    ]
    told = page_of(tmp_path, episodes).told
    for expected in (
        "after right: right 1 of 2 turns (50.0%)",
        "after right: another wrong answer 1 of 2 turns (50.0%)",
        "after wrong: right 1 of 4 turns (25.0%)",
        "after wrong: another wrong answer 1 of 4 turns (25.0%)",
        "after wrong: an answer that had failed 1 of 4 turns (25.0%)",
        "after wrong: no answer 1 of 4 turns (25.0%)",
        "after no answer: undecided 1 of 1 turns (100.0%)",
    ):
        assert expected in told
    assert sum(text.startswith("after ") and ":" in text for text in told) == 7


def test_verdicts_ends_and_lengths_are_counted(tmp_path: Path) -> None:
    long = replace(episode(1, "1-", "2-"), turn_truncated=(False, True))
    told = page_of(tmp_path, [episode(0, "4+", stop=StopReason.SOLVED), long]).told
    for expected in (
        "turn 1: right 1 of 2 episodes (50.0%)",
        "turn 2: already ended 1 of 2 episodes (50.0%)",
        "episodes: solved 1 of 2 episodes (50.0%)",
        "episodes: all turns used 1 of 2 episodes (50.0%)",
        "3 tokens: right 1 turns",
        "3 tokens: cut off by its budget 1 turns",
    ):
        assert expected in told


def test_marks_tell_their_figure_with_its_interval(tmp_path: Path) -> None:
    episodes = [episode(i, "4+" if i % 3 else "5-", "4+", family="ab"[i % 2], level=i % 12) for i in range(24)]
    report, page = summarize(episodes), page_of(tmp_path, episodes)
    assert f"solved within k turns (acc@k), turn 1: {report['acc@1']} (of 24)" in page.told
    assert f"b, acc@1: {report.by['family']['b']['acc@1']} (of 12)" in page.told
    assert list(report.by["level"]) == [str(i) for i in range(12)], "10 comes after 9"
    for name in report.figures:
        assert report[name].value is None or name in page.text


def test_confidence_is_that_of_the_log_probs(tmp_path: Path) -> None:
    sure = [episode(i, "4+") for i in range(10)] + [episode(i, "5-") for i in range(10, 40)]
    known = [
        replace(one, logprobs=np.where(one.loss_mask, np.float32(-0.1 if i < 10 else -1.0), np.float32(0)))
        for i, one in enumerate(sure)
    ]
    told = [text for text in page_of(tmp_path, known).told if "turns that are right" in text]
    assert len(told) == 5
    assert told[0].startswith("0.37 to 0.37, turns that are right: 0.000")
    assert told[-1].startswith("0.90 to 0.90, turns that are right: 1.000")
    silent = [synthetic_episode(0, i, [2], logprobs=False) for i in range(40)]
    assert "Is it right where it is sure?" not in page_of(tmp_path, silent).text


@pytest.mark.parametrize("turns", [0, 1])
def test_few_episodes_are_a_page_as_well(tmp_path: Path, turns: int) -> None:
    page = page_of(tmp_path, [episode(0, *["_"] * turns, stop=None)])
    assert "1 episode on 1 different problem" in page.text
    assert "episodes: cut short 1 of 1 episodes (100.0%)" in page.told


def test_hostile_text_is_shown_and_nothing_else(tmp_path: Path, hostile: list[Episode]) -> None:
    settings = {text: text for text in (e.problem_id for e in hostile)}
    notes = [e.problem_id for e in hostile]
    page = page_of(tmp_path, hostile, title=hostile[0].problem_id + "\x1b[31m\u202e", settings=settings, notes=notes)
    plain = page_of(
        tmp_path, [episode(0, "4+", family="a"), episode(1, "5-", family="b")], settings={"a": 1}, notes=["note"]
    )
    assert "note" in plain.text
    assert page.tags == plain.tags
    assert page.attributes == plain.attributes
    assert not {name for name in page.attributes if name.startswith("on") or name in ("href", "src", "style")}
    assert "window.owned=2" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page.text)


def test_the_first_sentence_says_what_was_found(tmp_path: Path) -> None:
    episodes = [episode(i, "5-", "4+" if i % 2 else "5-") for i in range(40)]
    page = page_of(tmp_path, episodes)
    found = summarize(episodes)["acc@2"]
    assert found.low is not None
    assert found.high is not None
    said = f"Solves 50.0 % [{100 * found.low:.1f}, {100 * found.high:.1f}] of the episodes within 2 turns, 0.0 %"
    assert said in page.text
    assert "of the wrong first turns, 50.0 %" in page.text
    assert page.text.index("Solves") < page.text.index("Accuracy by turn")


def test_a_metric_that_repeats_another_says_so(tmp_path: Path) -> None:
    episodes = [replace(episode(i, "4+" if i % 2 else "5-"), problem_id=f"p{i // 4}") for i in range(40)]
    text = page_of(tmp_path, episodes).text
    assert re.search(r"right@1\s*0\.500\s*\[[^]]*\]\s*the same as acc@1", text)
    mixed = [replace(episode(i, *("4+", "5-") if i % 2 else ("5-", "4+")), problem_id=f"p{i}") for i in range(40)]
    assert "the same as acc@2" not in page_of(tmp_path, mixed).text


def test_what_went_wrong_is_a_card(tmp_path: Path) -> None:
    fine = page_of(tmp_path, [episode(0, "4+"), episode(1, "5-")])
    assert "no answer found" not in fine.text
    odd = page_of(tmp_path, [episode(0, "_"), replace(episode(1, "5?"), turn_truncated=(True,))])
    for words in ("no answer found", "cut off by their budget", "undecided"):
        assert f"of all turns: {words}" in odd.text


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="a report needs episodes, got none"):
        write_report(tmp_path / "report.html", [])
    with pytest.raises(InvalidValueError, match="out must be in a folder that is there"):
        write_report(tmp_path / "no" / "report.html", [episode(0, "4+")])


# ---- in a browser


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Playwright's own pipes
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(
    browser: Any, tmp_path: Path, hostile: list[Episode], scheme: str, shots: Path | None
) -> None:
    episodes = [
        episode(i, "4+" if i % 3 else "5-", "5-", "4+", family=f"family {i % 30}", level=i % 5) for i in range(180)
    ]
    path = write_report(tmp_path / "report.html", [*episodes, *hostile], title="<b>many</b> families")
    errors: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert page.inner_text("h1") == "<b>many</b> families"
    assert page.evaluate("typeof window.owned") == "undefined"
    light, dark = "rgb(247, 247, 245)", "rgb(20, 22, 26)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (light if scheme == "light" else dark)
    overflow = (
        "[document.documentElement, ...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
    )
    assert page.locator("table").first.is_hidden(), "tables are folded"
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert max(page.evaluate(overflow)) <= 0, "every column is visible at 1280 px"
    first = "table.sortable tbody td:first-child"
    table = page.locator("table.sortable", has=page.locator("th:text-is('family')"))
    table.locator("th:has-text('episodes')").click()
    counts = [int(text) for text in table.locator("td:nth-child(2)").all_inner_texts()]
    assert counts == sorted(counts, reverse=True)
    table.locator("th >> nth=0").click()
    names = table.locator("tbody td:first-child").all_inner_texts()
    assert names.index("family 9") < names.index("family 10") < names.index("family 29")
    if shots is not None:
        page.screenshot(path=str(shots / f"report-{scheme}.png"), full_page=True)
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(first).count() > 30
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    context.close()
