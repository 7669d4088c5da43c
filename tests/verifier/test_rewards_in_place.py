"""The rewards inside the packages that they are for, where these are installed: `make test-integrations`, `make test-inspect`.

TRL is in `test_rewards.py`. Each test here skips where its package is not to be had.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathturn_gym.cli._rescore import read_answers
from mathturn_gym.verifier import rewards

pytestmark = pytest.mark.filterwarnings("ignore")
MODULE = "mathturn_gym.verifier.rewards"
SYMBOLIC = "\\sum_{k=1}^{3} k"


def package(name: str) -> Any:
    """A package, or a skip that says how to run the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed: see the Makefile", exc_type=ImportError)


def test_verl_loads_it_by_path_and_its_reward_manager_scores_with_it() -> None:
    package("verl")
    import torch
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = OmegaConf.create(
        {"reward": {"custom_reward_function": {"path": f"pkg://{MODULE}", "name": "verl_reward", "reward_kwargs": {}}}}
    )
    function = get_custom_reward_fn(config)
    assert function is not None

    class Letters:
        def decode(self, ids: Any, skip_special_tokens: bool) -> str:
            return "".join(map(chr, ids.tolist()))

    async def scored() -> list[dict[str, Any]]:
        manager = NaiveRewardManager(config, Letters(), function)
        manager.loop = asyncio.get_running_loop()
        found = []
        for text in ("So \\boxed{7}.", "So \\boxed{8}."):
            ids = torch.tensor([list(map(ord, text))])
            data = DataProto(
                TensorDict({"responses": ids, "attention_mask": torch.ones_like(ids)}, batch_size=1),
                {
                    "data_source": np_object("x"),
                    "reward_model": np_object({"ground_truth": "7"}),
                    "extra_info": np_object({}),
                },
            )
            found.append(await manager.run_single(data))
        return found

    right, wrong = asyncio.run(scored())
    assert (right["reward_score"], wrong["reward_score"]) == (1.0, 0.0)
    assert right["reward_extra_info"]["pred"] == "7"
    assert wrong["reward_extra_info"]["acc"] == 0.0


def np_object(value: Any) -> Any:
    import numpy as np

    array = np.empty(1, object)
    array[0] = value
    return array


def test_it_works_in_a_ray_actor() -> None:
    package("ray.actor")
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}})  # fmt: skip
    try:
        judge = ray.remote(
            lambda response: rewards.MathReward(form="equivalent").areal_reward(completions=response, answer="6")
        )
        texts = ["\\boxed{6}", f"\\boxed{{{SYMBOLIC}}}", "\\boxed{7}"]
        assert ray.get([judge.remote(text) for text in texts]) == [1.0, 1.0, 0.0]
    finally:
        ray.shutdown()


def test_areal_calls_it_by_path_in_its_pool() -> None:
    package("areal")
    from areal.api.reward_api import AsyncRewardWrapper
    from areal.utils.dynamic_import import import_from_string

    wrapper = AsyncRewardWrapper(import_from_string(f"{MODULE}.areal_reward"), max_workers=1)

    async def calls() -> list[float]:
        return [await wrapper("?", text, [1], [2], answer="So 6+1\n#### 7") for text in ("\\boxed{7}", "\\boxed{8}")]

    assert asyncio.run(calls()) == [1.0, 0.0]


def test_verifiers_plugs_it_in_by_path() -> None:
    package("verifiers.v1")
    from verifiers.v1.utils.decorators import invoke
    from verifiers.v1.utils.loaders import load_plugged_fn

    configs = __import__("verifiers.v1.utils.loaders", fromlist=["RewardFunctionConfig"])
    config = configs.RewardFunctionConfig(fn=f"{MODULE}:verifiers_reward", weight=0.5)
    reward = load_plugged_fn("math", config, "reward")
    assert (reward.__name__, reward._vf_weight) == ("math", 0.5)
    task = SimpleNamespace(data=SimpleNamespace(answer="7"))
    found = [
        asyncio.run(invoke(reward, {"task": task, "trace": SimpleNamespace(last_reply=text), "runtime": None}))
        for text in ("\\boxed{7}", "\\boxed{8}")
    ]
    assert found == [1.0, 0.0]


def test_inspect_scores_an_evaluation_with_it(tmp_path: Path) -> None:
    package("inspect_ai")
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    said = ["So \\boxed{7}.", "It is 8.", "I cannot say."]
    # Without a usage it would fetch a tokenizer to count with.
    outputs = [ModelOutput.from_content("mock", text) for text in said]
    for output in outputs:
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=[Sample("?", target="7"), Sample("?", target=["9", "8"]), Sample("?", target="7")], scorer=rewards.inspect_scorer())  # fmt: skip
    (log,) = evaluate(task, model=model, log_dir=str(tmp_path), display="none", max_samples=1)
    assert log.status == "success", log.error
    scores = [sample.scores["mathturn"] for sample in log.samples]
    assert [score.value for score in scores] == ["C", "C", "N"]
    assert scores[0].answer == "7"
    assert scores[0].metadata["rule"] == "box"
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(2 / 3)
    answers, left_out = read_answers(Path(log.location))
    assert [one.recorded for one in answers] == [{"status": "right"}, {"status": "right"}, {"status": "wrong"}]
    assert (answers[1].gold, left_out) == (("9", "8"), [])


def test_lm_eval_processes_results_with_it(tmp_path: Path) -> None:
    package("lm_eval.api.task")
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.utils import import_function

    (tmp_path / "utils.py").write_text(f"from {MODULE} import lm_eval_results\n", encoding="utf-8")
    loader = SimpleNamespace(construct_scalar=lambda node: node)
    function = import_function(loader, "utils.lm_eval_results", tmp_path / "task.yaml")
    task = ConfigurableTask.__new__(ConfigurableTask)
    task._config = SimpleNamespace(process_results=function)
    assert ConfigurableTask.process_results(task, {"answer": "7"}, ["It is 7."]) == {"exact_match": 1.0}


def test_lighteval_computes_it() -> None:
    package("lighteval.metrics.metrics_sample")
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc

    metric = rewards.lighteval_metric()
    doc = Doc(query="?", choices=["7"], gold_index=0)
    found = metric.compute_sample(doc=doc, model_response=ModelResponse(text=["It is 7.", "It is 8."]))
    assert found == {"mathturn": 0.5}
    assert metric.get_corpus_aggregations()["mathturn"]([1.0, 0.5]) == 0.75
