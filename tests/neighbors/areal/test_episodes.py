"""`Episode` to `SequenceSample` and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from areal_replay import collect_episodes, tokenizers_beside

import mathturn_gym  # noqa: F401 - registers the environments
from mathturn_gym.episodes.packing import pack
from mathturn_gym.episodes.trajectories.records import episode_to_record
from mathturn_gym.errors import InvalidEpisodeError
from mathturn_gym.neighbors.areal import SequenceSample, ValidationError, to_episode, to_sequence_sample
from mathturn_gym.types import Completion, Episode, Status, Verdict
from mathturn_gym.wrappers import ReturnsWrapper

HERE = Path(__file__).parent
GOLDEN = HERE.parents[3] / "shared" / "golden"
RECORDINGS = [
    pytest.param(path, id=path.stem)
    for path in (
        *sorted((HERE / "data").glob("*.json")),
        *sorted((GOLDEN / "dev").glob("*.json")),
        *sorted((GOLDEN / "real" / "dev").glob("*.json")),
    )
]


def play(num_turns: int = 3, *, truncate: bool = False, **kwargs: Any) -> Episode:
    """An episode with versions within a turn, an empty completion, and (truncate) feedback that did not fit."""
    options: dict[str, Any] = {"max_context_tokens": 35} if truncate else {}
    env = ReturnsWrapper(gym.make("MathMultiTurn-v0", num_turns=num_turns, **options, **kwargs), discount=0.5)
    env.reset(seed=3)
    completions = [
        Completion(np.array([80, 81, 2]), np.array([-0.1, -0.2, -0.3]), version_start=1, versions=np.array([1, 1, 2])),
        Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), truncated=True, version_start=2),
        Completion(np.array([90]), np.array([-1.5]), truncated=True, version_start=4),
    ]
    for completion in completions:
        *_, terminated, truncated, info = env.step(completion)
        if terminated or truncated:
            break
    episode: Episode = info["trajectory"]
    return episode


def through_json(sample: SequenceSample) -> SequenceSample:
    return SequenceSample.from_json_compatible(json.loads(json.dumps(sample.as_json_compatible())))


@pytest.mark.parametrize("truncate", [False, True])
def test_an_episode_comes_back_to_the_bit(truncate: bool) -> None:
    episode = play(truncate=truncate)
    assert episode.truncated == truncate
    sample = through_json(to_sequence_sample(episode))
    assert episode_to_record(to_episode(sample)) == episode_to_record(episode)


def test_the_layout_by_hand() -> None:
    episode = play()
    sample = to_sequence_sample(episode, birth_time=17, task_id=3)
    start = episode.prompt_length
    gap = int(episode.turn_spans[1, 0])
    last = len(episode.ids)
    assert sample.ids == [episode.problem_id]
    assert sample.seqlens["packed_input_ids"] == [[start + 3, gap, last]]
    assert sample.data is not None
    data = {key: value.tolist() for key, value in sample.data.items() if value is not None}
    assert data["packed_input_ids"] == [*episode.ids[: start + 3], *episode.ids[:gap], *episode.ids]
    assert data["prompt_mask"] == ([True] * start + [False] * 3 + [True] * gap + [True] * (last - 1) + [False])
    assert data["packed_logprobs"][start - 1 : start + 2] == [np.float32(-0.1), np.float32(-0.2), np.float32(-0.3)]
    assert data["rewards"] == [-1.75, -1.5, -1.0]
    assert data["version_start"] == [1, 2, 4]
    assert data["version_end"] == [2, 2, 4]
    assert data["seq_no_eos_mask"] == [False, True, True]
    assert (data["birth_time"], data["task_ids"]) == ([17], [3])
    assert data["packed_prompts"] == episode.prompt_ids.tolist()


@pytest.mark.parametrize("path", RECORDINGS)
def test_the_originals_samples_survive_being_episodes(path: Path) -> None:
    """Sample, episode, sample: every key and value; and the episode is the one the environment gives."""
    recording = json.loads(path.read_text(encoding="utf-8"))
    for inputs, outputs in zip(recording["inputs"]["episodes"], recording["outputs"]["episodes"], strict=True):
        if outputs["samples"] is None:
            continue
        (recorded,) = outputs["samples"]
        sample = SequenceSample.from_json_compatible(recorded)
        episode = to_episode(sample, discount=recording["inputs"]["agent_config"].get("turn_level_discount", 1.0))
        back = to_sequence_sample(episode).as_json_compatible()
        theirs = sample.as_json_compatible()
        assert {**back, "metadata": {}} == {**theirs, "metadata": {}}
        one = {**recording["inputs"], "episodes": [inputs]}
        (played,) = collect_episodes(one, tokenizers_beside(path), [outputs["env_calls"]])
        for name in ("ids", "loss_mask", "logprobs", "turn_spans", "returns", "versions"):
            assert np.array_equal(getattr(episode, name), getattr(played, name)), name
        assert np.allclose(episode.rewards, played.rewards, rtol=0, atol=1e-5)


def test_pack_and_the_format_agree() -> None:
    episode = play()
    sample = to_sequence_sample(episode)
    batch = pack([episode], layout="turns", form="varlen", advantages=[np.zeros(3)])
    assert sample.data is not None
    assert sample.data["packed_input_ids"] is not None
    assert torch.equal(sample.data["packed_input_ids"], batch.input_ids[0])


def test_what_an_imported_sample_does_not_know_is_given_or_undecided() -> None:
    path = HERE / "data" / "own_two_turns.json"
    sample = SequenceSample.from_json_compatible(json.loads(path.read_text())["outputs"]["episodes"][0]["samples"][0])
    blind = to_episode(sample, discount=0.5)
    assert [verdict.status for verdict in blind.verdicts] == [Status.UNDECIDED, Status.UNDECIDED]
    assert blind.rewards.tolist() == [-1.0, 1.0]
    assert blind.feedbacks == ("", "")
    verdicts = [Verdict(Status.WRONG), Verdict(Status.RIGHT)]
    told = to_episode(sample, rewards=[-1, 1], verdicts=verdicts, feedbacks=["No.", ""], discount=0.5)
    assert told.solved
    assert told.feedbacks == ("No.", "")


def _with(sample: SequenceSample, key: str, change: Callable[[torch.Tensor], Any]) -> SequenceSample:
    assert sample.data is not None
    value = sample.data[key]
    assert value is not None
    changed = value.clone()
    change(changed)
    data = {**sample.data, key: changed}
    return SequenceSample(**{**vars(sample), "data": data, "metadata": {}})


def test_what_is_no_episode_is_refused() -> None:
    sample = to_sequence_sample(play())
    with pytest.raises(ValidationError, match="turn 1: its sequence must begin with the one before"):
        to_episode(_with(sample, "packed_input_ids", lambda ids: ids.__setitem__(25, 0)))
    with pytest.raises(ValidationError, match=r"turn 0: .* prompt_mask must be True up to the completion"):
        to_episode(_with(sample, "prompt_mask", lambda mask: mask.__setitem__(0, False)))
    with pytest.raises(InvalidEpisodeError, match="versions run backwards"):
        to_episode(_with(sample, "version_start", lambda versions: versions.__setitem__(0, 9)))
    two = SequenceSample.gather([sample, sample])
    with pytest.raises(ValidationError, match=r"one item with the keys .* got 2 items"):
        to_episode(two)
    facts = {**sample.metadata["mathturn_gym.episode"][0], "versions": [1]}
    with pytest.raises(ValidationError, match="has 1 versions for 4 ids"):
        to_episode(SequenceSample(**{**vars(sample), "metadata": {"mathturn_gym.episode": [facts]}}))


def test_what_the_format_cannot_hold_is_refused() -> None:
    from dataclasses import replace

    episode = play()
    with pytest.raises(InvalidEpisodeError, match="has no returns"):
        to_sequence_sample(replace(episode, returns=None, discount=None))
    with pytest.raises(InvalidEpisodeError, match=r'has 2 segments.*history="keep"'):
        to_sequence_sample(replace(episode, segment_starts=np.array([0, int(episode.turn_spans[0, 1])])))
    logprobs = np.where(episode.loss_mask, np.float32(np.nan), np.float32(0))
    with pytest.raises(InvalidEpisodeError, match="log-probs are missing"):
        to_sequence_sample(replace(episode, logprobs=logprobs))
    start = episode.prompt_length
    headless = replace(
        episode,
        ids=episode.ids[start:],
        loss_mask=episode.loss_mask[start:],
        logprobs=episode.logprobs[start:],
        versions=episode.versions[start:],
        turn_spans=episode.turn_spans - start,
    )
    with pytest.raises(InvalidEpisodeError, match="begins without a prompt"):
        to_sequence_sample(headless)
