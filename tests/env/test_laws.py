"""The laws of DESIGN, as properties over random tokenizers, completions, budgets and modes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from mathturn_gym.env import MathMultiTurnEnv
from mathturn_gym.episodes.rollout import EpisodeRecorder
from mathturn_gym.testing import TEMPLATES, make_tokenizer
from mathturn_gym.types import NO_VERSION, Completion, Episode, Ids, Problem, StopReason

PROBLEMS = [
    Problem("p/1", "What is 3+4?", "7", hints=("odd.",), false_hints=("even.",)),
    Problem("p/2", "é 你好 <|im_end|> \\boxed{", "-1/2"),
]
TEXTS = ["", r"\boxed{7}", r"\boxed{-\frac{1}{2}}", "the answer is 7", r"\boxed{7", "<|im_end|>user 7", "\n\n", "💡"]


@functools.cache
def tokenizer_of(template: str, seed: int) -> Any:
    return make_tokenizer(template, seed=seed)


@st.composite
def completions(draw: st.DrawFn, tokenizer: Any) -> Ids:
    """Any ids: text, special tokens alone, bytes that are no UTF-8, nothing, with and without the end of turn."""
    vocab = len(tokenizer)
    kind = draw(st.sampled_from(["any", "special", "bytes", "text"]))
    if kind == "text":
        ids = tokenizer(draw(st.sampled_from(TEXTS)), add_special_tokens=False)["input_ids"]
    else:
        low, high = {"any": (0, vocab - 1), "special": (0, 3), "bytes": (4, 259)}[kind]
        ids = draw(st.lists(st.integers(low, high), max_size=12))
    end = [tokenizer.eos_token_id] if draw(st.booleans()) else []
    return np.array([*ids, *end], np.int64)


@st.composite
def plays(draw: st.DrawFn) -> tuple[MathMultiTurnEnv, dict[str, Any], list[Ids], int]:
    template = draw(st.sampled_from(sorted(TEMPLATES)))
    tokenizer = tokenizer_of(template, draw(st.integers(0, 5)))
    kwargs = {
        "problems": PROBLEMS,
        "tokenizer": tokenizer,
        "num_turns": draw(st.integers(1, 4)),
        "max_completion_tokens": draw(st.integers(24, 40)),
        "max_context_tokens": draw(st.one_of(st.none(), st.integers(75, 240))),
        "stop_on_success": draw(st.booleans()),
        "feedback": draw(st.sampled_from(["plain", "hint", "hint-flipped"])),
    }
    actions = [draw(completions(tokenizer)) for _ in range(kwargs["num_turns"])]
    return MathMultiTurnEnv(**kwargs), kwargs, actions, draw(st.integers(0, 3))


def run(env: MathMultiTurnEnv, actions: list[Ids], seed: int) -> tuple[Episode, list[Ids], list[Any]]:
    """One episode, its observations, and everything else that the environment said."""
    obs, info = env.reset(seed=seed)
    recorder, observations = EpisodeRecorder(obs, info), [obs]
    said: list[Any] = [info]
    for k, action in enumerate(actions):
        completion = Completion(action, np.full(len(action), -float(k + 1), np.float32), version_start=k)
        obs, reward, terminated, truncated, info = env.step(action)
        recorder.add(completion, obs, reward, terminated, truncated, info)
        observations.append(obs)
        said.append((reward, terminated, truncated, info))
        if terminated or truncated:
            break
    return recorder.episode(), observations, said


@settings(max_examples=examples(1500))
@given(plays())
def test_sequence_law_mask_law_and_endings(play: tuple[MathMultiTurnEnv, dict[str, Any], list[Ids], int]) -> None:
    env, _, actions, seed = play
    episode, observations, said = run(env, actions, seed)
    infos = [said[0], *(entry[-1] for entry in said[1:])]
    if infos[0]["stop_reason"] == "context":  # the prompt left no room: one step ends the episode without a turn
        assert said[1][:3] == (0.0, False, True)
        assert (len(said), episode.num_turns) == (2, 0)
        return
    for k, (reward, terminated, truncated, info) in enumerate(said[1:]):
        before, after, action = observations[k], observations[k + 1], actions[k]
        # The sequence law, by the offsets that info gives.
        assert after in env.observation_space
        assert (info["new_ids_start"], info["feedback_start"]) == (len(before), len(before) + len(action))
        feedback = after[info["feedback_start"] :]
        assert np.array_equal(after, np.concatenate([before, action, feedback]))
        # Feedback closes the turn exactly where the completion did not, and says what info says it says.
        end = env.dialogue.end_of_turn
        if info["feedback"]:
            assert info["feedback"] in env.dialogue.decode(feedback)
            if end:
                closed = len(action) > 0 and action[-1] == end[-1]
                assert (tuple(feedback[: len(end)]) == end) is not closed
            assert len(after) < env.max_context_tokens
        else:
            assert feedback.size == 0
        # Terminated is not truncated, and each has its reason.
        last, right = k + 1 == env.num_turns, info["verdict"].correct
        assert terminated == (last or (right and env.stop_on_success))
        assert truncated == (info["stop_reason"] == "context")
        assert not (terminated and truncated)
        assert reward == (1.0 if right else -1.0)
        assert info["completion_budget"] <= env.max_completion_tokens
    assert all(info["problem_id"] == infos[0]["problem_id"] for info in infos)
    check_mask_law(episode, actions, observations)


def check_mask_law(episode: Episode, actions: list[Ids], observations: list[Ids]) -> None:
    """Ids, mask, log-probs and versions were born together: the policy's own ids are marked, and nothing else."""
    assert np.array_equal(episode.ids, observations[-1])
    assert np.array_equal(episode.prompt_ids, observations[0])
    for turn, action, before in zip(episode.turns, actions, observations[:-1], strict=False):
        assert np.array_equal(turn.context, before)
        assert np.array_equal(turn.ids, action)
        assert np.all(turn.logprobs == -float(turn.index + 1))
        assert np.all(turn.versions == turn.index)
    own = sum(len(turn.ids) for turn in episode.turns)
    assert int(episode.loss_mask.sum()) == own
    assert np.all(episode.logprobs[~episode.loss_mask] == 0)
    assert np.all(episode.versions[~episode.loss_mask] == NO_VERSION)
    assert (episode.stop_reason is None) is not (episode.terminated or episode.truncated)
    assert episode.truncated is (episode.stop_reason is StopReason.CONTEXT)


@settings(max_examples=examples(500))
@given(plays(), st.integers(0, 3))
def test_the_same_is_said_again_and_after_a_fork(
    play: tuple[MathMultiTurnEnv, dict[str, Any], list[Ids], int], fork_at: int
) -> None:
    env, kwargs, actions, seed = play
    _, observations, said = run(env, actions, seed)
    twin = MathMultiTurnEnv(**kwargs)
    _, again, said_again = run(twin, actions, seed)
    assert said == said_again
    assert all(np.array_equal(a, b) for a, b in zip(observations, again, strict=True))
    # Fork at some turn that was played, and play the rest from there in another environment.
    played = len(observations) - 1
    fork = min(fork_at, played)
    env.reset(seed=seed)
    for action in actions[:fork]:
        env.step(action)
    other = MathMultiTurnEnv(**kwargs)
    obs, _ = other.set_state(env.get_state())
    assert np.array_equal(obs, observations[fork])
    for k in range(fork, played):
        obs, *rest = other.step(actions[k])
        assert np.array_equal(obs, observations[k + 1])
        assert tuple(rest) == said[k + 1]
