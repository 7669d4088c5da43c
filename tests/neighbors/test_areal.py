"""AReaL's workflow on this environment, with an engine that follows a script."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
import torch

from mathturn_gym.errors import InvalidValueError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("areal", reason="AReaL is not installed: `make test-integrations` runs this")
    from areal.api.cli_args import GenerationHyperparameters
    from areal.api.io_struct import ModelResponse
    from areal.api.workflow_api import RolloutWorkflow

    from mathturn_gym.neighbors.areal.workflow import MathTurnWorkflow, dataset_rows

pytestmark = pytest.mark.filterwarnings("ignore")


class Engine:
    """AReaL's `InferenceEngine`, as far as a workflow calls it; its weights change in the middle of the second answer."""

    def __init__(self, script: Any) -> None:
        self.script, self.asked = script, []  # type: ignore[var-annotated]

    async def agenerate(self, request: Any) -> ModelResponse:
        await asyncio.sleep(0)
        self.asked.append(request)
        said = self.script.completion(request.input_ids, request.gconfig.max_new_tokens)
        first = len(self.asked)
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=said.ids.tolist(),
            output_logprobs=said.logprobs.tolist(),
            output_versions=[first] * 5 + [first + 1] * (len(said) - 5),
            stop_reason="length" if said.truncated else "stop",
        )


def test_a_row_becomes_an_episode(script: Any) -> None:
    workflow = MathTurnWorkflow(
        GenerationHyperparameters(temperature=0.7), script.tokenizer, discount=0.5, **script.settings
    )
    assert isinstance(workflow, RolloutWorkflow)
    engine = Engine(script)
    out = asyncio.run(workflow.arun_episode(engine, dataset_rows([script.problem])[0]))
    expected = script.episode()
    end = int(expected.turn_spans[-1, 1])
    assert out["input_ids"].tolist() == [expected.ids[:end].tolist()]
    assert out["loss_mask"].tolist() == [expected.loss_mask[:end].astype(int).tolist()]
    assert torch.allclose(out["logprobs"][0], torch.from_numpy(expected.logprobs[:end]))
    assert out["rewards"].tolist() == [-1.25]
    assert {name: tensor.dtype for name, tensor in out.items()}["input_ids"] == torch.int32
    for k, (start, stop) in enumerate(expected.turn_spans.tolist()):
        assert out["versions"][0, start:stop].tolist() == [k + 1] * 5 + [k + 2] * (stop - start - 5)
        assert out["turn_ids"][0, start:stop].tolist() == [k] * (stop - start)
    assert len({request.rid for request in engine.asked}) == 1
    assert {(request.gconfig.max_new_tokens, request.gconfig.temperature) for request in engine.asked} == {(24, 0.7)}


def test_a_row_without_a_problem_is_named(script: Any) -> None:
    workflow = MathTurnWorkflow(GenerationHyperparameters(), script.tokenizer)
    with pytest.raises(InvalidValueError, match="a row's problem must be"):
        asyncio.run(workflow.arun_episode(Engine(script), {"messages": []}))
