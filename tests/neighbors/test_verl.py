"""verl's own agent loop on this environment, with a server that follows a script."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidValueError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verl", reason="verl is not installed: `make test-integrations` runs this")
    import verl.experimental.agent_loop.agent_loop as agent_loop
    from omegaconf import OmegaConf
    from verl.workers.rollout.replica import TokenOutput

    from mathturn_gym.neighbors.verl import AGENT_NAME, MathTurnLoop, dataset_rows, main

pytestmark = pytest.mark.filterwarnings("ignore")


class Server:
    """verl's `LLMServerClient`, as far as a loop calls it."""

    def __init__(self, script: Any, logprobs: bool = True) -> None:
        self.script, self.logprobs, self.asked = script, logprobs, []  # type: ignore[var-annotated]

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        self.asked.append((request_id, prompt_ids, sampling_params))
        said = self.script.completion(prompt_ids, sampling_params["max_tokens"])
        return TokenOutput(
            token_ids=said.ids.tolist(),
            log_probs=said.logprobs.tolist() if self.logprobs else None,
            stop_reason="completed",
        )


def loop(server: Server, response_length: int = 512, **keywords: Any) -> MathTurnLoop:
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"prompt_length": 64, "response_length": response_length}},
            "data": {},
        }
    )
    return MathTurnLoop(
        trainer_config=agent_loop.DictConfigWrap(config),
        server_manager=server,
        tokenizer=server.script.tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=agent_loop.DictConfigWrap(config.data),
        hf_model_type="qwen2",
        tools=agent_loop.ToolListWrap([]),
        **{**server.script.settings, **keywords},
    )


def row(script: Any) -> dict[str, Any]:
    (found,) = dataset_rows([script.problem])
    return {**found, "raw_prompt": np.array(found["prompt"], dtype=object)}


def test_a_row_becomes_an_episode(script: Any) -> None:
    server = Server(script)
    out = asyncio.run(loop(server, discount=0.5).run({"temperature": 1.0}, **row(script)))
    expected = script.episode(max_context_tokens=512)
    end = int(expected.turn_spans[-1, 1])
    assert out.prompt_ids == expected.prompt_ids.tolist()
    assert out.prompt_ids + out.response_ids == expected.ids[:end].tolist()
    assert out.response_mask == expected.loss_mask[expected.prompt_length : end].astype(int).tolist()
    assert np.allclose(out.response_logprobs, expected.logprobs[expected.prompt_length : end])
    assert out.reward_score == -1.25
    assert out.extra_fields == {"turn_scores": [-1.0, -1.0, 1.0], "tool_rewards": []}
    assert out.num_turns == 6
    requests = {request for request, *_ in server.asked}
    assert len(requests) == 1  # one server keeps the prefix
    assert [params for *_, params in server.asked] == [{"temperature": 1.0, "max_tokens": 24}] * 3


def test_verls_own_postprocessing_takes_it(script: Any) -> None:
    """`AgentLoopOutput.as_dict`, which makes the tensors that are trained on."""
    out = asyncio.run(loop(Server(script)).run({}, **row(script)))
    tensors = out.as_dict()
    assert tensors["responses"].shape == tensors["response_mask"].shape == tensors["rollout_log_probs"].shape
    assert tensors["rm_scores"].tolist()[-1] == pytest.approx(-1.0)


def test_a_server_without_log_probs(script: Any) -> None:
    out = asyncio.run(loop(Server(script, logprobs=False)).run({}, **row(script)))
    assert out.response_logprobs is None


def test_verl_finds_the_loop_by_the_rows_agent_name(script: Any) -> None:
    target = agent_loop._agent_loop_registry[row(script)["agent_name"]]["_target_"]
    assert row(script)["agent_name"] == AGENT_NAME
    assert target == "mathturn_gym.neighbors.verl.MathTurnLoop"


def test_loops_share_their_environments(script: Any) -> None:
    server = Server(script)
    assert loop(server)._player is loop(server)._player
    assert loop(server)._player is not loop(server, num_turns=2)._player


def test_mistakes_are_named(script: Any) -> None:
    server = Server(script)
    with pytest.raises(
        InvalidValueError, match="max_context_tokens must be at most verl's response_length=512, got 600"
    ):
        loop(server, max_context_tokens=600)
    with pytest.raises(InvalidValueError, match="a row's problem must be"):
        asyncio.run(loop(server).run({}, raw_prompt=[], extra_info={}))


def test_the_data_set_is_a_parquet_file(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    main(["lins:test", "--size", "5", "--out", str(tmp_path / "test.parquet")])
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    assert len({one["extra_info"]["problem_id"] for one in rows}) == 5
    assert rows[0]["prompt"][0]["content"].startswith("Solve")
