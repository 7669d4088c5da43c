from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.episodes import read_episodes
from mathturn_gym.episodes.losses import policy_loss, token_logprobs
from mathturn_gym.episodes.packing import model_inputs, pack
from mathturn_gym.episodes.returns import BiasedEstimatorWarning, advantages
from mathturn_gym.errors import InvalidEpisodeError, InvalidValueError
from mathturn_gym.neighbors.export import (
    to_areal,
    to_datasets,
    to_tinker,
    to_trl,
    to_verl,
    trl_advantages,
    trl_episode_return,
)
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


def by_hand() -> Episode:
    """prompt 1 2, completion 3 4, feedback 5, completion 6, and feedback 7 after the last turn."""
    return Episode(
        **{
            **{f.name: getattr(synthetic_episode(0, 0, [2, 1]), f.name) for f in dataclasses.fields(Episode)},
            "ids": np.array([1, 2, 3, 4, 5, 6, 7]),
            "loss_mask": np.array([0, 0, 1, 1, 0, 1, 0], np.bool_),
            "logprobs": np.array([0, 0, -0.5, -0.25, 0, -1, 0], np.float32),
            "versions": np.array([-1, -1, 3, 4, -1, 4, -1], np.int32),
            "turn_spans": np.array([[2, 4], [5, 6]]),
            "rewards": np.array([-1.0, 2.0]),
        }
    )


def test_trl_by_hand() -> None:
    found = to_trl([by_hand()], discount=0.5)
    assert found == {
        "prompt_ids": [[1, 2]],
        "completion_ids": [[3, 4, 5, 6]],
        "logprobs": [[-0.5, -0.25, 0.0, -1.0]],
        "env_mask": [[1, 1, 0, 1]],
        "episode_return": [0.0],
    }
    assert trl_episode_return(completions=["x"], episode_return=[0.5], prompts=["p"]) == [0.5]
    with pytest.raises(InvalidValueError, match="1 episode returns for 2 completions"):
        trl_episode_return(["a", "b"], [1.0])
    assert trl_advantages([by_hand()], [[1.0, 2.0]], width=6).tolist() == [[1, 1, 0, 2, 0, 0]]


def test_trl_cannot_take_nothing() -> None:
    empty = synthetic_episode(0, 3, [0], prompt=2)
    with pytest.raises(InvalidEpisodeError, match="episode 3 on 'synthetic/3' has no id after its prompt"):
        to_trl([empty])
    found = to_trl([empty], empty_id=9)
    assert (found["completion_ids"], found["env_mask"], found["logprobs"]) == ([[9]], [[0]], [[0.0]])
    with pytest.raises(InvalidValueError, match="empty_id must be"):
        to_trl([empty], empty_id=-1)


def test_verl_by_hand() -> None:
    assert to_verl([by_hand()]) == [
        {
            "prompt_ids": [1, 2],
            "response_ids": [3, 4, 5, 6],
            "response_mask": [1, 1, 0, 1],
            "response_logprobs": [-0.5, -0.25, 0.0, -1.0],
            "reward_score": 1.0,
            "num_turns": 4,
            "extra_fields": {"turn_scores": [-1.0, 2.0], "segment": 0},
        }
    ]
    (silent,) = to_verl([synthetic_episode(0, 0, [2], logprobs=False)])
    assert silent["response_logprobs"] is None


def test_areal_by_hand() -> None:
    found = to_areal(by_hand())
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()} == {
        "input_ids": (torch.int32, [[1, 2, 3, 4, 5, 6]]),
        "attention_mask": (torch.bool, [[True] * 6]),
        "loss_mask": (torch.int32, [[0, 0, 1, 1, 0, 1]]),
        "logprobs": (torch.float32, [[0, 0, -0.5, -0.25, 0, -1]]),
        "versions": (torch.int32, [[-1, -1, 3, 4, -1, 4]]),
        "turn_ids": (torch.int32, [[-1, -1, 0, 0, -1, 1]]),
        "rewards": (torch.float32, [1.0]),
    }


def test_tinker_by_hand() -> None:
    (found,) = to_tinker(by_hand(), [10.0, 20.0])
    assert found["model_input"] == [1, 2, 3, 4, 5]
    inputs = {name: array.tolist() for name, array in found["loss_fn_inputs"].items()}
    assert inputs == {
        "target_tokens": [2, 3, 4, 5, 6],
        "logprobs": [0, -0.5, -0.25, 0, -1],
        "advantages": [0, 10, 10, 0, 20],
        "mask": [0, 1, 1, 0, 1],
    }
    with pytest.raises(InvalidEpisodeError, match="has 1 ids"):
        to_tinker(synthetic_episode(0, 0, [], prompt=1), [])


def two_segments() -> Episode:
    """The same dialogue, written anew after the first answer: 7 8 is what the policy saw before its second."""
    return dataclasses.replace(
        by_hand(),
        ids=np.array([1, 2, 3, 4, 7, 8, 6]),
        loss_mask=np.array([0, 0, 1, 1, 0, 0, 1], np.bool_),
        logprobs=np.array([0, 0, -0.5, -0.25, 0, 0, -1], np.float32),
        versions=np.array([-1, -1, 0, 0, -1, -1, 1], np.int32),
        turn_spans=np.array([[2, 4], [6, 7]]),
        segment_starts=np.array([0, 4]),
    )


def test_segments_are_rows_of_their_own() -> None:
    first, second = to_verl([two_segments()])
    assert (first["prompt_ids"], first["response_ids"]) == ([1, 2], [3, 4])
    assert (second["prompt_ids"], second["response_ids"], second["response_mask"]) == ([7, 8], [6], [1])
    assert [row["extra_fields"]["segment"] for row in (first, second)] == [0, 1]
    assert first["reward_score"] == second["reward_score"] == 1.0
    areal = {name: tensor.tolist() for name, tensor in to_areal(two_segments()).items()}
    assert areal["input_ids"] == [[1, 2, 3, 4], [7, 8, 6, 0]]
    assert areal["attention_mask"] == [[True] * 4, [True] * 3 + [False]]
    assert areal["loss_mask"] == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert areal["versions"] == [[-1, -1, 0, 0], [-1, -1, 1, -1]]
    assert areal["turn_ids"] == [[-1, -1, 0, 0], [-1, -1, 1, -1]]
    assert areal["rewards"] == [1.0, 1.0]
    one, other = to_tinker(two_segments(), [10.0, 20.0])
    assert (one["model_input"], one["loss_fn_inputs"]["advantages"].tolist()) == ([1, 2, 3], [0, 10, 10])
    assert (other["model_input"], other["loss_fn_inputs"]["advantages"].tolist()) == ([7, 8], [0, 20])
    assert other["loss_fn_inputs"]["target_tokens"].tolist() == [8, 6]


def test_trl_takes_one_segment() -> None:
    with pytest.raises(InvalidEpisodeError, match=r"has 2 segments, and TRL takes one stream .*history=\"keep\""):
        to_trl([two_segments()])


def test_datasets_hold_every_bit(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    episodes = [synthetic_episode(0, i, [2, 1], group="g", max_version=2) for i in range(3)]
    dataset = to_datasets(episodes)
    assert dataset.num_rows == 3
    assert dataset[1]["ids"] == episodes[1].ids.tolist()
    dataset.to_parquet(tmp_path / "pushed.parquet")  # what `push_to_hub` uploads: without the name of our schema
    for before, after in zip(episodes, read_episodes(tmp_path / "pushed.parquet"), strict=True):
        assert isinstance(after, Episode)
        assert before.logprobs.tobytes() == after.logprobs.tobytes()
        assert before.rewards.tobytes() == after.rewards.tobytes()


@pytest.mark.parametrize("export", [lambda e: to_trl([e]), to_areal, lambda e: to_tinker(e, [0.0, 0.0])])
def test_missing_logprobs_name_episode_and_turn(export: Any) -> None:
    episode = by_hand()
    logprobs = episode.logprobs.copy()
    logprobs[5] = np.nan
    with pytest.raises(InvalidEpisodeError, match="episode 0 on 'synthetic/0', turn 1: behavior log-probs are missing"):
        export(dataclasses.replace(episode, logprobs=logprobs))


def test_mistakes_are_named() -> None:
    with pytest.raises(InvalidValueError, match="discount must be"):
        to_verl([by_hand()], discount=2.0)
    with pytest.raises(InvalidValueError, match="width must be at least 4 for episode 0"):
        trl_advantages([by_hand()], [[1.0, 2.0]], width=3)
    with pytest.raises(InvalidValueError, match="0 entries for 1 episodes"):
        trl_advantages([by_hand()], [], width=3)
    with pytest.raises(InvalidValueError, match=r"advantages of episode 0 on 'synthetic/0' must be 2 finite numbers"):
        to_tinker(by_hand(), [1.0])


@pytest.mark.filterwarnings("ignore")  # TRL and its libraries warn of things of their own
def test_trls_trainer_computes_our_loss(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from mathturn_gym.testing import make_tokenizer

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    model: Any = LlamaForCausalLM(config)
    size = 4
    lengths = [[3, 2], [4], [1, 1, 1], [2, 0, 3], [5], [2, 2], [1], [3, 3]]
    episodes = [
        synthetic_episode(
            0, i, row, prompt=3 + i // size, group=str(i // size), vocab_size=len(tokenizer), max_version=0
        )
        for i, row in enumerate(lengths)
    ]
    taken: list[int] = []

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        taken.append(len(prompts))
        return to_trl(episodes)

    class Compared(GRPOTrainer):
        """TRL's trainer, which notes its loss and gradient beside ours; `own` replaces its scalar advantages."""

        own: list[Any] | None = None

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            if self.own is not None:
                width = out["completion_ids"].shape[1]
                out["advantages"] = torch.from_numpy(trl_advantages(episodes, self.own, width=width))
            return out

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            theirs = super()._compute_loss(model, inputs)
            # TRL scores the rollout with the model itself, so ours has the model's log-probs as behavior.
            batch = pack(episodes, advantages=scalar if self.own is None else self.own)
            logprobs, _ = token_logprobs(model(**model_inputs(batch), use_cache=False).logits, batch)
            batch = batch.replace_tensors({"behavior_logprobs": logprobs.detach()})
            normalization: Any = {"grpo": "sequence", "bnpo": "token"}[self.loss_type]
            ours = policy_loss(logprobs, batch, normalization=normalization).loss
            weights = list(model.parameters())
            gradients = [
                torch.cat([part.flatten() for part in torch.autograd.grad(loss, weights, retain_graph=True)])
                for loss in (theirs, ours)
            ]
            compared.append((theirs.item(), ours.item(), gradients[0], gradients[1]))
            return theirs

    with pytest.warns(BiasedEstimatorWarning):
        scalar = advantages(episodes, "grpo")
    compared: list[tuple[float, float, torch.Tensor, torch.Tensor]] = []
    for loss_type, own in (("grpo", None), ("grpo", advantages(episodes)), ("bnpo", advantages(episodes))):
        before = model.lm_head.weight.detach().clone()
        trainer = Compared(
            model=model,
            reward_funcs=[trl_episode_return],
            args=GRPOConfig(
                output_dir=str(tmp_path),
                max_steps=2,
                per_device_train_batch_size=len(episodes),
                num_generations=size,
                loss_type=loss_type,
                beta=0.0,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                gradient_checkpointing=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
            processing_class=tokenizer,
            rollout_func=rollout,
        )
        trainer.own = own
        trainer.train()
        assert not torch.equal(before, model.lm_head.weight)
    assert len(compared) == 6 == len(taken)
    assert taken == [len(episodes)] * 6
    for theirs, ours, their_gradient, our_gradient in compared:
        assert theirs == pytest.approx(ours, abs=1e-5)
        assert float((their_gradient - our_gradient).norm() / our_gradient.norm()) < 1e-5
    assert all(abs(theirs) > 1e-2 for theirs, *_ in compared[2:])  # not two zeros
