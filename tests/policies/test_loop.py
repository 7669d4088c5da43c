"""Caches over turns change what is computed, never what is sampled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mathturn_gym.errors import InvalidValueError, PolicyError
from mathturn_gym.policies._kv_cache import Arena
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy

VOCAB, STOP = 97, 3
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "eos_token_id": STOP,
    "bos_token_id": None,
    "pad_token_id": 0,
}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8))


def gemma3() -> Any:
    """Every other layer sees eight ids alone."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    )


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_positions=512, n_embd=32, n_layer=2, n_head=4, initializer_range=0.4, eos_token_id=STOP
        )
    )


FAMILIES: list[Callable[[], Any]] = [llama, qwen3, gemma3, gpt2]


def make(family: Callable[[], Any], seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family().eval()


def prompts(count: int, seed: int = 0, low: int = 1, high: int = 40) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCAB, size=n).astype(np.int64) for n in rng.integers(low, high, size=count)]


def feedback(row: int, turn: int) -> Ids:
    rng = np.random.default_rng([row, turn])
    return rng.integers(4, VOCAB, size=rng.integers(1, 12)).astype(np.int64)


def play(
    policy: CausalLMPolicy, starts: list[Ids], turns: int = 4, between: Callable[[int], object] = lambda turn: None
) -> tuple[list[list[Completion]], list[Ids]]:
    """Plays dialogues with random feedback; completions by turn, and the final contexts."""
    contexts, played = list(starts), []
    for turn in range(turns):
        between(turn)
        budgets = [3 + (5 * row + turn) % 17 for row in range(len(contexts))]
        seeds = [1000 * row + turn for row in range(len(contexts))]
        played.append(policy.complete(contexts, max_tokens=budgets, seeds=seeds))
        contexts = [
            np.concatenate([context, completion.ids, feedback(row, turn)])
            for row, (context, completion) in enumerate(zip(contexts, played[-1], strict=True))
        ]
    return played, contexts


def assert_same(found: list[list[Completion]], expected: list[list[Completion]], atol: float = 2e-5) -> None:
    for turn, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert a.ids.tolist() == b.ids.tolist(), f"turn {turn}, row {row}"
            assert a.truncated == b.truncated
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=atol, err_msg=f"turn {turn}, row {row}")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_cached_turns_equal_a_full_recompute(family: Callable[[], Any], temperature: float) -> None:
    model, starts = make(family), prompts(9)
    cached = CausalLMPolicy(model, temperature=temperature, max_batch_size=4)
    played, contexts = play(cached, starts)
    expected, same = play(CausalLMPolicy(model, temperature=temperature, cache_bytes=0), starts)
    assert_same(played, expected)
    assert [c.tolist() for c in contexts] == [c.tolist() for c in same]
    # Against one uncached pass over each completion, too: both loops share their masks and positions.
    for row in range(len(starts)):
        context = starts[row]
        for turn, completions in enumerate(played):
            (score,) = cached.score([context], [completions[row].ids])
            np.testing.assert_allclose(completions[row].logprobs, score, rtol=0, atol=2e-5)
            context = np.concatenate([context, completions[row].ids, feedback(row, turn)])


def test_only_prompt_and_feedback_are_prefilled() -> None:
    starts, turns = prompts(6), 4
    policy = CausalLMPolicy(make(llama))
    played, _ = play(policy, starts, turns)
    fed = sum(len(start) for start in starts)
    for turn in range(turns - 1):
        # The last id of a completion was sampled, never fed: it goes in with the feedback.
        fed += sum(len(feedback(row, turn)) + 1 for row in range(len(starts)))
    assert policy.stats.prefilled == fed
    sampled = sum(len(completion) for completions in played for completion in completions)
    assert policy.stats.decoded == sampled - turns * len(starts)
    uncached = CausalLMPolicy(policy.model, cache_bytes=0)
    play(uncached, starts, turns)
    assert uncached.stats.prefilled > 2 * fed
    assert uncached.stats.reused == 0


@pytest.mark.parametrize("family", [llama, gemma3], ids=lambda f: f.__name__)
def test_evictions_cost_time_and_nothing_else(family: Callable[[], Any]) -> None:
    model, starts = make(family), prompts(8)
    expected, _ = play(CausalLMPolicy(model, cache_bytes=0), starts)
    full = CausalLMPolicy(model)
    play(full, starts)
    tight = CausalLMPolicy(model, cache_bytes=full.cached_bytes // 3)
    played, _ = play(tight, starts)
    assert_same(played, expected)
    assert tight.cached_bytes <= full.cached_bytes // 3
    assert 0 < tight.stats.reused < full.stats.reused


def test_new_weights_between_turns_drop_the_caches() -> None:
    starts, second = prompts(5), make(llama, seed=1).state_dict()

    def run(cache_bytes: int) -> list[list[Completion]]:
        policy = CausalLMPolicy(make(llama), cache_bytes=cache_bytes)
        return play(policy, starts, between=lambda turn: policy.update_weights(second) if turn == 2 else None)[0]

    played = run(2**30)
    assert_same(played, run(0))
    assert [c.version_start for completions in played for c in completions] == [0] * 10 + [1] * 10


def test_weights_changed_in_place_are_noticed() -> None:
    starts = prompts(5)

    def run(cache_bytes: int) -> list[list[Completion]]:
        model = make(llama)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def train(turn: int) -> None:
            if turn == 2:
                torch.manual_seed(0)
                model(input_ids=torch.arange(4, 20)[None]).logits.square().mean().backward()
                optimizer.step()

        return play(CausalLMPolicy(model, cache_bytes=cache_bytes), starts, between=train)[0]

    assert_same(run(2**30), run(0))


def test_new_weights_in_the_middle_are_recorded_per_id() -> None:
    model, other = make(llama), make(llama, seed=1)
    policy = CausalLMPolicy(model, stop_ids=[])
    starts = prompts(3, low=5)
    tickets = [policy.submit(starts[0], max_tokens=4, seed=0), policy.submit(starts[1], max_tokens=12, seed=1)]
    (first,) = policy.advance()
    assert first[0] == tickets[0]
    policy.update_weights(other.state_dict(), version=7)
    tickets.append(policy.submit(starts[2], max_tokens=2, seed=2))
    done = dict(policy.advance() + policy.advance())
    assert done.keys() == set(tickets[1:])
    long = done[tickets[1]]
    assert long.versions.tolist() == [0] * 4 + [7] * 8
    assert (long.version_start, long.version_end) == (0, 7)
    before = CausalLMPolicy(make(llama), stop_ids=[]).score([starts[1]], [long.ids])[0]
    after = CausalLMPolicy(other, stop_ids=[]).score([starts[1]], [long.ids])[0]
    np.testing.assert_allclose(long.logprobs[:4], before[:4], rtol=0, atol=2e-5)
    np.testing.assert_allclose(long.logprobs[4:], after[4:], rtol=0, atol=2e-5)
    assert np.abs(before - after).max() > 0.1


def test_a_shared_prompt_is_prefilled_once() -> None:
    model, (prompt,) = make(llama), prompts(1, low=30)
    policy = CausalLMPolicy(model, temperature=1.0)
    together = policy.complete([prompt] * 8, max_tokens=[6] * 8, seeds=range(8))
    assert policy.stats.prefilled == len(prompt)
    alone = [
        CausalLMPolicy(model, cache_bytes=0).complete([prompt], max_tokens=[6], seeds=[seed])[0] for seed in range(8)
    ]
    assert_same([together], [alone])
    assert len({tuple(c.ids.tolist()) for c in together}) > 1


def test_a_late_member_of_a_group_reuses_a_running_prompt() -> None:
    model, (prompt,) = make(llama), prompts(1, low=30)
    policy = CausalLMPolicy(model, stop_ids=[], refill=0.0)
    policy.submit(prompt, max_tokens=2, seed=0)
    policy.submit(prompt, max_tokens=20, seed=1)
    policy.advance()
    late = policy.submit(prompt, max_tokens=5, seed=2)
    ((ticket, completion),) = policy.advance()
    assert ticket == late
    assert policy.stats.prefilled == len(prompt) + 1
    expected = CausalLMPolicy(model, stop_ids=[], cache_bytes=0).complete([prompt], max_tokens=[5], seeds=[2])
    assert_same([[completion]], [expected])


def test_forked_episodes_continue_from_one_cache() -> None:
    model, (prompt,) = make(llama), prompts(1, low=30)
    policy = CausalLMPolicy(model)
    (first,) = policy.complete([prompt], max_tokens=[6], seeds=[0])
    forks = [np.concatenate([prompt, first.ids, feedback(row, 9)]) for row in range(3)]
    policy.stats.reset()
    found = policy.complete(forks, max_tokens=[5] * 3, seeds=range(3))
    expected = CausalLMPolicy(model, cache_bytes=0).complete(forks, max_tokens=[5] * 3, seeds=range(3))
    assert_same([found], [expected])
    assert policy.stats.reused == 3 * (len(prompt) + len(first) - 1)


def test_the_buffers_of_one_turn_serve_the_next() -> None:
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    contexts, buffers = prompts(4, low=60, high=70), set()
    for turn in range(4):
        found = policy.complete(contexts, max_tokens=[5] * 4, seeds=range(4))
        contexts = [np.concatenate([c, d.ids, feedback(0, turn)]) for c, d in zip(contexts, found, strict=True)]
        layer: Any = policy._loop._arena.cache.layers[0]
        buffers.add(layer.keys.data_ptr())
    assert len(buffers) == 1


def test_released_contexts_free_their_memory() -> None:
    policy = CausalLMPolicy(make(llama))
    _, contexts = play(policy, prompts(4), turns=2)
    assert policy.cached_bytes > 0
    for context in contexts:
        policy.release(context)
    assert policy.cached_bytes == 0


def test_a_slot_is_refilled_while_others_decode() -> None:
    model, starts = make(llama), prompts(12)
    budgets = [40 if row % 4 == 0 else 4 for row in range(12)]
    policy = CausalLMPolicy(model, stop_ids=[], max_batch_size=4, refill=0.0)
    found = policy.complete(starts, max_tokens=budgets, seeds=range(12))
    expected = CausalLMPolicy(model, stop_ids=[]).complete(starts, max_tokens=budgets, seeds=range(12))
    assert_same([found], [expected])
    # Batches of four with a barrier would take 3 x 40 passes, and no schedule takes fewer than sum / 4.
    assert sum(budgets) / 4 <= policy.stats.decode_passes + policy.stats.prefill_passes < 2 * 40


def test_a_stream_gives_what_a_batch_gives() -> None:
    model, starts = make(llama), prompts(10)
    budgets = [2 + 3 * row for row in range(10)]
    policy = CausalLMPolicy(model, stop_ids=[], max_batch_size=3)
    tickets = [policy.submit(starts[row], max_tokens=budgets[row], seed=row) for row in range(10)]
    found: dict[int, Completion] = {}
    while done := policy.advance():
        found.update(done)
    expected = CausalLMPolicy(model, stop_ids=[], cache_bytes=0).complete(starts, max_tokens=budgets, seeds=range(10))
    assert_same([[found[ticket] for ticket in tickets]], [expected])
    assert policy.advance() == []


def test_a_batch_leaves_a_streams_completions_to_the_stream() -> None:
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    ticket = policy.submit(prompts(1)[0], max_tokens=3, seed=0)
    assert len(policy.complete(prompts(2), max_tokens=[9, 9], seeds=[1, 2])) == 2
    ((found, completion),) = policy.advance()
    assert (found, len(completion)) == (ticket, 3)


def test_a_cancelled_request_is_never_answered() -> None:
    policy = CausalLMPolicy(make(llama), stop_ids=[], max_batch_size=2)
    tickets = [policy.submit(p, max_tokens=5 + row, seed=row) for row, p in enumerate(prompts(4))]
    assert policy.cancel(tickets[3])
    ((first, _),) = policy.advance()
    assert first == tickets[0]
    assert policy.cancel(tickets[1])
    assert not policy.cancel(tickets[0])
    assert [ticket for ticket, _ in policy.advance()] == [tickets[2]]
    assert policy.advance() == []


def test_a_completion_that_nobody_fetched_can_be_cancelled() -> None:
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    ticket = policy.submit(prompts(1)[0], max_tokens=3, seed=0)
    policy.complete(prompts(2), max_tokens=[9, 9], seeds=[1, 2])
    assert policy.cancel(ticket)
    assert policy.advance() == []


def test_an_interrupted_batch_leaves_no_requests_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = CausalLMPolicy(make(llama), stop_ids=[])

    def interrupt(steps: int | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(policy, "_steps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            policy.complete(prompts(3), max_tokens=[4] * 3, seeds=range(3))
    assert policy.advance() == []
    with pytest.raises(InvalidValueError, match=r"seeds\[1\].*-7"):
        policy.complete(prompts(3), max_tokens=[4] * 3, seeds=[0, -7, 1])
    assert policy.advance() == []


def test_contexts_of_different_lengths_move_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their prefills are several passes; the buffers are made for all of them at the first."""
    starts, moves = [*prompts(2, low=120, high=121), *prompts(6, low=20, high=21)], []
    relocate = Arena._relocate

    def watched(*args: Any) -> None:
        moves.append(args[1:])
        relocate(*args)

    monkeypatch.setattr(Arena, "_relocate", watched)
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    policy.complete(starts, max_tokens=[9] * 8, seeds=range(8))
    assert policy.stats.prefill_passes == 2
    assert moves == []


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_k": 8, "top_p": 0.6}, {"top_k": 10**9, "min_p": 0.2}], ids=str)
def test_the_ids_that_could_be_drawn_are_kept(cut: dict[str, Any]) -> None:
    model, contexts = make(llama), prompts(2)
    policy = CausalLMPolicy(model, temperature=0.7, support=True, **cut)
    for context, completion in zip(contexts, policy.complete(contexts, max_tokens=[6, 4], seeds=[0, 1]), strict=True):
        assert completion.support is not None
        ids = np.concatenate([context, completion.ids])
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0, len(context) - 1 : -1]
        allowed = ~policy.sampling.log_distribution(logits).isneginf()
        for row, could in zip(completion.support, allowed, strict=True):
            assert sorted(row[row >= 0].tolist()) == could.nonzero()[:, 0].tolist()
    assert not CausalLMPolicy(model, top_p=0.5, support=True).keeps_support, "without a top_k these may be thousands"
    assert CausalLMPolicy(model, top_k=3).complete(contexts, max_tokens=[2, 2])[0].support is None


def test_raw_logprobs_and_entropies_are_those_of_the_logits() -> None:
    model, starts = make(llama), prompts(4)
    policy = CausalLMPolicy(model, temperature=0.6, top_k=9, raw_logprobs=True, entropies=True)
    for start, completion in zip(starts, policy.complete(starts, max_tokens=[5] * 4, seeds=range(4)), strict=True):
        sequence = torch.from_numpy(np.concatenate([start, completion.ids]))[None]
        with torch.no_grad():
            logits = model(input_ids=sequence).logits[0, len(start) - 1 : -1].double()
        raw = torch.log_softmax(logits, dim=-1)[torch.arange(len(completion)), torch.from_numpy(completion.ids)]
        assert completion.raw_logprobs is not None
        assert completion.entropies is not None
        np.testing.assert_allclose(completion.raw_logprobs, raw, rtol=0, atol=2e-5)
        kept = torch.log_softmax(logits.topk(9).values / 0.6, dim=-1)
        np.testing.assert_allclose(completion.entropies, -(kept.exp() * kept).sum(-1), rtol=0, atol=2e-5)


def out_of_memory_above(model: Any, rows: int) -> None:
    forward = model.forward

    def limited(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    model.forward = limited


def test_out_of_memory_halves_the_batch_once_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    starts = prompts(10)
    expected, _ = play(CausalLMPolicy(make(llama), cache_bytes=0), starts)
    policy = CausalLMPolicy(make(llama))
    out_of_memory_above(policy.model, 5)
    with caplog.at_level(logging.WARNING):
        played, _ = play(policy, starts)
    assert_same(played, expected)
    assert policy.max_batch_size == 5
    assert [record.message for record in caplog.records] == [
        "out of memory with 10 rows: going on with max_batch_size=5"
    ]


def test_out_of_memory_in_the_middle_of_a_completion_loses_nothing() -> None:
    starts, calls = prompts(6), []
    expected = CausalLMPolicy(make(llama), stop_ids=[]).complete(starts, max_tokens=[8] * 6, seeds=range(6))
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    forward = policy.model.forward

    def once(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["input_ids"].shape)
        if len(calls) == 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    policy.model.forward = once
    assert_same([policy.complete(starts, max_tokens=[8] * 6, seeds=range(6))], [expected])
    assert policy.max_batch_size == 3


def test_what_ended_before_memory_ran_out_has_ended() -> None:
    """The long contexts' pass comes first and ends them; the pass of the short ones is too large."""
    starts = prompts(2, low=200, high=201) + prompts(5, low=8, high=9)
    budgets = [1, 1, 6, 6, 6, 6, 6]
    expected = CausalLMPolicy(make(llama), stop_ids=[]).complete(starts, max_tokens=budgets, seeds=range(7))
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    out_of_memory_above(policy.model, 4)
    assert_same([policy.complete(starts, max_tokens=budgets, seeds=range(7))], [expected])
    assert policy.max_batch_size == 3


def test_no_memory_to_keep_a_context_costs_its_cache_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = prompts(3)
    expected = CausalLMPolicy(make(llama)).complete(starts, max_tokens=[4] * 3, seeds=range(3))

    def fail(arena: Arena, row: int, length: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Arena, "take", fail)
    policy = CausalLMPolicy(make(llama))
    assert_same([policy.complete(starts, max_tokens=[4] * 3, seeds=range(3))], [expected])
    assert policy.cached_bytes == 0
    assert policy.max_batch_size is None


def test_memory_that_does_not_suffice_for_half_is_an_error_and_the_policy_survives_it() -> None:
    model = make(llama)
    forward = model.forward
    policy = CausalLMPolicy(model)
    out_of_memory_above(model, 2)
    with pytest.raises(PolicyError, match=r"out of memory with 5 rows.*max_batch_size"):
        policy.complete(prompts(10), max_tokens=[3] * 10, seeds=range(10))
    model.forward = forward
    assert len(policy.complete(prompts(2), max_tokens=[3] * 2, seeds=range(2))) == 2


def test_broken_logits_drop_the_requests_and_their_caches() -> None:
    model = make(llama)
    policy = CausalLMPolicy(model)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    play(policy, prompts(3), turns=1)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    policy.submit(prompts(1)[0], max_tokens=3, seed=0)
    with pytest.raises(PolicyError, match=r"request 3 are not finite at completion id 0 \(version 0\)"):
        policy.advance()
    assert policy.cached_bytes == 0
    policy.update_weights(weights)
    assert policy.advance() == []
    assert_same(
        [policy.complete(prompts(3), max_tokens=[4] * 3, seeds=range(3))],
        [CausalLMPolicy(make(llama)).complete(prompts(3), max_tokens=[4] * 3, seeds=range(3))],
    )


def test_bfloat16_runs_and_stays_near() -> None:
    starts = prompts(4)
    policy = CausalLMPolicy(make(llama), dtype=torch.bfloat16)
    for context, completion in zip(starts, policy.complete(starts, max_tokens=[6] * 4, seeds=range(4)), strict=True):
        (score,) = policy.score([context], [completion.ids])
        np.testing.assert_allclose(completion.logprobs, score, rtol=0, atol=0.5)


def test_recurrent_models_are_refused() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    from mathturn_gym.errors import InvalidValueError

    with pytest.raises(InvalidValueError, match=r"MambaForCausalLM has layers of type.*keeps keys and values"):
        CausalLMPolicy(
            MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)),
            stop_ids=[],
        )


def test_rows_beyond_what_is_free_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Memory for three rows: three decode at once, and each gets the sample that it always gets."""
    asked = [np.concatenate([[3 + row], np.arange(4, 43)]) for row in range(8)]
    expected = CausalLMPolicy(make(llama), stop_ids=[]).complete(asked, max_tokens=[20] * 8, seeds=range(8))
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    each = 60 * policy._runner.bytes_per_id
    monkeypatch.setattr("mathturn_gym.policies.loop._UNASKED", 0)
    monkeypatch.setattr("mathturn_gym.policies.runner.ModelRunner.free_bytes", lambda self: int(3.1 * each / 0.8))
    found = policy.complete(asked, max_tokens=[20] * 8, seeds=range(8))
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
    assert policy.max_batch_size == 3
    assert policy.stats.decode_passes >= 3 * 19
    assert "max_batch_size=3" in caplog.text
    monkeypatch.setattr("mathturn_gym.policies.runner.ModelRunner.free_bytes", lambda self: each // 4)
    policy.drop_caches()
    with pytest.raises(PolicyError, match=r'one context of 60 ids take .*rollout="continuous"'):
        policy.complete(asked[:1], max_tokens=[20], seeds=[0])


def test_the_bytes_of_an_id_are_those_of_its_keys_and_values() -> None:
    policy = CausalLMPolicy(make(llama), stop_ids=[])
    policy.complete([np.arange(3, 10)], max_tokens=[1])
    layers = policy._loop._arena._layers
    rows, columns = policy._loop._arena.rows, policy._loop._arena.columns
    held = sum(tensor.nbytes for layer in layers for tensor in layer.buffers or ())
    assert held == rows * columns * policy._runner.bytes_per_id
    assert (policy._runner.free_bytes() or 1) > 0
