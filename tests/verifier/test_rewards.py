"""The verifier as other trainers call it: their calling conventions, and TRL itself."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError, MissingDependencyError
from mathturn_gym.verifier import rewards
from mathturn_gym.verifier.rewards import MathReward, accepted_answers, response_text

SYMBOLIC = "\\sum_{k=1}^{3} k"


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        ("\\frac{1}{2}", ("\\frac{1}{2}",)),
        (" 42 ", ("42",)),
        ("She has 6*7=42 eggs.\n#### 42", ("42",)),
        ("Thus $x=2$ and so $\\boxed{2}$ is it.", ("2",)),
        ("The answer is 4 or 5", ("The answer is 4 or 5",)),  # said, not marked: somebody's text answer
        (7, ("7",)),
        (0.5, ("0.5",)),
        (np.int64(7), ("7",)),
        (["7", "\\boxed{8}"], ("7", "8")),
        (np.array(["7", "8"]), ("7", "8")),
    ],
)
def test_gold_answers_as_data_sets_give_them(gold: Any, answers: tuple[str, ...]) -> None:
    assert accepted_answers(gold) == answers


@pytest.mark.parametrize("gold", [None, "", " ", [], ["7", ""], True, {"a": 1}, b"7", "\\boxed{}"])
def test_what_is_no_gold_answer_raises(gold: Any) -> None:
    if gold == "\\boxed{}":
        # An empty box marks nothing: the text stands for itself, and no response equals it by chance.
        assert accepted_answers(gold) == ("\\boxed{}",)
        return
    with pytest.raises(InvalidValueError, match="gold answer"):
        accepted_answers(gold)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("7", "7"),
        ([{"role": "assistant", "content": "7"}], "7"),
        ([{"role": "assistant", "content": "6"}, {"role": "tool", "content": "8"}, {"role": "assistant", "content": "7"}], "7"),
        ([{"role": "assistant", "content": "7"}, {"role": "user", "content": "8"}], "7"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], ""),
        ([{"role": "assistant", "content": [{"type": "text", "text": "se"}, {"type": "text", "text": "ven"}]}], "seven"),
        ([], ""),
    ],
)  # fmt: skip
def test_the_text_of_a_response(response: Any, text: str) -> None:
    assert response_text(response) == text


def test_what_is_no_response_raises() -> None:
    with pytest.raises(InvalidValueError, match="a response must be"):
        response_text(7)


def test_trl_rewards_completions_in_their_order_and_tells_what_it_found() -> None:
    extra: dict[str, list[Any]] = {}
    metrics: dict[str, float] = {}
    found = rewards.trl_reward(
        prompts=["?"] * 4,
        completions=[
            "\\boxed{2}",
            [{"role": "assistant", "content": f"\\boxed{{{SYMBOLIC}}}"}],
            "no idea",
            "\\boxed{1}",
        ],
        completion_ids=[[1]] * 4,
        solution=["1+1=\\boxed{2}", "6", "1", None],
        trainer_state=None,
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert found == [1.0, 0.0, 0.0, None]
    assert extra["answer"] == ["2", SYMBOLIC, None, None]
    assert extra["verdict"][1:] == ["wrong: not a literal number", "no_answer: no answer found", None]
    assert metrics == {"verifier/undecided": 0.0}
    assert MathReward(form="equivalent").trl_reward(completions=[f"\\boxed{{{SYMBOLIC}}}"], answer=["6"]) == [1.0]


def test_a_missing_column_is_named() -> None:
    with pytest.raises(InvalidValueError, match="the row has problem, and none of them is gold, answer"):
        rewards.trl_reward(completions=["\\boxed{2}"], problem=["1+1"])
    assert MathReward(gold="problem").trl_reward(completions=["\\boxed{2}"], problem=["2"]) == [1.0]
    with pytest.raises(InvalidValueError, match="extract"):
        MathReward(extract="anything")  # type: ignore[arg-type]


def test_trl_trains_on_it(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl = pytest.importorskip("trl", reason="trl is not installed: pip install '.[trl]'")
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from mathturn_gym.policies import BUILTIN_PATH

        seen: list[list[float | None]] = []

        class Recorded(MathReward):
            def trl_reward(self, *args: Any, **columns: Any) -> list[float | None]:
                assert threading.current_thread() is threading.main_thread() or "log_extra" in columns
                seen.append(super().trl_reward(*args, **columns))
                return seen[-1]

        args = trl.GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
            save_strategy="no", disable_tqdm=True, num_generations=2, per_device_train_batch_size=4, max_steps=1,
            logging_steps=1, max_completion_length=4,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(BUILTIN_PATH),
            args=args,
            reward_funcs=[rewards.trl_reward, Recorded(wrong=-1.0).trl_reward],
            train_dataset=Dataset.from_dict({"prompt": ["1+1?", "2+2?"], "answer": ["2", "4"]}),
            processing_class=AutoTokenizer.from_pretrained(BUILTIN_PATH),
        )
        trainer.train()
    assert len(seen) == 1
    assert len(seen[0]) == 4
    assert set(seen[0]) <= {1.0, -1.0}
    assert any("rewards/trl_reward/mean" in row for row in trainer.state.log_history)
    assert any("verifier/undecided" in key for row in trainer.state.log_history for key in row)


def test_verl_gets_a_score_and_what_it_logs() -> None:
    found = rewards.verl_reward(
        data_source="x", solution_str="So \\boxed{7}.", ground_truth=np.array(["7", "8"]), extra_info={}, more=1
    )
    assert found == {"score": 1.0, "acc": 1.0, "undecided": 0.0, "pred": "7", "reason": "equal"}
    wrong = MathReward(wrong=-1.0).verl_reward("x", "It is 7 or so", "8")
    assert wrong.keys() == found.keys()
    assert (wrong["score"], wrong["acc"], wrong["pred"]) == (-1.0, 0.0, "")


def test_areal_calls_it_in_a_process_pool() -> None:
    row = {"answer": "6*7=42\n#### 42", "problem": "?"}
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(rewards.areal_reward, "?", "\\boxed{42}", [1], [2], **row).result() == 1.0
        assert pool.submit(rewards.areal_reward, "?", f"\\boxed{{{SYMBOLIC}}}", [1], [2], **row).result() == 0.0
        equivalent = MathReward(form="equivalent").areal_reward
        assert pool.submit(equivalent, "?", f"\\boxed{{{SYMBOLIC}}}", [1], [2], answer=6).result() == 1.0


def test_slime_awaits_it_for_a_sample_or_a_group() -> None:
    right, wrong = (SimpleNamespace(response=f"\\boxed{{{n}}}", label="7") for n in (7, 8))
    assert inspect.iscoroutinefunction(rewards.slime_reward)
    assert asyncio.run(rewards.slime_reward(None, right)) == 1.0
    assert asyncio.run(rewards.slime_reward(None, [right, wrong])) == [1.0, 0.0]


def test_verifiers_awaits_it_with_a_task_and_a_trace() -> None:
    task = SimpleNamespace(data=SimpleNamespace(answer="7", prompt="?"))
    assert asyncio.run(rewards.verifiers_reward(task, SimpleNamespace(last_reply="\\boxed{7}"))) == 1.0
    assert asyncio.run(rewards.verifiers_reward(task, SimpleNamespace(last_reply=""))) == 0.0


def test_lm_eval_takes_the_first_result() -> None:
    assert rewards.lm_eval_results({"answer": "#### 7"}, ["It is 7."]) == {"exact_match": 1.0}
    assert rewards.lm_eval_results({"target": "7"}, [["8", "7"]]) == {"exact_match": 0.0}


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, build in (("inspect_ai.scorer", rewards.inspect_scorer), ("lighteval.metrics.metrics_sample", rewards.lighteval_metric)):  # fmt: skip
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(MissingDependencyError, match="pip install"):
            build()


def test_rewards_with_the_same_settings_share_a_verifier_and_survive_pickle() -> None:
    one, other = MathReward(extract="boxed"), pickle.loads(pickle.dumps(MathReward(extract="boxed")))
    assert one == other
    assert one.verifier is other.verifier
    assert one.verifier is not MathReward().verifier


def test_threads_event_loops_and_forks_get_the_same_rewards() -> None:
    reward = MathReward(form="equivalent")
    responses = [f"\\boxed{{{SYMBOLIC} + {n}}}" for n in range(8)]
    golds = [str(6 + n - (n % 2)) for n in range(8)]
    wanted = reward.trl_reward(completions=responses, answer=golds)
    assert wanted == [1.0, 0.0] * 4
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda pair: reward.areal_reward(completions=pair[0], answer=pair[1]), zip(responses, golds, strict=True)))  # fmt: skip
    assert found == wanted

    async def together() -> list[float]:
        samples = [SimpleNamespace(response=r, label=g) for r, g in zip(responses, golds, strict=True)]
        return list(await asyncio.gather(*(reward.slime_reward(None, sample) for sample in samples)))  # type: ignore[arg-type]

    assert asyncio.run(together()) == wanted
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.write(write, bytes(int(value or 0) for value in reward.trl_reward(completions=responses, answer=golds)))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(os.read(read, 100)) == wanted
    os.close(read)
    os.close(write)
