"""The page and the charts of a comparison: whatever rows are called, every column seen, every table sorted by a click."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mathturn_gym.compare import Results
from mathturn_gym.compare.cells import Outcome, Point
from mathturn_gym.compare.charts import aggregate_chart, curve_charts, difference_charts, profile_chart
from mathturn_gym.compare.matrix import Cell
from mathturn_gym.compare.summary import aggregate_table, improvement_table, task_table
from mathturn_gym.compare.verdict import difference_table, paired_differences, verdict
from mathturn_gym.show.charts import standalone
from mathturn_gym.show.pages import Chart, Section, write_report_page

HOSTILE = [r"$\frac{1$", "[/x]<script>window.owned=1</script>", "\x1b[31m\u202eabc", "_left_out"]
NAMES = ["clipped_reinforce", "maskable_ppo", "recurrent_ppo", "expert_iteration", *(f"row_{i}" for i in range(8))]


def results(labels: list[str], seeds: int = 2, tasks: tuple[str, ...] = ("add1",)) -> Results:
    outcomes = []
    for rank, label in enumerate(labels):
        for task in tasks:
            for seed in range(seeds):
                last = 0.05 * rank + 0.01 * seed
                curve = [Point(1000.0 * x, 10.0 * x, {"acc@1": last * x / 2, "acc@4": last * x}) for x in (0, 1)]
                cell = Cell(label, label, task, seed, 1000, 10.0, {})
                test = {"acc@1": last / 2, "acc@4": last}
                outcomes.append(Outcome(cell, "finished", label, 1000, 10.0, 100, test, curve))
    return Results(outcomes)


def charts_of(found: Results) -> list[Chart]:
    held = paired_differences(found)
    assert held is not None
    pooled = aggregate_chart(found, "test", resamples=5, seed=0)
    assert pooled is not None
    return [*curve_charts(found, "tokens"), *difference_charts(held), pooled, profile_chart(found, "test")]


def write(path: Path, found: Results) -> None:
    held = paired_differences(found)
    assert held is not None
    tables = [
        aggregate_table(found, "test", resamples=10, seed=0),
        task_table(found, found.tasks[0], "tokens", resamples=10, seed=0),
        improvement_table(found, "test"),
        difference_table(found, held),
    ]
    sections = [Section(title="All", lead="lead", tables=tables, charts=charts_of(found))]
    write_report_page(path, title=found.labels[0], verdict=verdict(found, held), sections=sections)


def test_rows_may_be_called_anything(tmp_path: Path) -> None:
    found = results(HOSTILE)
    write(tmp_path / "report.html", found)
    pages = [(tmp_path / "report.html").read_text(encoding="utf-8"), *(standalone(c.drawing) for c in charts_of(found))]
    assert "␛[31m⟨U+202E⟩abc" in pages[0]
    for page in pages:
        assert "<script>window" not in page
        assert not set(page) & {"\x1b", "\u202e"}
    for page in pages[1:]:
        assert ElementTree.fromstring(page).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Playwright's own pipes
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser(browser: Any, tmp_path: Path, scheme: str) -> None:
    write(tmp_path / "report.html", results([*HOSTILE[:3], *NAMES], seeds=5, tasks=("add1", "lins")))
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto((tmp_path / "report.html").as_uri())
    wide = "[document.documentElement, ...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)"
    assert max(page.evaluate(wide)) <= 0, "every column is visible"
    assert page.evaluate("typeof window.owned") == "undefined"
    table = page.locator("table.sortable").nth(0)

    def names() -> list[str]:
        return [text.split(" ")[0] for text in table.locator("tbody td:first-child").all_inner_texts()]

    assert names()[0] == "row_7", "the best comes first"
    table.locator("th:text-is('median')").click()
    assert table.locator("th[aria-sort='descending']").inner_text().startswith("median")
    assert names()[0] == "row_7"
    table.locator("th").nth(0).focus()
    page.keyboard.press("Enter")
    assert names()[-8:] == [f"row_{i}" for i in range(8)]
    assert errors == []
    context.close()
