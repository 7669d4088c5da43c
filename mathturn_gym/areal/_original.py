"""How the original agent collected a trajectory (`compat=True`): to the bit, defects included.

Nothing is checked before the end, as nothing was; `docs/areal.md` has the list of what can go wrong, and
`mathturn_gym.areal._repaired` what is done about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mathturn_gym.areal._trajectory import Trajectory
from mathturn_gym.areal.dialogue import (
    RIGHT_TEXT,
    WRONG_TEXT,
    answers_after_prompt,
    decode_batch,
    spliced_feedback_ids,
)
from mathturn_gym.areal.logs import write_original_logs
from mathturn_gym.returns import discounted_sums
from mathturn_gym.rewards import affine_reward

if TYPE_CHECKING:
    from mathturn_gym.areal.agent import MathMultiTurnAgent
    from mathturn_gym.areal.protocol import EnvironmentService, Queue
    from mathturn_gym.areal.sample import SequenceSample

__all__ = ["collect_original"]


async def collect_original(
    agent: MathMultiTurnAgent, prompt: Any, env: EnvironmentService, obs_queue: Queue, act_queue: Queue
) -> list[SequenceSample]:
    """Plays all turns of one query.

    Raises:
        AssertionError: the prompt is a batch of several, or of none.
        IndexError: the answer is not found in the sequence's text.
        ValidationError: the replies do not fit each other (the logs are written by then).
        Exception: whatever the environment raises.
    """
    if prompt.bs != 1:
        raise AssertionError  # without a message, as it was; compat=False has one
    tokenizer = agent.tokenizer
    prompt_ids: list[int] = prompt.data["packed_prompts"].cpu().numpy().tolist()
    qid = prompt.ids[0]
    trajectory = Trajectory(qid, prompt_ids, int(agent.clock() * 1000))
    prompt_text = decode_batch(tokenizer, [prompt_ids])[0]
    all_answers: list[str] = []
    all_success: list[Any] = []
    rewards: list[float] = []
    context = prompt_ids
    for _ in range(agent.num_turns):
        await obs_queue.put((qid, context, agent.gconfig))
        reply = await act_queue.get()
        answers = answers_after_prompt(tokenizer, reply.seqs, reply.prompt_ids)
        prompt_text = decode_batch(tokenizer, [reply.prompt_ids])[0]
        _, success, *_ = await env.step((qid, answers))
        worth = [affine_reward(float(score), agent.reward_bias, agent.reward_scaling) for score in success]
        all_success.extend(success)
        all_answers.extend(answers)
        trajectory.add(reply)
        rewards.append(worth[0])
        # Any score that is not 0 is congratulated; and the last turn's feedback is made, though nobody sees it.
        feedback = spliced_feedback_ids(tokenizer, RIGHT_TEXT if success[0] else WRONG_TEXT)
        context = [*reply.seqs[0], *feedback]
    if agent.answer_save_path is not None:
        write_original_logs(
            agent.answer_save_path,
            qid=str(qid),
            prompt=prompt_text,
            prompt_len=len(prompt_ids),
            answers=all_answers,
            seqlens=trajectory.seqlens,
            rewards=rewards,
            success=all_success,
            version_starts=trajectory.version_start,
            version_ends=trajectory.version_end,
        )
    returns = discounted_sums(np.array([rewards], np.float64), agent.turn_level_discount)[0].tolist()
    task_ids = prompt.data["task_ids"] if "task_ids" in prompt.keys else None
    return [trajectory.sample(returns, agent.num_turns, task_ids)]
