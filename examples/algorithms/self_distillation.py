"""Self-distillation from feedback: the policy that has read the feedback teaches the one that has not (SDPO, arXiv:2601.20802).

    mathturn train guess8 --algorithm self_distillation:SelfDistillation       # with this folder on PYTHONPATH

After a turn the policy is shown its context, its answer and the feedback, and scores the *same* answer again. A token that
it now finds more likely gains, one that it finds less likely loses: the advantage is the teacher's log-prob less the log-prob
at which the token was sampled. So feedback gives a signal for every token, also where no answer is right. The last turn of
an episode has no feedback to learn from; it keeps its return against the batch's mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mathturn_gym.baselines.algorithms import Algorithm, Clipping, Learner, Part, State

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.episodes.packing.batch import PackedBatch
    from mathturn_gym.types import Episode


class Teacher(State):
    """Holds the trainer, whose policy is its own teacher."""

    def __init__(self, trainer: Learner) -> None:
        self.trainer = trainer


@dataclass(frozen=True, kw_only=True)
class SelfDistillation(Clipping, Algorithm[Teacher]):
    """Self-distillation from feedback; see the module.

    Args:
        discount: Per turn, in [0, 1]; of the last turn's return.
        largest: Advantages are held within this many nats.
    """

    discount: float = 1.0
    largest: float = 5.0

    def begin(self, trainer: Learner) -> Teacher:
        """Returns a state that holds the trainer."""
        return Teacher(trainer)

    def credit(self, episodes: Sequence[Episode], state: Teacher) -> PackedBatch:
        """The teacher's log-prob of each token less the sampler's."""
        batch = state.trainer.pack(episodes)
        found = np.zeros(tuple(batch.input_ids.shape))
        again, places = [], []
        for row, episode in enumerate(episodes):
            spans = episode.turn_spans.tolist()
            for (start, end), (following, _) in pairwise(spans):
                again.append(_answered_again(episode, start, end, following))
                places.append((row, start, end, following))
        if again:
            scored = state.trainer.policy_logprobs(state.trainer.pack(again)).cpu().numpy()
            for line, (row, start, end, following) in zip(scored, places, strict=True):
                gap = line[following : following + end - start] - episodes[row].logprobs[start:end]
                found[row, start:end] = gap.clip(-self.largest, self.largest)
        last = [float(episode.rewards[-1]) if episode.num_turns else 0.0 for episode in episodes]
        for row, (episode, reward) in enumerate(zip(episodes, last, strict=True)):
            if episode.num_turns:
                start, end = episode.turn_spans[-1].tolist()
                found[row, start:end] = reward - float(np.mean(last))
        return state.trainer.with_token_advantages(batch, found)

    def loss(self, logprobs: torch.Tensor, part: Part, state: Teacher) -> PolicyLoss:
        """The clipped objective, a mean over tokens."""
        return self.clipped(part, logprobs)


def _answered_again(episode: Episode, start: int, end: int, following: int) -> Episode:
    """The episode up to the feedback on a turn, and that turn's answer once more: the only one that is scored."""
    ids = np.concatenate([episode.ids[:following], episode.ids[start:end]])
    size, mask = len(ids), np.zeros(len(ids), np.bool_)
    mask[following:] = True
    one = slice(0, 1)
    return replace(
        episode,
        ids=ids,
        loss_mask=mask,
        logprobs=np.zeros(size, np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        turn_spans=np.array([[following, size]]),
        rewards=episode.rewards[one],
        verdicts=episode.verdicts[one],
        feedbacks=episode.feedbacks[one],
        turn_truncated=episode.turn_truncated[one],
        responses=episode.responses[one],
        budgets=episode.budgets[one],
        returns=None,
        token_values={},
        support=None,
    )
