"""The protocol and formats of AReaL's `MathMultiTurnAgent` (v0.3 to v0.5), reproduced and repaired.

    obs_queue ◄─ (qid, token_ids, gconfig) ─ MathMultiTurnAgent ─ env.step((qid, answers)) ─► success
    act_queue ─► BundledGenerationOutputs ─►        │
                                                    └─► [SequenceSample], logs

`compat=True` gives what the original gave, to the bit; `compat=False` the same interface with its defects fixed
(`docs/areal.md` has the list). `AgentWorker` runs many agents at once against any policy of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mathturn_gym.base.lazy import lazy_exports

if TYPE_CHECKING:
    from mathturn_gym.neighbors.areal.agent import MathMultiTurnAgent
    from mathturn_gym.neighbors.areal.environment import ArealProblems, MathCodeSingleStepEnv
    from mathturn_gym.neighbors.areal.episodes import to_episode, to_sequence_sample
    from mathturn_gym.neighbors.areal.protocol import (
        BundledGenerationOutputs,
        GenerationHyperparameters,
        ReplyError,
        make_agent,
        make_env,
        register_agent,
        register_environment,
    )
    from mathturn_gym.neighbors.areal.sample import SequenceSample, ValidationError, prompt_sample
    from mathturn_gym.neighbors.areal.worker import AgentWorker, Job, JobResult

__all__ = [
    "AgentWorker",
    "ArealProblems",
    "BundledGenerationOutputs",
    "GenerationHyperparameters",
    "Job",
    "JobResult",
    "MathCodeSingleStepEnv",
    "MathMultiTurnAgent",
    "ReplyError",
    "SequenceSample",
    "ValidationError",
    "make_agent",
    "make_env",
    "prompt_sample",
    "register_agent",
    "register_environment",
    "to_episode",
    "to_sequence_sample",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "agent": "MathMultiTurnAgent",
            "environment": "ArealProblems MathCodeSingleStepEnv",
            "episodes": "to_episode to_sequence_sample",
            "protocol": "BundledGenerationOutputs GenerationHyperparameters ReplyError"
            " make_agent make_env register_agent register_environment",
            "sample": "SequenceSample ValidationError prompt_sample",
            "worker": "AgentWorker Job JobResult",
        },
    )
