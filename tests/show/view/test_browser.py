"""The page in a real browser: what is read, clicked, typed and hovered, and that nothing leaves it."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mathturn_gym.episodes.trajectories import EpisodeWriter, write_episodes
from mathturn_gym.show.view import Follower, ViewServer, write_view
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # Playwright's own pipes

PHONE = {"width": 390, "height": 844}


class Tab:
    """A page, and everything that went wrong in it or wanted to leave it."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#app:not([hidden]) #count:not(:empty)")

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def texts(self, selector: str) -> list[str]:
        return list(self.page.locator(selector).all_inner_texts())

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.settle()

    def settle(self) -> None:
        """Waits for what was begun: unpacking is asynchronous."""
        self.page.wait_for_timeout(60)

    def wait(self, expression: str, *, seconds: float = 120) -> None:
        """Waits until something holds; asked from outside, since the page's policy forbids waiting code inside."""
        end = time.monotonic() + seconds
        while not self._holds(expression):
            assert time.monotonic() < end, f"still not: {expression}"
            self.page.wait_for_timeout(30)

    def _holds(self, expression: str) -> bool:
        from playwright.sync_api import Error

        try:
            return bool(self.page.evaluate(expression))
        except Error as error:
            if "context was destroyed" not in str(error):  # the page is loading itself anew
                raise
            return False

    def close(self) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, before: list[Episode], after: list[Episode]) -> Path:
    """A page of two runs with curves."""
    folder = tmp_path_factory.mktemp("runs")
    for name, episodes, gain in (("before", before, 0.2), ("after", after, 0.6)):
        (folder / name).mkdir()
        write_episodes(folder / name / "episodes.jsonl", episodes)
        lines = [
            {
                "iteration": i,
                "tokens": 100 * i,
                "train/acc@1": gain * i / 20,
                "validation/acc@1": gain,
                "time/update_s": 1.0,
            }
            for i in range(20)
        ]
        (folder / name / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return write_view(folder / "view.html", [folder / "before", folder / "after"], tokenizer="builtin")


@pytest.fixture
def tab(browser: Any, made: Path) -> Iterator[Tab]:
    opened = Tab(browser, made.as_uri())
    opened.page.wait_for_selector(".pane + .pane .body")
    opened.press("Escape")  # it opens on the comparison of its two runs; most tests read one
    opened.wait("document.querySelectorAll('.pane').length === 1")
    yield opened
    assert opened.errors == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    opened.close()


@pytest.fixture
def opening(browser: Any, made: Path) -> Iterator[Callable[..., Tab]]:
    """Opens the page at an address of its own, or in another window."""
    tabs: list[Tab] = []

    def open_at(fragment: str = "", *, path: Path = made, **options: Any) -> Tab:
        tabs.append(Tab(browser, path.as_uri() + (f"#{fragment}" if fragment else ""), **options))
        return tabs[-1]

    yield open_at
    for opened in tabs:
        assert opened.errors == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
        opened.close()


def shoot(tab: Tab, shots: Path | None, name: str) -> None:
    if shots is not None:
        tab.page.screenshot(path=str(shots / f"{name}.png"))


# ---- reading


def test_an_episode_is_read_as_its_dialogue(tab: Tab, before: list[Episode], shots: Path | None) -> None:
    first = before[0]
    assert tab.text(".problem-id") == first.problem_id
    assert tab.text(".pane h2").startswith("Find the sum of the roots of")
    assert tab.count(".pane h2 math") == 1
    sent = tab.text(".message .sent")
    assert "as sent" in sent
    assert "<|im_start|>user" in sent
    assert tab.texts(".message h3 b") == [
        "problem",
        *[name for k in range(first.num_turns) for name in (f"turn {k + 1}", "feedback")][: 2 * first.num_turns - 1],
    ]
    assert (
        tab.texts(".message .verdict")[-1].split()[-1] == first.verdicts[-1].status.value.replace("_", " ").split()[-1]
    )
    assert tab.count(".message .formula math") >= first.num_turns
    assert "gold answer" in tab.text(".message.user footer")
    assert tab.text(".facts-line").count("reward") == 1
    used, budget = len(first.turns[0].ids), first.budgets[0]
    assert f"{used} of {budget} tokens" in tab.text(".message.assistant h3")
    shoot(tab, shots, "dialogue-light")


def test_the_mathematics_can_be_shown_as_it_was_written(tab: Tab, before: list[Episode]) -> None:
    tab.press("m")
    assert tab.count(".message .formula") == 0
    assert before[0].responses[0] in tab.texts(".message.assistant .said")[0]
    tab.press("m")
    assert tab.count(".message .formula") > 0


def test_every_token_is_a_cell_and_says_what_it_is(tab: Tab, before: list[Episode], shots: Path | None) -> None:
    tab.page.click("#tab-tokens")
    episode = before[0]
    assert tab.count(".token") == len(episode.ids)
    assert tab.count(".token.own") == int(episode.loss_mask.sum())
    at = int(episode.turn_spans[0, 0])
    tab.page.hover(f'.token[data-at="{at}"]')
    card = tab.text("#hover")
    assert re.search(rf"^id\s+{int(episode.ids[at])}$", card, re.M)
    assert f"turn 1, 1 of {len(episode.turns[0].ids)}" in card
    shown = re.search(r"^log-prob\s+(\S+) \(p", card, re.M)
    assert shown is not None
    assert float(shown[1].replace("−", "-")) == pytest.approx(float(episode.logprobs[at]), abs=1e-3)
    assert "1, trained on" in card
    assert "entropy" in card
    assert "advantage" in card
    tab.page.hover('.token[data-at="0"]')
    assert re.search(r"^place\s+prompt, 1 of", tab.text("#hover"), re.M)
    shoot(tab, shots, "tokens-light")


def test_tokens_are_colored_by_what_is_chosen(tab: Tab, before: list[Episode]) -> None:
    tab.page.click("#tab-tokens")
    keys = tab.page.eval_on_selector_all("#color option", "options => options.map((one) => one.value)")
    assert keys == ["mask", "logprob", "advantage", "entropy", "version", "return"]
    episode = before[0]
    own = episode.loss_mask.nonzero()[0]
    least = int(own[episode.logprobs[own].argmin()])

    def color(at: int) -> str:
        found = tab.page.eval_on_selector(f'.token[data-at="{at}"]', "cell => cell.style.backgroundColor")
        return str(found)

    strongest = float(color(least).rpartition(",")[2].strip(" )"))
    others = [float(color(int(at)).rpartition(",")[2].strip(" )") or 0) for at in own[:8] if color(int(at))]
    assert strongest >= max(others)
    assert color(0) == ""
    tab.page.select_option("#color", "mask")
    assert len({color(int(at)) for at in own}) == 1
    tab.press("c")
    assert tab.page.input_value("#color") == "logprob"
    tab.press("C", "C")
    assert tab.page.input_value("#color") == "return"
    assert tab.count("#legend span") >= 1


def test_keys_walk_through_tokens(tab: Tab, before: list[Episode]) -> None:
    tab.press("t", "ArrowRight", "ArrowRight", "ArrowLeft")
    assert tab.page.get_attribute(".token.cursor", "data-at") == "0"
    tab.press("n")
    logprobs = before[0].logprobs
    expected = next((at for at in range(1, len(logprobs)) if logprobs[at] < -2.3), 0)
    assert tab.page.get_attribute(".token.cursor", "data-at") == str(expected)
    tab.press("i")
    assert tab.count(".flow.ids") > 0
    assert tab.text(".token.cursor, .token").strip().isdigit()


def test_budgets_and_turns_are_marked_in_the_token_view(tab: Tab, before: list[Episode]) -> None:
    tab.press("t")
    headings = tab.texts(".segment h3")
    assert headings[0].startswith("prompt")
    assert f"of {before[0].budgets[0]} tokens" in headings[1]
    assert tab.page.eval_on_selector(".strip", "strip => strip.width") > 300


def test_the_ids_of_a_turn_can_be_copied(tab: Tab, before: list[Episode]) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.press("t")
    tab.page.click(".segment.turn .copy")
    tab.wait("document.querySelector('.segment.turn .copy').textContent === 'copied'")
    assert json.loads(tab.page.evaluate("navigator.clipboard.readText()")) == before[0].turns[0].ids.tolist()


# ---- finding


def test_filters_keep_what_they_say(tab: Tab, before: list[Episode]) -> None:
    assert tab.text("#count") == f"{len(before)} episodes"
    tab.press("f")
    tab.page.select_option('#filter-rows select[aria-label="family"]', "calculus")
    calculus = sum(e.metadata["family"] == "calculus" for e in before)
    assert tab.text("#count") == f"{calculus} of {len(before)}"
    tab.page.select_option('#filter-rows select[aria-label="outcome"]', "never")
    never = sum(e.metadata["family"] == "calculus" and not e.solved for e in before)
    assert tab.text("#count") == f"{never} of {len(before)}"
    tab.page.click("#clear")
    assert tab.text("#count") == f"{len(before)} episodes"
    tab.page.fill('#filter-rows input[aria-label="reward from"]', "1")
    rich = sum(e.rewards.sum() >= 1 for e in before)
    assert tab.text("#count") == f"{rich} of {len(before)}"
    tab.page.click("#clear")
    tab.page.click("#outcomes button:first-child")
    first = sum(e.verdicts[0].correct for e in before)
    assert tab.text("#count") == f"{first} of {len(before)}"


def test_search_finds_what_was_said_and_marks_it(tab: Tab, before: list[Episode]) -> None:
    tab.press("/")
    tab.page.keyboard.type("VIETA")
    found = sum(any("Vieta" in text for text in e.responses) for e in before)
    tab.wait(f"document.getElementById('count').textContent.startsWith('{found} of')")
    tab.page.keyboard.press("Escape")
    assert tab.page.input_value("#query") == "VIETA", "a browser empties such a field, and the list stayed filtered"
    tab.press("j", "k", "k")
    tab.page.click(".row")
    tab.wait("document.querySelectorAll('mark.found').length > 0")
    assert tab.texts("mark.found")[0] == "Vieta"


def test_rows_are_sorted_both_ways(tab: Tab, before: list[Episode]) -> None:
    tab.page.select_option("#sort", "reward")
    rewards = sorted(float(e.rewards.sum()) for e in before)
    shown = [float(t.replace("−", "-")) for t in tab.texts(".row .reward")]
    assert shown == rewards[: len(shown)]
    tab.page.click("#direction")
    shown = [float(t.replace("−", "-")) for t in tab.texts(".row .reward")]
    assert shown == rewards[::-1][: len(shown)]


def test_keys_walk_through_episodes(tab: Tab, before: list[Episode]) -> None:
    tab.press("j", "j")
    assert "#2" in tab.text('.row[aria-selected="true"]')
    tab.press("k")
    assert "#1" in tab.text('.row[aria-selected="true"]')
    tab.press("]")
    assert before[2].problem_id == before[1].problem_id
    assert tab.text(".facts-line").split("episode")[1].split()[0] == "2"
    tab.press("?")
    assert tab.page.is_visible("#keys")
    tab.page.keyboard.press("Escape")
    assert not tab.page.is_visible("#keys")


def test_the_address_leads_back_to_the_same_place(tab: Tab, opening: Callable[..., Tab]) -> None:
    tab.press("j", "j", "j", "t", "d", "s")
    tab.page.select_option("#color", "entropy")
    fragment = tab.page.evaluate("location.hash.slice(1)")
    again = opening(fragment)
    again.settle()
    assert again.texts(".pane h2") == tab.texts(".pane h2")
    assert again.page.input_value("#color") == "entropy"
    assert again.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert again.count(".pane") == 2


# ---- two runs


def test_two_runs_open_on_their_comparison(opening: Callable[..., Tab]) -> None:
    tab = opening()
    tab.page.wait_for_selector(".pane + .pane .body")
    assert [text.split()[1] for text in tab.texts(".facts-line")] == ["before", "after"]
    assert len(set(tab.texts(".problem-id"))) == 1


def test_what_changed_is_one_click_away(tab: Tab, before: list[Episode]) -> None:
    later = sum(e.solved and not e.verdicts[0].correct for e in before)
    chips = {text.rpartition(" ")[0]: int(text.rpartition(" ")[2]) for text in tab.texts("#quick button")}
    assert chips["wrong → right"] == later > 0
    repeated = sum(
        len({v.answer for v in e.verdicts if not v.correct and v.answer})
        < sum(not v.correct and v.answer is not None for v in e.verdicts)
        for e in before
    )
    assert chips["repeated"] == repeated > 0
    assert chips["solved by the other alone"] > 0
    tab.page.click("#quick button:has-text('wrong → right')")
    assert tab.text("#count") == f"{later} of {len(before)}"
    tab.page.click("#quick button:has-text('wrong → right')")
    assert tab.text("#count") == f"{len(before)} episodes"
    assert "first right" in tab.text("#outcomes-legend")


def test_marks_survive_a_reload_and_are_exported(tab: Tab, before: list[Episode], tmp_path: Path) -> None:
    assert tab.count("#save-marks") == 0
    tab.press("x")
    assert tab.page.get_attribute("#mark", "aria-pressed") == "true"
    tab.page.reload()
    tab.page.wait_for_selector("#quick #save-marks")
    tab.page.click("#quick button:has-text('marked 1')")
    assert tab.text("#count") == f"1 of {len(before)}"
    with tab.page.expect_download() as download:
        tab.page.click("#save-marks")
    download.value.save_as(tmp_path / "marked.json")
    (told,) = json.loads((tmp_path / "marked.json").read_text())
    assert (told["set"], told["index"], told["problem_id"]) == ("before", before[0].index, before[0].problem_id)


def test_the_same_problem_side_by_side_in_two_runs(tab: Tab, after: list[Episode], shots: Path | None) -> None:
    tab.page.click("#compare")
    tab.wait("document.querySelectorAll('.pane').length === 2")
    left, right = tab.texts(".pane h2")
    assert left == right
    assert [text.split()[1] for text in tab.texts(".facts-line")] == ["before", "after"]
    tab.page.click("#tab-tokens")
    # The two share their prompt: the first token that differs is marked in both, and the difference can be a color.
    assert tab.count(".token.split") == 2
    assert "difference" not in tab.page.eval_on_selector_all("#color option", "all => all.map((one) => one.value)")
    tab.press("j")
    tab.wait("document.querySelectorAll('.pane').length === 2")
    assert len(set(tab.texts(".pane h2"))) == 1
    shoot(tab, shots, "side-by-side")
    tab.page.keyboard.press("Escape")
    tab.wait("document.querySelectorAll('.pane').length === 1")
    tab.page.select_option("#set", "1")
    tab.wait(f"document.getElementById('count').textContent === '{len(after)} episodes'")


def test_what_cannot_be_laid_side_by_side_says_why(
    opening: Callable[..., Tab], tmp_path: Path, before: list[Episode], after: list[Episode]
) -> None:
    """Two runs of which only one problem is in both: the page opens on it."""
    alone = next(one for one in before if one.problem_id != after[0].problem_id)
    both = next(one for one in before if one.problem_id == after[0].problem_id)
    path = write_view(tmp_path / "v.html", {"a": [alone, both], "b": [after[0]]}, tokenizer="builtin")
    tab = opening(path=path)
    assert tab.page.is_enabled("#compare")
    assert tab.text("#compare") == "Side by side"
    tab.page.click(f".row:has-text('{alone.problem_id}')")
    tab.wait("document.getElementById('compare').disabled")
    assert tab.text("#compare") == "Only episode on this problem"


def test_log_probs_of_the_same_tokens_are_subtracted(
    opening: Callable[..., Tab], before: list[Episode], tmp_path: Path
) -> None:
    changed = [replace(e, logprobs=(e.logprobs * 2).astype("float32")) for e in before]
    path = write_view(tmp_path / "v.html", {"sampler": before, "trainer": changed}, tokenizer="builtin")
    tab = opening("tab=tokens&color=difference", path=path)
    tab.wait("document.querySelectorAll('.pane').length === 2")
    assert tab.page.input_value("#color") == "difference"
    assert tab.count(".token.split") == 0
    at = int(before[0].turn_spans[0, 0])
    tab.page.hover(f'.pane:first-child .token[data-at="{at}"]')
    shown = re.search(r"this − other\s+(\S+)", tab.text("#hover"))
    assert shown is not None
    told = float(shown[1].replace("−", "-").replace("+", ""))
    assert told == pytest.approx(float(-before[0].logprobs[at]), rel=1e-2, abs=1e-4)


def test_curves_and_figures(tab: Tab, before: list[Episode], after: list[Episode], shots: Path | None) -> None:
    tab.press("g")
    titles = tab.texts("#charts h2")
    assert titles == ["validation", "episodes", "train", "time"]
    assert tab.page.locator(".chart").first.locator("figcaption b").inner_text() == "acc@1"
    assert tab.page.locator(".chart").first.locator("text.axis").all_text_contents() == ["iteration", "acc@1"]
    assert {"solved within k turns", "solved by family", "acc@1", "update_s"} <= set(tab.texts(".chart figcaption b"))
    train = tab.page.locator("#charts section", has=tab.page.locator("h2", has_text="train"))
    chart = train.locator(".chart", has_text="acc@1").locator("svg")
    assert chart.locator("path.line").count() == 2
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.98, box["y"] + 50)
    told = train.locator(".chart", has_text="acc@1").locator(".told").inner_text()
    assert "0.19" in told
    assert "0.57" in told
    assert "at 19" in told
    tab.page.select_option("#axis", "tokens")
    assert "1.5k" in tab.text("#charts") or "1500" in tab.text("#charts") or "500" in tab.text("#charts")
    solved = sum(e.verdicts[0].correct for e in before) / len(before)
    assert 0 < solved < sum(e.verdicts[0].correct for e in after) / len(after)
    shoot(tab, shots, "figures")
    tab.page.click("button.label:has-text('counting')")
    assert tab.text("#count") == f"{sum(e.metadata['family'] == 'counting' for e in before)} of {len(before)}"


# ---- looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(opening: Callable[..., Tab], scheme: str, shots: Path | None) -> None:
    tab = opening("tab=tokens", color_scheme=scheme)

    def contrast() -> float:
        """Of the text on the page, as WCAG 2 defines it."""
        return float(
            tab.page.evaluate("""() => {
          const style = getComputedStyle(document.body);
          const light = (color) => {
            const parts = color.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255);
            const linear = parts.map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
          };
          const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05);
        }""")
        )

    def background() -> str:
        return str(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    given = background()
    assert contrast() > 7
    tab.press("d")
    assert background() != given
    assert contrast() > 7
    tab.press("d")
    assert background() == given
    shoot(tab, shots, f"tokens-{scheme}")


def test_a_phone_shows_the_list_or_the_episode(opening: Callable[..., Tab], shots: Path | None) -> None:
    tab = opening(viewport=PHONE, has_touch=True)

    def too_wide() -> bool:
        return bool(tab.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    assert tab.page.is_visible("#list")
    assert not tab.page.is_visible("#detail")
    assert not too_wide()
    shoot(tab, shots, "phone-list")
    tab.page.click(".row")
    tab.wait("document.querySelectorAll('.pane').length === 1")
    assert not tab.page.is_visible("#list")
    assert tab.page.is_visible(".message")
    assert not too_wide()
    tab.page.click("#tab-tokens")
    tab.page.tap(".token.own")
    tab.wait("!document.getElementById('hover').hidden")
    assert not too_wide()
    shoot(tab, shots, "phone-tokens")
    tab.page.click("#back")
    assert tab.page.is_visible("#list")
    tab.page.click("#page-figures")
    assert not too_wide()


# ---- what a stranger wrote


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory, hostile: list[Episode]) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    folder.mkdir()
    write_episodes(folder / "episodes.jsonl", hostile)
    lines = [{"iteration": k, **{e.problem_id[:60]: float(k) for e in hostile}} for k in range(3)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return write_view(folder / "view.html", folder, tokenizer="builtin")


def test_hostile_text_is_shown_and_never_run(
    opening: Callable[..., Tab], hostile_page: Path, hostile: list[Episode], shots: Path | None
) -> None:
    tab = opening(path=hostile_page)
    assert "window.owned" not in hostile_page.read_text()  # no text of a model stands in the file as text
    for number, episode in enumerate(hostile):
        tab.wait(f"document.querySelector('.facts-line')?.textContent.startsWith('episode {number}')")
        said = tab.text(".message.assistant .said")
        expected = episode.responses[0][:40]
        if expected.isprintable():
            assert expected in said, number
        shoot(tab, shots, f"hostile-{number}")
        for key in ("t", "m", "t"):
            tab.press(key)
        tab.press("m", "j")
    tab.press("g", "d", "g")
    for name in (
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "form:not(#filters):not([method=dialog])",
        "a[href]",
    ):
        allowed = tab.page.evaluate(f"document.querySelectorAll('#app {name}').length")
        assert allowed == 0, name
    assert tab.page.evaluate("window.owned === undefined")
    assert tab.page.title().endswith("mathturn view")


def test_hidden_characters_are_named(opening: Callable[..., Tab], hostile_page: Path) -> None:
    tab = opening("row=2", path=hostile_page)
    named = set(tab.texts(".message .hidden-character"))
    assert {"RLO", "PDF", "LRI", "PDI", "ZWSP", "BOM", "U+E0041", "ESC", "BEL", "NUL", "U+D800"} <= named
    raw = tab.page.evaluate("document.getElementById('app').textContent")
    assert not set("\u202e\u2066\u200b\ufeff\x1b\x07\x00") & set(raw)
    tab = opening("row=7", path=hostile_page)
    assert tab.texts(".message .said .hidden-character")[0] == "RLO×20000"


def test_a_line_of_a_megabyte_comes_in_pieces(opening: Callable[..., Tab], hostile_page: Path) -> None:
    tab = opening("row=6", path=hostile_page)
    said = "document.querySelector('.message.assistant .said').textContent.length"
    assert tab.page.evaluate(said) < 21_000
    tab.page.click(".message.assistant .said .more")
    assert 200_000 < tab.page.evaluate(said) < 230_000
    assert not tab.page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_formulas_that_move_or_hide_are_shown_as_written(opening: Callable[..., Tab], hostile_page: Path) -> None:
    for row, written in (
        (3, [r"\href{javascript:", r"\includegraphics{http", r"\rule{900em}"]),
        (4, [r"\kern-500em hidden", r"\color{white}{white}", r"\def\a", r"\htmlStyle{position"]),
    ):
        said = opening(f"row={row}", path=hostile_page).texts(".message.assistant .said")[0]
        for text in written:
            assert text in said


def test_the_policy_of_the_page_stops_what_is_put_into_it(opening: Callable[..., Tab]) -> None:
    tab = opening()
    blocked = tab.page.evaluate("""async () => {
      const found = [];
      document.addEventListener("securitypolicyviolation", (event) => found.push(event.effectiveDirective));
      const script = document.createElement("script");
      try { script.text = "window.owned = 1"; document.body.append(script); } catch (error) { found.push("trusted-types"); }
      const image = new Image();
      image.src = "http://127.0.0.1:9/x.png";
      document.body.append(image);
      try { await fetch("http://127.0.0.1:9/"); } catch (error) { found.push("fetch"); }
      try { document.body.innerHTML = "<b>x</b>"; } catch (error) { found.push("innerHTML"); }
      await new Promise((done) => setTimeout(done, 100));
      return found;
    }""")
    assert {"img-src", "connect-src", "fetch", "innerHTML"} <= set(blocked)
    assert tab.page.evaluate("window.owned === undefined")
    tab.errors.clear()  # the browser's own reports of what it stopped
    tab.requests.clear()


# ---- large and growing


def processor_seconds_of_children() -> float:
    """What all processes below this one have used so far: the browser has several."""
    used, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            used[int(stat.parent.name)] = int(fields[11]) + int(fields[12])
    children = {os.getpid()}
    while more := {one for one, parent in parents.items() if parent in children} - children:
        children |= more
    return sum(used[one] for one in children - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time of other processes is read from /proc")
def test_five_thousand_episodes_open_within_six_processor_seconds(
    opening: Callable[..., Tab], tmp_path: Path, after: list[Episode]
) -> None:
    long = [
        replace(
            synthetic_episode(0, i, [60, 60, 60], prompt=60, feedback=20, group=str(i // 8), vocab_size=400),
            prompt=f"{after[i % 24].prompt} {i}",
            responses=after[i % 24].responses[:1] * 3,
            metadata={"family": f"f{i % 12}", "level": i % 5},
        )
        for i in range(5000)
    ]
    path = write_view(tmp_path / "big.html", {"big": long}, tokenizer="builtin")
    began = processor_seconds_of_children()
    tab = opening(path=path)
    assert tab.text("#count") == "5,000 episodes"
    assert processor_seconds_of_children() - began < 6  # three seconds on two cores
    assert tab.count(".row") < 60  # only those in sight are drawn
    tab.page.evaluate("document.getElementById('rows').scrollTop = 1e9")
    tab.wait("document.querySelector('.row:last-child').textContent.includes('#4999')")
    began = processor_seconds_of_children()
    tab.page.fill("#query", "the roots of $x^2 - 5x + 6 = 0$. 4992")
    tab.wait("document.getElementById('count').textContent.startsWith('1 of')")
    assert processor_seconds_of_children() - began < 6
    tab.page.fill("#query", "")
    tab.wait("document.getElementById('count').textContent === '5,000 episodes'")


def test_a_long_episode_draws_its_cells_as_they_are_reached(opening: Callable[..., Tab], tmp_path: Path) -> None:
    path = write_view(tmp_path / "long.html", {"long": [synthetic_episode(0, 0, [14_000], vocab_size=400)]})
    tab = opening("tab=tokens", path=path)
    assert tab.count(".token") < 8000
    box = tab.page.locator(".strip").bounding_box()
    tab.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 5)
    tab.wait("document.querySelector('.token.cursor') !== null")
    assert int(tab.page.get_attribute(".token.cursor", "data-at")) > 13_500


@pytest.mark.slow  # a training run beside a browser
def test_a_run_that_goes_on_is_followed(browser: Any, tmp_path: Path, before: list[Episode]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    server = ViewServer(Follower([run], tokenizer="builtin"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        tab = Tab(browser, server.url)
        assert tab.page.is_visible("#live")
        assert tab.text("#count") == "0 episodes"
        with EpisodeWriter(run / "episodes.jsonl") as writer:
            writer.write(before[0])
            tab.wait("document.getElementById('count').textContent === '1 episodes'", seconds=20)
            writer.write(before[1])
            writer.write(before[2])
            tab.wait("document.getElementById('count').textContent === '3 episodes'", seconds=20)
        (run / "metrics.jsonl").write_text('{"iteration": 1, "train/reward": 0.5}\n')
        tab.page.click("#page-figures")
        tab.wait("[...document.querySelectorAll('h2')].some((one) => one.textContent === 'train')", seconds=20)
        assert tab.errors == []
        assert all(url.startswith((server.url, "data:")) for url in tab.requests)
        tab.close()
    finally:
        server.stop()
        thread.join()
        server.close()
