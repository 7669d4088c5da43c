"""The table of `docs/areal.md`, a test per row: the recording that shows the defect, and what ours does instead."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from areal_replay import collect_episodes, play, replay_env, tokenizers_beside

import mathturn_gym
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.packing import pack
from mathturn_gym.neighbors.areal.dialogue import PROMPT_IDS
from mathturn_gym.types import Completion, Episode, Problem
from mathturn_gym.wrappers import ReturnsWrapper

HERE = Path(__file__).parent
DOCS = HERE.parents[2] / "docs" / "areal.md"


class Case:
    """A recording, and the repaired agent's outputs for the same inputs."""

    def __init__(self, path: Path) -> None:
        recording = json.loads(path.read_text(encoding="utf-8"))
        self.path = path
        self.inputs: dict[str, Any] = recording["inputs"]
        self.theirs: dict[str, Any] = recording["outputs"]
        tokenizers = tokenizers_beside(path)
        self.ours = play(self.inputs, tokenizers, self.theirs["episodes"], compat=False)
        self.dialogue = Dialogue(tokenizers(self.inputs["tokenizer"]))

    def contexts(self, side: dict[str, Any]) -> list[str]:
        """The observations of the first episode as text."""
        return [self.dialogue.decode(np.array(one["token_ids"])) for one in side["episodes"][0]["obs"]]

    def answers(self, side: dict[str, Any]) -> list[str]:
        return [call["answers"][0] for call in side["episodes"][0]["env_calls"]]

    def records(self, side: dict[str, Any]) -> list[dict[str, Any]]:
        """The lines of the .jsonl logs."""
        files = [text for name, text in sorted(side["log_files"].items()) if name.endswith(".jsonl")]
        return [json.loads(line) for text in files for line in text.splitlines()]

    def episodes(self) -> list[Episode]:
        calls = [outputs["env_calls"] for outputs in self.theirs["episodes"]]
        return collect_episodes(self.inputs, tokenizers_beside(self.path), calls)


@pytest.fixture(scope="session")
def case(golden_path: Callable[[str], Path]) -> Callable[[str], Case]:
    return lambda name: Case(golden_path(name))


def own(name: str) -> Case:
    return Case(HERE / "data" / f"{name}.json")


def test_no_stop_on_success(case: Callable[[str], Case], golden_path: Callable[[str], Path]) -> None:
    one = case("t5_success_at_2_d0.5")
    assert [call["success"] for call in one.theirs["episodes"][0]["env_calls"]][1] == [True]
    assert len(one.theirs["episodes"][0]["env_calls"]) == 5
    verdicts = iter([False, True])
    episode = one.inputs["episodes"][0]
    problem = Problem("q", "as ids", "none", metadata={PROMPT_IDS: episode["prompt_token_ids"]})
    env = ReturnsWrapper(
        gym.make(
            "MathMultiTurnUntilCorrect-v0",
            problems=problem,
            tokenizer=tokenizers_beside(one.path)("chatml"),
            verifier=lambda response, gold: next(verdicts),
        )
    )
    env.reset(seed=0)
    for turn in episode["turns"][:2]:
        *_, terminated, truncated, info = env.step(np.array(turn["completion_ids"]))
    assert terminated
    assert not truncated
    assert info["trajectory"].num_turns == 2


def test_packed_tokens_grow_with_the_square_of_turns(case: Callable[[str], Case]) -> None:
    one = case("t5_defaults_all_wrong")
    (lengths,) = one.theirs["episodes"][0]["samples"][0]["seqlens"]["packed_input_ids"]
    (episode,) = one.episodes()
    linear = pack([episode], layout="episode")
    assert sum(lengths) > 2.5 * lengths[-1]
    assert linear.num_tokens == lengths[-1] == len(episode.ids)
    assert int(linear.loss_mask.sum()) == sum(
        len(turn["completion_ids"]) for turn in one.inputs["episodes"][0]["turns"]
    )
    assert pack([episode], layout="turns").num_tokens == sum(lengths)


def test_answer_lost_where_the_prompt_recurs(case: Callable[[str], Case]) -> None:
    one = case("t2_boxed_prompt_repeated_answer_lost")
    assert one.answers(one.theirs)[0] == " Let me restate it. "
    assert one.theirs["episodes"][0]["env_calls"][0]["success"] == [False]
    assert one.answers(one.ours)[0].endswith("The answer is \\boxed{7}.")
    assert one.ours["episodes"][0]["env_calls"][0]["success"] == [True]


def test_last_answer_cut_where_the_prompt_recurs(case: Callable[[str], Case]) -> None:
    one = case("t2_boxed_prompt_repeated_late")
    assert one.theirs["episodes"][0]["env_calls"][0]["success"] == [True]  # the answer that was taken back
    assert one.answers(one.ours)[0].endswith("It is \\boxed{8}.")
    assert one.ours["episodes"][0]["env_calls"][0]["success"] == [False]


def test_short_prompt_cuts_the_answer(case: Callable[[str], Case]) -> None:
    one = case("t1_short_prompt_substring")
    assert one.answers(one.theirs) == [" + 10: the answer is \\boxed{1"]
    assert one.answers(one.ours) == [" + 10: the answer is \\boxed{12}."]


@pytest.mark.parametrize("name", ["t2_utf8_prompt_boundary_IndexError", "real_qwen2.5_utf8_IndexError"])
def test_split_character_loses_the_trajectory(name: str, case: Callable[[str], Case]) -> None:
    one = case(name)
    assert one.theirs["episodes"][0]["exception"]["type"] == "IndexError"
    assert one.ours["episodes"][0]["exception"] is None
    assert len(one.ours["episodes"][0]["samples"]) == 1
    assert len(one.answers(one.ours)) == 2


def test_text_after_the_end_of_turn_is_an_answer(case: Callable[[str], Case]) -> None:
    one = case("t2_special_tokens_inside")
    assert one.answers(one.theirs)[0] == "The answer is \\boxed{3}"
    assert one.answers(one.ours)[0] == "The ans<|im_start|>wer is "


def test_success_is_always_true_in_the_logs(case: Callable[[str], Case]) -> None:
    one = case("t2_00_d1.0")
    assert [call["success"] for call in one.theirs["episodes"][0]["env_calls"]] == [[False], [False]]
    assert [record["success"] for record in one.records(one.theirs)] == [True, True]
    assert [record["success"] for record in one.records(one.ours)] == [False, False]


def test_answer_length_counts_the_history(case: Callable[[str], Case]) -> None:
    one = case("t2_01_d0.9")
    said = [len(turn["completion_ids"]) for turn in one.inputs["episodes"][0]["turns"]]
    assert [record["answer_len"] for record in one.records(one.theirs)] == [said[0], said[0] + 20 + said[1]]
    assert [record["answer_len"] for record in one.records(one.ours)] == said


def test_logged_reward_is_not_what_is_trained_on(case: Callable[[str], Case]) -> None:
    one = case("t2_01_d0.9")
    trained = one.theirs["episodes"][0]["samples"][0]["data"]["rewards"]
    logged = re.findall(r"reward is (\S+),", one.theirs["log_files"]["0/q8@idx:8-0.txt"])
    assert [float(reward) for reward in logged] == [-1.0, 1.0]
    assert trained[0] == pytest.approx(-0.1)
    records = one.records(one.ours)
    assert [record["reward"] for record in records] == [-1.0, 1.0]
    assert [np.float32(record["return"]) for record in records] == [np.float32(value) for value in trained]


def test_logs_show_the_last_prompt_for_every_turn(case: Callable[[str], Case]) -> None:
    one = case("t2_01_d0.9")
    theirs = one.theirs["log_files"]["0/q8@idx:8-0.txt"].split("idx: ")[1:]
    assert "Unfortunately" in theirs[0]
    ours = one.ours["log_files"]["0/q8@idx:8-0.txt"].split("run ")[1:]
    assert "Unfortunately" not in ours[0]
    assert "Unfortunately" in ours[1]


def test_logs_hold_terminal_commands(case: Callable[[str], Case]) -> None:
    one = case("t2_01_d0.9")
    assert "\x1b[33m" in one.theirs["log_files"]["0/q8@idx:8-0.txt"]
    assert "\x12$" in one.answers(one.ours)[1]
    ours = one.ours["log_files"]["0/q8@idx:8-0.txt"]
    assert "\\x12$" in ours
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", ours)


def test_query_ids_leave_the_folder(case: Callable[[str], Case]) -> None:
    one = case("t2_qid_forms")
    assert "up.txt" in one.theirs["log_files"]  # beside the version folders, not in one
    assert sorted(one.ours["log_files"]) == sorted(
        f"0/{stem}.{kind}" for stem in ("%2E.%2Fup", "7", "math%2F17@idx:3-0") for kind in ("txt", "jsonl")
    )
    assert one.ours["files_outside_log_root"] == []


def test_epochs_cannot_be_told_apart(case: Callable[[str], Case]) -> None:
    one = case("t2_append_two_epochs")
    theirs = one.theirs["log_files"]["1/q9@idx:9-0.txt"]
    assert len(re.findall(r"^idx: 1 / 2", theirs, re.MULTILINE)) == 2
    records = one.records(one.ours)
    assert [(record["attempt"], record["turn"]) for record in records] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert len({record["run"] for record in records}) == 1


def test_logs_are_written_before_validation(case: Callable[[str], Case]) -> None:
    one = case("t2_logprob_length_ValidationError")
    assert one.theirs["episodes"][0]["exception"]["type"] == "ValidationError"
    assert len(one.records(one.theirs)) == 2
    error = one.ours["episodes"][0]["exception"]
    assert error["type"] == "ReplyError"
    assert "turn 1: logprobs[0] must have 73 entries, got shape (74,)" in error["message"]
    assert one.ours["log_files"] == {}


@pytest.mark.parametrize(
    ("name", "bos"), [("t2_llama3_bos", "<|begin_of_text|>"), ("real_llama3_t4_boxed", "<|begin_of_text|>")]
)
def test_doubled_bos(name: str, bos: str, case: Callable[[str], Case]) -> None:
    one = case(name)
    turns = range(1, len(one.contexts(one.theirs)) + 1)
    assert [text.count(bos) for text in one.contexts(one.theirs)] == [2 * turn - 1 for turn in turns]
    assert [text.count(bos) for text in one.contexts(one.ours)] == [1 for _ in turns]


@pytest.mark.parametrize("name", ["t5_qwen_default_system", "real_qwen2.5_sys_t5_random"])
def test_reinjected_system_prompt(name: str, case: Callable[[str], Case]) -> None:
    one = case(name)
    assert [text.count("<|im_start|>system\nYou are") for text in one.contexts(one.theirs)] == [1, 2, 3, 4, 5]
    assert [text.count("<|im_start|>system\nYou are") for text in one.contexts(one.ours)] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["t2_truncated_first", "t2_stop_on_pad", "t4_partial_rollout_chunks", "t5_empty_mid"])
def test_unclosed_turns(name: str, case: Callable[[str], Case]) -> None:
    one = case(name)
    opened = "<|im_start|>assistant"
    for theirs, ours in zip(one.contexts(one.theirs), one.contexts(one.ours), strict=True):
        *closed, last = ours.split("<|im_start|>")
        assert all(part.endswith("<|im_end|>\n") for part in closed[1:]), ours
        assert last == "assistant\n"
        assert theirs.count(opened) == ours.count(opened)
    *said, _ = one.contexts(one.theirs)[-1].split("<|im_start|>")
    assert not all(part.endswith("<|im_end|>\n") for part in said[1:])


@pytest.mark.parametrize("name", ["t2_llama3_bos", "t2_llama2_spm", "real_mistral-v3_t4_boxed", "t2_01_d0.9"])
def test_history_is_not_the_templates(name: str, case: Callable[[str], Case]) -> None:
    """What the model sees must be what its template writes, so that it was trained on such text."""
    one = case(name)
    messages = list(one.inputs["episodes"][0]["prompt_messages"])
    for turn, text in enumerate(one.contexts(one.ours)):
        if turn:
            right = one.ours["episodes"][0]["env_calls"][turn - 1]["success"][0]
            said = (
                "Congratulations! You are correct!" if right else "Unfortunately your answer is wrong. Let's try again."
            )
            messages += [
                {"role": "assistant", "content": one.answers(one.ours)[turn - 1]},
                {"role": "user", "content": said},
            ]
        tokenizer = one.dialogue.tokenizer
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        # Encoded and decoded, because a SentencePiece decoder writes a space after "<s>" that is not there.
        rendered = one.dialogue.decode(np.array(tokenizer(rendered, add_special_tokens=False)["input_ids"]))
        assert text == rendered
        theirs = one.contexts(one.theirs)[turn]
        assert (theirs == rendered) == (not turn or name == "t2_01_d0.9")  # right where the template is plain ChatML


def test_zero_turns_are_accepted(golden: Callable[[str], dict[str, Any]], golden_path: Callable[[str], Path]) -> None:
    recording = golden("t0_zero_turns")
    assert recording["outputs"]["episodes"][0]["samples"][0]["data"]["packed_input_ids"] == []
    with pytest.raises(mathturn_gym.MathTurnError, match="num_turns must be an integer >= 1, got 0"):
        play(recording["inputs"], tokenizers_beside(golden_path("t0_zero_turns")), [{"env_calls": []}], compat=False)


def test_partial_scores_are_congratulated() -> None:
    one = own("own_partial_score")
    assert "Congratulations" in one.contexts(one.theirs)[1]
    assert "Congratulations" not in one.contexts(one.ours)[1]
    assert "Unfortunately" in one.contexts(one.ours)[1]
    assert one.ours["episodes"][0]["samples"][0]["data"]["rewards"] == [-3.0, -2.0]  # it is worth as much as before


def test_an_exception_in_verification_loses_the_trajectory(caplog: pytest.LogCaptureFixture) -> None:
    one = own("own_env_raises")
    assert one.theirs["episodes"][0]["samples"] is None
    assert one.ours["episodes"][0]["exception"] is None
    assert one.ours["episodes"][0]["samples"][0]["data"]["rewards"] == [-2.0, -1.0]
    assert [record["error"] for record in one.records(one.ours)] == ["", "OSError: disk full"]
    assert "the verification of query 'own/1@idx:0-0' raised" in caplog.text


def test_what_the_environment_shows_has_none_of_it(case: Callable[[str], Case]) -> None:
    """The default feedback gives the repaired agent's ids; only "areal-v0.3" gives the original's."""
    one = case("t2_truncated_first")
    problem = Problem("q", one.inputs["episodes"][0]["prompt_messages"][0]["content"], "none")
    verdicts = iter([False, True])
    env = gym.make(
        "MathMultiTurn-v0",
        problems=problem,
        num_turns=2,
        tokenizer=tokenizers_beside(one.path)("chatml"),
        verifier=lambda response, gold: next(verdicts),
    )
    first, _ = env.reset(seed=0)
    turn = one.inputs["episodes"][0]["turns"][0]
    completion = Completion(np.array(turn["completion_ids"]), truncated=True)
    second, *_ = env.step(completion.ids)
    seen = [one_obs["token_ids"] for one_obs in one.ours["episodes"][0]["obs"]]
    assert [first.tolist(), second.tolist()] == seen
    assert replay_env(json.loads(one.path.read_text()), tokenizers_beside(one.path)) == []


def test_every_row_of_the_table_names_a_test_that_exists() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d+ \|", line)]
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert len(rows) >= 20
    assert all(len(tests) == 1 for tests in named)
    assert all(tests[0] in globals() for tests in named)
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, len(rows) + 1))
