"""What a run keeps to look at: episodes as text beside their ids, of each evaluation and what was learned from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mathturn_gym.baselines import train
from mathturn_gym.baselines._evaluation import append_episodes, drop_episodes, with_advantages
from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.returns import advantages
from mathturn_gym.episodes.trajectories import read_episodes
from mathturn_gym.show.view import write_view
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

SETTINGS = {
    "batch_episodes": 8,
    "minibatches": 1,
    "epochs": 1,
    "save_every": 1,
    "env.num_turns": 2,
}


def run(path: Path, iterations: int, *, resume: bool = False, kept: int = 4) -> Path:
    evaluation = {"evaluation.every": 1, "evaluation.episodes": 6, "evaluation.kept": kept}
    config = load_task("lins").config(
        algorithm="grpo", settings={**SETTINGS, **evaluation, "group_size": 4}, budget={"episodes": 8 * iterations}
    )
    train(config, run_dir=path, resume=resume)
    return path


def kept(path: Path, name: str) -> list[Episode]:
    return list(read_episodes(path / f"episodes_{name}.jsonl", strict=True))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two iterations; it is read, and copied to be changed."""
    return run(tmp_path_factory.mktemp("kept") / "run", 2)


def test_a_run_keeps_the_same_problems_at_each_evaluation(whole: Path, tmp_path: Path) -> None:
    path = whole
    episodes = kept(path, "validation")
    assert [episode.metadata["iteration"] for episode in episodes] == [0] * 4 + [1] * 4 + [2] * 4
    problems = [episode.problem_id for episode in episodes]
    assert problems[:4] == problems[4:8] == problems[8:]
    first = episodes[0]
    assert first.prompt
    assert first.gold
    assert first.responses
    assert first.budgets
    assert {int(e.versions.max()) for e in episodes[8:]} == {2}
    learned = kept(path, "train")
    assert [episode.metadata["iteration"] for episode in learned] == [1] * 4 + [2] * 4
    for episode in learned:
        own = episode.token_values["advantage"]
        assert np.array_equal(np.isnan(own), ~episode.loss_mask)
        for start, end in episode.turn_spans.tolist():
            assert len(set(own[start:end].tolist())) == 1  # GRPO: one number per turn
    page = write_view(tmp_path / "view.html", path)
    assert page.read_text().count('class="block"') == 2


def test_a_resumed_run_keeps_what_an_uninterrupted_one_keeps(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "run")
    before = {name: kept(path, name) for name in ("validation", "train")}
    shutil.rmtree(path / "checkpoint")  # back to the one before: the last iteration is played again
    (path / "result.json").unlink()
    run(path, 2, resume=True)
    for name, episodes in before.items():
        for left, right in zip(episodes, kept(path, name), strict=True):
            assert left.metadata == right.metadata
            assert np.array_equal(left.ids, right.ids)


def test_nothing_is_kept_where_nothing_is_wanted(tmp_path: Path) -> None:
    path = run(tmp_path / "run", 1, kept=0)
    assert list(path.glob("episodes*")) == []


def test_tensorboard_shows_a_dialogue(whole: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    shown = events.Tensors("episodes/validation/text_summary")
    assert [event.step for event in shown] == [0, 1, 2]
    text = shown[0].tensor_proto.string_val[0].decode()
    assert all(line.startswith("    ") for line in text.splitlines())
    assert kept(whole, "validation")[0].prompt in text


def test_episodes_that_a_batch_leaves_out_have_no_advantages() -> None:
    episodes = [synthetic_episode(0, i, [2, 3], group="g") for i in range(3)]
    some = [episodes[2], episodes[0]]
    batch = pack(some, advantages=advantages(some))
    found = with_advantages(episodes, batch)
    assert ["advantage" in episode.token_values for episode in found] == [True, False, True]
    at = int(episodes[2].turn_spans[1, 0])
    assert found[2].token_values["advantage"][at] == advantages(some)[0][1]
    other = pack(some, layout="turns", advantages=advantages(some))
    assert all("advantage" not in episode.token_values for episode in with_advantages(episodes, other))


def test_later_iterations_are_dropped(tmp_path: Path) -> None:
    for iteration in (0, 5, 10):
        append_episodes(tmp_path, "train", [synthetic_episode(0, iteration, [1])], iteration)
    drop_episodes(tmp_path, 5)
    assert [episode.index for episode in kept(tmp_path, "train")] == [0, 5]
