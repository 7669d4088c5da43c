from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tiny import make_tiny_model, train_tokenizer

from mathturn_gym.errors import CheckpointError, InvalidValueError, PolicyError
from mathturn_gym.testing import check_policy
from mathturn_gym.types import Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy

TOKENIZER = train_tokenizer()
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_p": 0.8},
    {"temperature": 1.4, "top_p": 0.9, "top_k": 50},
]


@pytest.fixture
def model() -> Any:
    return make_tiny_model(TOKENIZER, seed=3)


def gpt2() -> Any:
    """A model with absolute positions, where padding without position ids would show."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=60, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5, eos_token_id=7
            )
        )


def assert_close(found: Any, expected: Any) -> None:
    """Equal up to what float32 leaves of it."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def contexts(count: int, seed: int = 0, high: int = 400, longest: int = 20) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, high, size=n).astype(np.int64) for n in rng.integers(1, longest, size=count)]


def recomputed(
    model: Any, context: Ids, ids: Ids, temperature: float, top_p: float, top_k: int
) -> npt.NDArray[np.float64]:
    """Log-probs of `ids` after `context`, one forward pass per id, nothing batched, padded or cached."""
    found = []
    with torch.no_grad():
        for k, chosen in enumerate(ids):
            sequence = torch.from_numpy(np.concatenate([context, ids[:k]]))[None]
            logits = model.eval()(input_ids=sequence, use_cache=False).logits[0, -1].double() / temperature
            order = sorted(range(len(logits)), key=lambda i: -float(logits[i]))
            kept = order[: top_k or None]
            probs = torch.softmax(logits[kept], dim=-1)
            before = torch.cumsum(probs, dim=-1) - probs
            inside = [i for i, p in zip(kept, before.tolist(), strict=True) if p < top_p]
            found.append(float(torch.log_softmax(logits[inside], dim=-1)[inside.index(int(chosen))]))
    return np.array(found)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_logprobs_are_those_of_the_distribution_sampled_from(model: Any, settings: dict[str, Any]) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, **settings)
    asked = contexts(6)
    for context, completion in zip(asked, policy.complete(asked, max_tokens=[6] * 6, seeds=range(6)), strict=True):
        full = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, **settings}
        expected = recomputed(model, context, completion.ids, **full)
        assert_close(completion.logprobs, expected)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_score_gives_the_logprobs_that_sampling_gave(model: Any, settings: dict[str, Any]) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, max_batch_size=4, **settings)
    asked = contexts(9)
    completions = policy.complete(asked, max_tokens=[5, 0, 3, 5, 1, 5, 5, 2, 5], seeds=range(9))
    scores = policy.score(asked, [completion.ids for completion in completions])
    for completion, score in zip(completions, scores, strict=True):
        assert_close(score, completion.logprobs)


def test_a_sample_depends_on_its_seed_and_not_on_its_batch(model: Any) -> None:
    asked, seeds = contexts(24), list(range(100, 124))
    together = CausalLMPolicy(model, TOKENIZER).complete(asked, max_tokens=[7] * 24, seeds=seeds)
    order = np.random.default_rng(1).permutation(24)
    shuffled = CausalLMPolicy(model, TOKENIZER, max_batch_size=5).complete(
        [asked[i] for i in order], max_tokens=[7] * 24, seeds=[seeds[i] for i in order]
    )
    for place, i in enumerate(order):
        assert shuffled[place].ids.tolist() == together[i].ids.tolist()
        assert_close(shuffled[place].logprobs, together[i].logprobs)
    assert (
        together[0].ids.tolist()
        != CausalLMPolicy(model, TOKENIZER).complete(asked[:1], max_tokens=[7], seeds=[999])[0].ids.tolist()
    )


def test_a_smaller_budget_gives_the_beginning_of_the_same_sample(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER)
    long, short = (policy.complete(contexts(4), max_tokens=[n] * 4, seeds=range(4)) for n in (9, 4))
    assert [c.ids[:4].tolist() for c in long] == [c.ids.tolist() for c in short]


def test_left_padding_is_invisible_to_absolute_positions() -> None:
    policy = CausalLMPolicy(gpt2())
    asked = contexts(8, high=60, longest=12)
    for row, completion in enumerate(policy.complete(asked, max_tokens=[8] * 8, seeds=range(8))):
        assert_close(completion.logprobs, recomputed(policy.model, asked[row], completion.ids, 1.0, 1.0, 0))


def test_first_ids_follow_the_models_distribution(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, top_k=5)
    context, draws = np.array([5, 80, 9]), 4000
    completions = policy.complete([context] * draws, max_tokens=[1] * draws, seeds=range(draws))
    found = {
        i: n / draws for i, n in zip(*np.unique([int(c.ids[0]) for c in completions], return_counts=True), strict=True)
    }
    expected = {int(c.ids[0]): float(np.exp(c.logprobs[0])) for c in completions}
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-5)
    # Four standard deviations of a share of 4,000 draws are at most 0.032.
    assert all(abs(found[i] - p) < 0.032 for i, p in expected.items())


def test_greedy_decoding_equals_generate(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, temperature=0)
    context = contexts(1)[0]
    ids = policy.complete([context], max_tokens=[12])[0].ids
    generated = model.generate(
        torch.from_numpy(context)[None], attention_mask=torch.ones(1, len(context)), do_sample=False, max_new_tokens=12
    )
    assert ids.tolist() == generated[0, len(context) :].tolist()


def test_the_stop_id_is_kept_and_a_budget_truncates(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, stop_ids=range(200))
    completions = policy.complete(contexts(30), max_tokens=[6] * 30, seeds=range(30))
    assert {c.truncated for c in completions} == {False, True}
    for completion in completions:
        assert all(i >= 200 for i in completion.ids[:-1])
        assert completion.truncated == (completion.ids[-1] >= 200)
        assert len(completion) == 6 or not completion.truncated


def test_a_stop_at_the_last_id_of_the_budget_is_no_truncation(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, stop_ids=range(policy_size()))
    assert [(len(c), c.truncated) for c in policy.complete(contexts(3), max_tokens=[1] * 3)] == [(1, False)] * 3


def policy_size() -> int:
    return len(TOKENIZER)


def test_no_budget_gives_an_empty_truncated_completion(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER, version=4)
    (empty, full) = policy.complete(contexts(2), max_tokens=[0, 3], seeds=[0, 1])
    assert (len(empty), empty.truncated, empty.version_start) == (0, True, 4)
    assert len(full) == 3


def test_no_contexts_give_no_completions(model: Any) -> None:
    assert CausalLMPolicy(model, TOKENIZER).complete([], max_tokens=[]) == []


def test_it_keeps_the_policy_contract(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER)
    check_policy(policy, policy.vocab_size)


def test_without_seeds_its_own_generator_decides(model: Any) -> None:
    def sample(seed: int) -> list[list[int]]:
        policy = CausalLMPolicy(model, TOKENIZER, seed=seed)
        return [policy.complete(contexts(1), max_tokens=[6])[0].ids.tolist() for _ in range(2)]

    assert sample(1) == sample(1) != sample(2)
    first, second = sample(1)
    assert first != second


def test_ids_beyond_the_tokenizer_are_never_sampled() -> None:
    from tiny import tiny_config
    from transformers import LlamaForCausalLM

    config = tiny_config(TOKENIZER)
    config.vocab_size = 4 * len(TOKENIZER)
    policy = CausalLMPolicy(LlamaForCausalLM(config), TOKENIZER)
    completions = policy.complete(contexts(20), max_tokens=[10] * 20, seeds=range(20))
    assert max(int(c.ids.max()) for c in completions) < len(TOKENIZER)


def test_a_generation_config_is_not_applied(model: Any, tmp_path: Path) -> None:
    from transformers import GenerationConfig

    settings: Any = GenerationConfig
    model.generation_config = settings(do_sample=True, top_k=1, temperature=0.1, eos_token_id=2)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "generation_config.json").exists()
    loaded = CausalLMPolicy.from_pretrained(tmp_path, tokenizer=TOKENIZER)
    plain = CausalLMPolicy(model, TOKENIZER)
    asked = contexts(8)
    for a, b in zip(*(p.complete(asked, max_tokens=[5] * 8, seeds=range(8)) for p in (loaded, plain)), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert_close(a.logprobs, b.logprobs)


def test_dropout_is_off_while_sampling_and_the_mode_is_put_back() -> None:
    model = gpt2()
    model.train()
    asked = contexts(4, high=60)
    first, second = (CausalLMPolicy(model).complete(asked, max_tokens=[4] * 4, seeds=range(4)) for _ in range(2))
    assert [c.logprobs.tolist() for c in first] == [c.logprobs.tolist() for c in second]
    assert model.training


def test_the_budget_is_cut_at_the_models_last_position() -> None:
    policy = CausalLMPolicy(gpt2(), stop_ids=[])
    (completion,) = policy.complete([np.arange(28)], max_tokens=[100], seeds=[0])
    assert (len(completion), completion.truncated) == (4, True)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (np.zeros(0, np.int64), r"contexts\[1\] is empty"),
        (np.array([3, 9999]), r"contexts\[1\] has id 9999, outside the vocabulary \[0, 60\)"),
        (np.array([-1, 3]), r"contexts\[1\] has id -1"),
        (np.zeros(33, np.int64), r"contexts\[1\] has 33 ids.*end at 32.*max_context_tokens=32"),
    ],
)
def test_contexts_that_cannot_be_continued_are_named(context: Ids, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        CausalLMPolicy(gpt2()).complete([np.array([1]), context], max_tokens=[1, 1])


@pytest.mark.parametrize(
    ("completions", "message"),
    [
        ([np.array([3])], r"completions must have one entry per context \(2\)"),
        ([np.array([3]), np.array([9999])], r"completions\[1\] has id 9999"),
        ([np.array([3]), np.arange(31)], r"completions\[1\] has 33 ids.*end at 32"),
    ],
)
def test_completions_that_cannot_be_scored_are_named(completions: list[Ids], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        CausalLMPolicy(gpt2()).score([np.array([1]), np.array([1, 2])], completions)


def test_lengths_that_differ_are_refused(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER)
    with pytest.raises(InvalidValueError, match="max_tokens"):
        policy.complete(contexts(2), max_tokens=[1])
    with pytest.raises(InvalidValueError, match="seeds"):
        policy.complete(contexts(2), max_tokens=[1, 1], seeds=[0])
    with pytest.raises(InvalidValueError, match=r"max_tokens\[1\]"):
        policy.complete(contexts(2), max_tokens=[1, -1])


def test_logits_that_are_not_finite_name_the_row(model: Any) -> None:
    policy = CausalLMPolicy(model, TOKENIZER)
    with torch.no_grad():
        model.get_input_embeddings().weight[77] = torch.nan
        model.get_output_embeddings().weight = torch.nn.Parameter(torch.randn(len(TOKENIZER), 64))
    asked = [np.array([5, 6]), np.array([5, 77, 8]), np.array([9])]
    with pytest.raises(PolicyError, match=r"contexts\[1\] are not finite at completion id 0"):
        policy.complete(asked, max_tokens=[2, 2, 2], seeds=[0, 1, 2])


def test_a_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"embedding only 60 rows.*resize_token_embeddings\(405\)"):
        CausalLMPolicy(gpt2(), TOKENIZER)


def test_a_model_without_stop_ids_needs_them_given() -> None:
    model = gpt2()
    model.config.eos_token_id = None
    with pytest.raises(InvalidValueError, match="stop_ids"):
        CausalLMPolicy(model)
    assert CausalLMPolicy(model, stop_ids=[]).stop_ids == ()


def test_stop_ids_come_from_tokenizer_and_config(model: Any) -> None:
    model.config.eos_token_id = [9, 5]
    assert CausalLMPolicy(model, TOKENIZER).stop_ids == (2, 5, 9)
    assert CausalLMPolicy(model, TOKENIZER, stop_ids=[4]).stop_ids == (4,)


def test_a_folder_without_a_model_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json.*it is empty"):
        CausalLMPolicy.from_pretrained(tmp_path)


def test_new_weights_raise_the_version(model: Any, tmp_path: Path) -> None:
    policy = CausalLMPolicy(make_tiny_model(TOKENIZER, seed=8), TOKENIZER, version=2)
    before = policy.complete(contexts(4), max_tokens=[5] * 4, seeds=range(4))
    assert policy.update_weights(model.state_dict()) == 3
    after = policy.complete(contexts(4), max_tokens=[5] * 4, seeds=range(4))
    expected = CausalLMPolicy(model, TOKENIZER).complete(contexts(4), max_tokens=[5] * 4, seeds=range(4))
    assert [c.ids.tolist() for c in after] == [c.ids.tolist() for c in expected] != [c.ids.tolist() for c in before]
    assert [c.version_start for c in after] == [3] * 4
    model.save_pretrained(tmp_path)
    assert policy.update_weights(tmp_path, version=10) == 10


def test_weights_that_do_not_fit_change_nothing(model: Any) -> None:
    policy = CausalLMPolicy(make_tiny_model(TOKENIZER, seed=8), TOKENIZER)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    weights = dict(model.state_dict())
    norm = weights.pop("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"lack model\.norm\.weight"):
        policy.update_weights(weights)
    with pytest.raises(CheckpointError, match=r"unknown other\.weight"):
        policy.update_weights({**weights, "model.norm.weight": norm, "other.weight": norm})
    with pytest.raises(CheckpointError, match=r"another shape for model\.norm\.weight"):
        policy.update_weights({**weights, "model.norm.weight": norm[:3]})
    with pytest.raises(InvalidValueError, match="version"):
        policy.update_weights(model.state_dict(), version=0)
    assert policy.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.model.state_dict().items())
