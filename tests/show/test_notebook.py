"""What notebooks show: escaped, short, and true."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.baselines import TrainResult
from mathturn_gym.env import EpisodeState
from mathturn_gym.episodes.metrics import compare, summarize
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.packing.batch import LAYOUTS
from mathturn_gym.show.view.records import from_episodes
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode, Problem, Status, TurnContext, TurnRecord, Verdict

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\" ' & \u202e\x1b[31m </div>"
SEEN = "<script>alert(1)</script><img src=x onerror=alert(1)>\" ' & ⟨U+202E⟩␛[31m </div>"


class Page(HTMLParser):
    """The tags of a page, checked to be closed in order, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"style", "title", "colspan"}
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def hostile_episode() -> Episode:
    return synthetic_episode(
        0,
        0,
        [2, 3],
        problem_id=HOSTILE,
        responses=(HOSTILE, HOSTILE),
        feedbacks=(HOSTILE, ""),
        gold=(HOSTILE,),
        verdicts=(Verdict(Status.WRONG, HOSTILE, answer=HOSTILE), Verdict(Status.RIGHT)),
        metadata={"family": HOSTILE, "level": 1},
    )


@pytest.mark.parametrize(
    "thing",
    [
        hostile_episode(),
        Problem(HOSTILE, HOSTILE, HOSTILE, metadata={HOSTILE: HOSTILE}),
        Verdict(Status.UNDECIDED, HOSTILE, answer=HOSTILE),
        summarize([hostile_episode(), synthetic_episode(0, 1, [2], metadata={"family": "b", "level": 2})]),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_hostile_text_is_shown_and_never_run(thing: Any) -> None:
    page = Page(thing._repr_html_())
    assert SEEN in page.text
    assert set(page.tags) <= {"div", "span", "b", "small", "table", "tr", "td", "th", "details", "summary"}


def test_an_episode_shows_its_ids_with_turn_and_logprob() -> None:
    episode = synthetic_episode(0, 0, [2, 3], prompt=4)
    page = episode._repr_html_()
    at = int(episode.turn_spans[1, 0])
    assert f'title="position {at}, turn 2, log-prob {episode.logprobs[at]:.4f}"' in page
    assert 'title="position 0, masked"' in page
    assert f"{len(episode.ids)} token ids, 5 of them the policy's" in page
    silent = synthetic_episode(0, 0, [2], logprobs=False)._repr_html_()
    assert "no log-prob" in silent
    many = synthetic_episode(0, 0, [50_000])._repr_html_()
    assert "and 48,008 more" in many
    assert len(many) < 400_000


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["padded", "varlen"])
def test_a_batch_draws_its_rows_with_what_is_trained_on(layout: Any, form: Any) -> None:
    episodes = [synthetic_episode(0, i, [2, 3], prompt=5, feedback=4, group="g") for i in range(2)]
    batch = pack(episodes, layout=layout, form=form, advantages=[np.zeros(2)] * 2)
    trained = batch.count("token")
    assert (
        repr(batch)
        == f"PackedBatch({layout}, {form}: {batch.num_rows} rows, {batch.num_tokens} tokens, {trained} trained on)"
    )
    page = batch._repr_html_()
    Page(page)
    assert page.count("height:.55em") == batch.num_rows
    widths = [float(part.split("%")[0]) for part in page.split("width:")[1:] if ",.85)" in part.split("</div>")[0]]
    assert sum(widths) == pytest.approx(100 * trained / batch.max_seqlen, abs=0.1)


def test_a_report_shows_its_figures_with_intervals() -> None:
    page = summarize([synthetic_episode(0, i, [2, 3]) for i in range(20)])._repr_html_()
    assert "acc@1" in page
    assert "20 episodes on 20 problems, 95% intervals" in page
    assert "position:absolute;left:" in page
    assert page.index("How often is it right?") < page.index("acc@1") < page.index("What goes wrong?")


def test_reprs_fit_a_line() -> None:
    episodes = [synthetic_episode(0, i, [30, 40], responses=("x" * 500, "y")) for i in range(20)]
    turn = TurnRecord("x" * 500, Verdict(Status.WRONG), "", -1.0, 3, 9)
    problem = Problem("p/1", "x" * 500, "4")
    state = EpisodeState(problem, np.zeros(500, np.int64), (turn,), None, False, 0, 1, None)
    context = TurnContext(problem, 1, 4, "x" * 500, np.zeros(500, np.int64))
    report, compared = summarize(episodes), compare(episodes, episodes)
    done = TrainResult(Path("runs/a"), None, [{"iteration": i} for i in range(99)], "finished", "", 640, 20480, 1.5)
    for thing in (*episodes[:1], turn, problem, state, context, report, compared, *from_episodes(episodes[:1]), done):
        shown = repr(thing)
        assert len(shown) < 200
        assert "\n" not in shown
        assert shown.startswith(f"{type(thing).__name__}(")
    assert f"acc@2 {report['acc@2']}" in repr(report)
