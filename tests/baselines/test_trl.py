"""The same batch given to TRL and to ours: the same loss, and the same gradient of every parameter.

The old policy is the one that played the batch; the new one is a little away from it, so that ratios differ from 1 and
some are clipped. What has to be set for the objectives to be the same:

* GRPO, `loss_type="grpo"`: `normalization="sequence"`, which `GRPO.loss` has; nothing else.
* Dr. GRPO, `loss_type="dr_grpo"`: TRL divides by the rows times `max_completion_length`, ours by the rows times the
  most tokens that all answers of an episode can have: the two are set to the same number. `scale_rewards="none"` there.
* RLOO: TRL takes several steps per batch with the clipped ratio of an episode's whole probability, ours takes one, as
  published. Where the new policy is the old one, ours is compared as it is; a little away from it, ours with TRL's loss.
  TRL's has no `rollout_func` and no mask over feedback: a subclass gives it both.

Rewards are the environment's and a discount of 1 adds them up.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from mathturn_gym.baselines import (
    GRPO,
    RLOO,
    Algorithm,
    Budget,
    DrGRPO,
    EnvConfig,
    Evaluation,
    Optimization,
    PolicyConfig,
    RunConfig,
)
from mathturn_gym.baselines.algorithms import Part, State
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.episodes.losses import PolicyLoss
from mathturn_gym.types import Episode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever the libraries below TRL have to say while they are imported
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install '.[trl]'")
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install '.[trl]'")

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),  # it is announced as experimental
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing` is deprecated:FutureWarning"),  # TRL's names
]
EPISODES, GROUP, TURNS, MOST = 16, 4, 4, 8


def ours(algorithm: Algorithm[Any]) -> Trainer:
    config = RunConfig(
        env=EnvConfig(problems="lins", num_turns=TURNS, max_completion_tokens=MOST),
        algorithm=algorithm,
        policy=PolicyConfig(device="cpu"),
        budget=Budget(episodes=EPISODES),
        optimization=Optimization(batch_episodes=EPISODES),
        evaluation=Evaluation(episodes=0),
    )
    return Trainer(config)


def moved(model: Any) -> Any:
    """The model, a little away from where it was."""
    generator = torch.Generator().manual_seed(1)
    other = copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=generator) * parameter.abs().mean()
    return other


def lists_of(episodes: Sequence[Episode]) -> dict[str, list[Any]]:
    """Episodes as TRL's `rollout_func` returns them, and what their environment paid."""
    starts = [int(episode.turn_spans[0, 0]) for episode in episodes]
    pairs = list(zip(episodes, starts, strict=True))
    return {
        "prompt_ids": [episode.ids[:start].tolist() for episode, start in pairs],
        "completion_ids": [episode.ids[start:].tolist() for episode, start in pairs],
        "logprobs": [episode.logprobs[start:].tolist() for episode, start in pairs],
        "env_mask": [episode.loss_mask[start:].astype(int).tolist() for episode, start in pairs],
        "paid": [float(episode.rewards.sum()) for episode in episodes],
    }


def paid(completions: list[Any], paid: list[float], **_: Any) -> list[float]:
    return paid


def rows_of(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Dataset rows, one per episode."""
    return [{"prompt": episode.problem_id, "paid": float(episode.rewards.sum())} for episode in episodes]


def trl_options(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": [],
        "num_generations": GROUP,
        "per_device_train_batch_size": EPISODES,
        "num_iterations": 2,  # the old log-probs are kept, not taken from the policy itself
        "beta": 0.0,
        "temperature": 1.0,
        **changes,
    }


def trl_update(trainer: Any, episodes: Sequence[Episode], new: Any) -> tuple[float, list[torch.Tensor]]:
    """TRL's scoring of the batch by the old policy, and its loss and gradients at the new one."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # set by `train`, which takes a step as well
    inputs = trainer._generate_and_score_completions(rows_of(episodes))
    trainer.model.load_state_dict(new.state_dict())
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return float(loss.detach()), [p.grad.clone() for p in trainer.model.parameters()]


def our_update(trainer: Trainer, episodes: Sequence[Episode], new: Any) -> tuple[PolicyLoss, list[torch.Tensor]]:
    batch = trainer.credit(episodes)
    trainer.model.load_state_dict(new.state_dict())
    out = trainer.loss_of(batch, batch)
    out.loss.backward()  # type: ignore[no-untyped-call]
    return out, [p.grad.clone() for p in trainer.model.parameters()]


def check_same(mine: tuple[PolicyLoss, list[torch.Tensor]], theirs: tuple[float, list[torch.Tensor]]) -> None:
    (out, gradients), (loss, others) = mine, theirs
    assert float(out.clip_fraction) > 0.01  # else the comparison would be of little
    assert abs(loss) > 1e-3
    assert float(out.loss.detach()) == pytest.approx(loss, abs=1e-5)
    check_same_gradient(gradients, others)


def check_same_gradient(gradients: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    largest = max(float(gradient.abs().max()) for gradient in others)
    assert largest > 1e-2
    assert len(gradients) == len(others)
    for gradient, other in zip(gradients, others, strict=True):
        assert float((gradient - other).abs().max()) <= 1e-5 * largest


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_grpo_has_trls_loss_and_gradient(tmp_path: Path, loss_type: str) -> None:
    algorithm = GRPO(group_size=GROUP) if loss_type == "grpo" else DrGRPO(group_size=GROUP)
    trainer = ours(algorithm)
    episodes = trainer.play()
    assert max(episode.num_turns for episode in episodes) > 2
    other = trl.GRPOTrainer(
        model=copy.deepcopy(trainer.model),
        reward_funcs=paid,
        args=trl.GRPOConfig(
            **trl_options(tmp_path / "trl"),
            loss_type=loss_type,
            scale_rewards="group" if loss_type == "grpo" else "none",
            max_completion_length=TURNS * MOST,
            epsilon=algorithm.clip,
        ),
        train_dataset=datasets.Dataset.from_list(rows_of(episodes)),
        processing_class=trainer.policy.tokenizer,
        rollout_func=lambda prompts, _: lists_of(episodes),
    )
    new = moved(trainer.model)
    check_same(our_update(trainer, episodes, new), trl_update(other, episodes, new))
    trainer.close()


@dataclass(frozen=True, kw_only=True)
class ClippedRLOO(RLOO):
    """Ours with TRL's loss."""

    clip: float = 0.2

    def loss(self, logprobs: torch.Tensor, part: Part, state: State) -> PolicyLoss:
        return part.policy_loss(logprobs, clip=self.clip, ratio="product", normalization="sequence")


ClippedRLOO.name = "clipped_rloo"


@pytest.mark.parametrize("away", [False, True])
def test_rloo_has_trls_loss_and_gradient(tmp_path: Path, away: bool) -> None:
    trainer = ours(ClippedRLOO(group_size=GROUP) if away else RLOO(group_size=GROUP))
    episodes = trainer.play()
    lists = lists_of(episodes)

    class MultiTurn(trl.RLOOTrainer):  # type: ignore[misc, name-defined]
        """TRL's, given a batch that was played, with feedback out of an episode's probability."""

        def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
            return lists["prompt_ids"], lists["completion_ids"], [""] * len(prompts)

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            logprobs, *rest = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            masks = [torch.tensor(mask) for mask in lists["env_mask"]]
            return logprobs * torch.nn.utils.rnn.pad_sequence(masks, batch_first=True), *rest

    other = MultiTurn(
        model=copy.deepcopy(trainer.model),
        reward_funcs=paid,
        args=trl.RLOOConfig(**trl_options(tmp_path / "trl"), epsilon=0.2),
        train_dataset=datasets.Dataset.from_list(rows_of(episodes)),
        processing_class=trainer.policy.tokenizer,
    )
    new = moved(trainer.model) if away else copy.deepcopy(trainer.model).eval()
    mine, theirs = our_update(trainer, episodes, new), trl_update(other, episodes, new)
    if away:
        check_same(mine, theirs)
    else:  # the losses differ by what the gradient does not see
        check_same_gradient(mine[1], theirs[1])
    trainer.close()
