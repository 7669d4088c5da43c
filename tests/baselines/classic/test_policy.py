"""What stable-baselines3 trained, as a policy that `collect` can play."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from mathturn_gym.baselines.classic import (
    Sb3Policy,
    WindowTransformer,
    language_model_kwargs,
    load_language_model,
    make_token_env,
)
from mathturn_gym.env.dialogue import load_tokenizer
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.policies.sampling import answer_ids
from mathturn_gym.types import Policy

IDS = answer_ids(load_tokenizer("builtin"))
TASK: dict[str, Any] = {"problems": "lins", "num_turns": 3, "max_completion_tokens": 6}
SMALL = {"features_extractor_class": WindowTransformer, "features_extractor_kwargs": {"layers": 1, "width": 16}}


def model_of(name: str, **more: Any) -> tuple[Any, Any]:
    import sb3_contrib
    import stable_baselines3

    masked = name == "MaskablePPO"
    restriction: dict[str, Any] = {"allowed_ids" if masked else "action_ids": IDS}
    env = make_token_env(**TASK, **restriction)
    kind = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    if name == "RecurrentPPO":
        policy, kwargs = "MlpLstmPolicy", {**SMALL, "lstm_hidden_size": 8}
    else:
        policy, kwargs = "MlpPolicy", dict(SMALL)
    return kind(policy, env, policy_kwargs={**kwargs, **more}, device="cpu", seed=0), env


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "MaskablePPO", "RecurrentPPO", "TRPO", "QRDQN"])
def test_every_algorithm_plays_whole_episodes(name: str) -> None:
    model, env = model_of(name)
    policy = Sb3Policy(model, env, seed=1)
    assert isinstance(policy, Policy)
    vector = gym.make_vec(
        "MathMultiTurnUntilCorrect-v0", num_envs=4, vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.DISABLED, **TASK,
    )  # fmt: skip
    episodes = collect(vector, policy, 10, seed=3)
    again = collect(vector, Sb3Policy(model, env), 10, seed=3)
    assert [episode.ids.tolist() for episode in episodes] == [episode.ids.tolist() for episode in again]
    for episode in episodes:
        assert episode.stop_reason is not None
        assert set(episode.ids[episode.loss_mask].tolist()) <= set(IDS)
        assert all(len(turn.ids) <= 6 for turn in episode.turns)
    greedy = name in ("DQN", "QRDQN")
    logprobs = np.concatenate([episode.logprobs[episode.loss_mask] for episode in episodes])
    assert (logprobs == 0).all() if greedy else (logprobs < 0).all()


def test_it_samples_from_the_policys_own_distribution() -> None:
    model, env = model_of("PPO")
    prompt, _ = env.reset(seed=0)
    context = prompt[prompt < 405]
    policy = Sb3Policy(model, env)
    drawn = policy.complete([context] * 4000, max_tokens=[1] * 4000, seeds=range(4000))
    with torch.no_grad():
        probs = model.policy.get_distribution(torch.as_tensor(prompt)[None]).distribution.probs[0].numpy()
    counts = np.bincount([IDS.index(int(one.ids[0])) for one in drawn], minlength=13)
    assert np.abs(counts / 4000 - probs).max() < 0.03
    for one in drawn[:20]:
        assert one.logprobs[0] == pytest.approx(np.log(probs[IDS.index(int(one.ids[0]))]), abs=1e-5)
        assert one.truncated == (one.ids[-1] != IDS[0])


def test_a_language_model_and_its_copy_say_the_same() -> None:
    """At the same seeds: the warm start as it is, and as the policy that a classic algorithm begins with."""
    from mathturn_gym.policies.sampling import AnswerGrammar, mask_logits
    from mathturn_gym.wrappers.policy import CausalLMPolicy

    model, env = model_of("PPO", **language_model_kwargs(BUILTIN_PATH))
    load_language_model(model.policy, BUILTIN_PATH, IDS)
    prompt, _ = env.reset(seed=0)
    contexts = [prompt[prompt < 405]] * 50
    ours = Sb3Policy(model, env).complete(contexts, max_tokens=[6] * 50, seeds=range(50))
    original: Any = CausalLMPolicy.from_pretrained(BUILTIN_PATH)
    mask_logits(original.model, AnswerGrammar(tuple(IDS), {}))
    theirs = original.complete(contexts, max_tokens=[6] * 50, seeds=range(50))
    assert [one.ids.tolist() for one in ours] == [one.ids.tolist() for one in theirs]
    assert [one.truncated for one in ours] == [one.truncated for one in theirs]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_a_recurrent_policy_remembers_as_it_does_in_training() -> None:
    """Turn by turn through `complete`, and id by id through stable-baselines3's own `predict`: the same log-probs."""
    model, env = model_of("RecurrentPPO")
    policy = Sb3Policy(model, env)
    observation, info = env.reset(seed=4)
    base: Any = env.env.unwrapped
    states = tuple(torch.zeros(1, 1, 8) for _ in range(2))
    for turn in range(3):
        context = base._observation()
        completion = policy.complete([context], max_tokens=[6], seeds=[turn])[0]
        for one, logprob in zip(completion.ids.tolist(), completion.logprobs, strict=True):
            with torch.no_grad():
                distribution, states = model.policy.get_distribution(
                    torch.as_tensor(observation, dtype=torch.float32)[None], states, torch.zeros(1)
                )
            expected = distribution.distribution.probs[0, IDS.index(one)].log()
            assert float(logprob) == pytest.approx(float(expected), abs=1e-5)
            observation, _, terminated, _, info = env.step(IDS.index(one))
        assert info["turn"] == turn + 1
        if terminated:
            break
    fresh = Sb3Policy(model, env).complete([context], max_tokens=[6], seeds=[turn])[0]
    assert not np.array_equal(fresh.logprobs, completion.logprobs)  # without its memory it is another policy


def test_masks_of_the_last_id() -> None:
    model, _ = model_of("MaskablePPO")
    env = make_token_env(**TASK, allowed_ids=IDS, force_end=True)
    prompt, _ = env.reset(seed=0)
    found = Sb3Policy(model, env).complete([prompt[prompt < 405]] * 30, max_tokens=[4] * 30, seeds=range(30))
    end = load_tokenizer("builtin").eos_token_id
    assert all(one.ids[-1] == end and not one.truncated for one in found)


def test_mistakes_and_divergence() -> None:
    model, env = model_of("PPO")
    with pytest.raises(InvalidValueError, match='observation="ids"'):
        Sb3Policy(model, make_token_env(**TASK, observation="dict"))
    policy = Sb3Policy(model, env)
    with pytest.raises(InvalidValueError, match="one entry per context"):
        policy.complete([np.array([1])], max_tokens=[1, 2])
    assert len(policy.complete([np.array([1])], max_tokens=[0])[0]) == 0
    with torch.no_grad():
        model.policy.action_net.bias.fill_(torch.nan)
    with pytest.raises(PolicyError, match="no distribution"):
        policy.complete([np.array([1])], max_tokens=[1])
