"""ECHO: besides the policy gradient, the policy learns to predict what the environment says (arXiv:2605.24517).

    mathturn train guess8 --algorithm echo:ECHO       # with this folder on PYTHONPATH

The loss is GRPO's plus `weight` times the mean cross-entropy of the feedback's tokens, so that an episode without any right
answer teaches something too. Prompts are not predicted. The paper reads both terms off one forward pass; here the second
term makes a pass of its own, because the trainer computes only the logits that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mathturn_gym.baselines.algorithms import Advantages, Clipping, GroupAlgorithm, Learner, Part, State
from mathturn_gym.baselines.algorithms._credit import estimate

if TYPE_CHECKING:
    import torch

    from mathturn_gym.episodes.losses import PolicyLoss
    from mathturn_gym.types import Episode


class Model(State):
    """Holds the trainer, whose policy predicts the feedback."""

    def __init__(self, trainer: Learner) -> None:
        self.trainer = trainer


@dataclass(frozen=True, kw_only=True)
class ECHO(Clipping, GroupAlgorithm[Model]):
    """ECHO; see the module.

    Args:
        weight: Of the cross-entropy of feedback.
        discount: Per turn, in [0, 1]; of the episode's return.
    """

    weight: float = 0.1
    discount: float = 1.0
    entropy_weight: float = (
        1e-9  # with a term for entropy the trainer keeps episodes without advantages, which teach here
    )

    def begin(self, trainer: Learner) -> Model:
        """Returns a state that holds the trainer."""
        return Model(trainer)

    def credit(self, episodes: Sequence[Episode], state: Model) -> Advantages:
        """Whole-episode returns, normalized within their groups."""
        return estimate(episodes, "grpo", discount=self.discount)

    def loss(self, logprobs: torch.Tensor, part: Part, state: Model) -> PolicyLoss:
        """GRPO's loss, and the mean negative log-likelihood of feedback tokens."""
        from mathturn_gym.episodes.losses import trained_logprobs
        from mathturn_gym.policies import trained_logits

        found = self.clipped(part, logprobs, normalization="sequence")
        mask = part.batch.loss_mask
        # Between two actions: an action has been sampled before this place, and another one will be after it.
        said = (mask.cumsum(1) > 0) & (mask.flip(1).cumsum(1).flip(1) > 0) & ~mask
        if not bool(said.any()):
            return found
        feedback = part.batch.replace_tensors({"loss_mask": said})
        with state.trainer.autocast():
            logits = trained_logits(state.trainer.policy.model, feedback)
        likely, _ = trained_logprobs(logits.float(), feedback)
        share = len(part.batch.facts) / len(part.minibatch.facts)
        return replace(found, loss=found.loss - self.weight * share * likely[said].mean())
