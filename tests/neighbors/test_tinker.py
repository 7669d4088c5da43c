"""tinker-cookbook's own rollouts on this environment, without an API key."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from typing import Any

import numpy as np
import pytest

from mathturn_gym.errors import InvalidActionError, InvalidValueError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip(
        "tinker_cookbook", reason="tinker-cookbook is not installed: `make test-integrations` runs this"
    )
    from tinker_cookbook.rl.data_processing import trajectory_to_data
    from tinker_cookbook.rl.rollouts import do_group_rollout

    from mathturn_gym.neighbors.tinker import (
        MathTurnDataset,
        MathTurnDatasetBuilder,
        MathTurnGroupBuilder,
        PolicyCompleter,
    )

pytestmark = pytest.mark.filterwarnings("ignore")


def builder(script: Any, **changes: Any) -> MathTurnGroupBuilder:
    return MathTurnGroupBuilder(
        **{"problem": script.problem, "group_size": 3, "tokenizer": "builtin", "keywords": script.settings, **changes}
    )


def test_a_group_of_episodes_played_by_the_cookbook(script: Any) -> None:
    group = asyncio.run(do_group_rollout(builder(script), PolicyCompleter(script, 24)))
    expected = script.episode()
    assert group.get_total_rewards() == [-1.0, -1.0, -1.0]
    for trajectory in group.trajectories_G:
        assert [transition.reward for transition in trajectory.transitions] == [-1.0, -1.0, 1.0]
        for transition, turn in zip(trajectory.transitions, expected.turns, strict=True):
            assert transition.ob.to_ints() == turn.context.tolist()
            assert transition.ac.tokens == turn.ids.tolist()
        assert trajectory.final_ob.to_ints() == expected.ids.tolist()
        assert trajectory.stop_reason == "solved"


def test_an_episode_is_one_datum_with_the_mask_of_its_own_ids(script: Any) -> None:
    group = asyncio.run(do_group_rollout(builder(script, group_size=1), PolicyCompleter(script, 24)))
    expected = script.episode()
    (datum,) = trajectory_to_data(group.trajectories_G[0], 2.0)
    end = int(expected.turn_spans[-1, 1])
    assert datum.model_input.to_ints() == expected.ids[: end - 1].tolist()
    inputs = {name: np.array(values.data) for name, values in datum.loss_fn_inputs.items()}
    assert inputs["target_tokens"].tolist() == expected.ids[1:end].tolist()
    assert inputs["mask"].tolist() == expected.loss_mask[1:end].astype(float).tolist()
    assert np.allclose(inputs["logprobs"], expected.logprobs[1:end])
    assert inputs["advantages"].tolist() == (2.0 * expected.loss_mask[1:end]).tolist()


def test_builders_pickle_and_make_equal_environments(script: Any) -> None:
    first, second = builder(script), pickle.loads(pickle.dumps(builder(script)))
    assert first == second
    assert first.logging_tags() == ["mathturn", "sums"]

    async def prompts(one: MathTurnGroupBuilder) -> list[list[int]]:
        return [(await env.initial_observation())[0].to_ints() for env in await one.make_envs()]

    assert asyncio.run(prompts(first)) == asyncio.run(prompts(second))


def test_an_action_over_the_environments_budget_says_what_to_do(script: Any) -> None:
    async def play() -> None:
        (env,) = await builder(script, group_size=1).make_envs()
        await env.initial_observation()
        await env.step([50] * 25)

    with pytest.raises(InvalidActionError, match="length 25 is over max_length=24"):
        asyncio.run(play())


def test_data_sets_of_two_splits() -> None:
    make = MathTurnDatasetBuilder(
        problems="lins", tokenizer="builtin", size=20, group_size=4, batch_size=8, test_size=5
    )
    train, test = asyncio.run(make())
    assert isinstance(train, MathTurnDataset)
    assert isinstance(test, MathTurnDataset)
    assert (len(train), len(test), len(train.get_batch(1)), len(test.get_batch(0))) == (2, 1, 8, 5)
    shown = {builder.problem.prompt for batch in range(2) for builder in train.get_batch(batch)}
    assert len(shown) == 16
    assert not shown & {builder.problem.prompt for builder in test.get_batch(0)}
    with pytest.raises(InvalidValueError, match="batch_size is 8, of 5 problems"):
        asyncio.run(MathTurnDatasetBuilder(problems="lins", tokenizer="builtin", size=5, group_size=4, batch_size=8)())
