"""What a multi-turn policy costs, as ratios to what one would do without it, and how exact it is.

    python benchmarks/generation.py [--sections cache loop …] [--repeats 1]      # --help lists the sections

Every ratio is of CPU seconds (wall seconds on a GPU) of alternatives that take turns in one process, medians over
`--repeats`. The model is a random Llama of 30M parameters, the batch 16 rows, torch has one thread. Sections:
`cache` (turns with kept caches / turns prefilled anew), `loop` (ours / `model.generate` in one call on equal tokens),
`stream` (a barrier per turn / episodes that go on by themselves, long-tailed lengths), `library` (transformers' own
continuous batching / ours, single turn), `precision` (log-probs / an independent float64 computation), `share`
(environment and rollout code / the whole of `collect`), `vocabulary` (real vocabularies: sampling / a decode step,
ours / generate, matrix products / an update), `bfloat16` (SmolLM2: bfloat16 / float32, of reading prompts and of
decoding), `iteration` (where the time of an iteration of `mathturn train smol-add2` goes), `gpu` (a Qwen2 of 0.5B shape
in bfloat16).
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import transformers

import mathturn_gym  # noqa: F401 - registers the ids
from mathturn_gym.base.model_folders import models_folder
from mathturn_gym.baselines import load_task
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.episodes.losses import policy_loss, trained_logprobs
from mathturn_gym.episodes.packing import pack, unpack
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.policies import trained_logits
from mathturn_gym.policies.sampling import Sampling, entropy
from mathturn_gym.policies.scoring import use_row_attention
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Completion, Ids
from mathturn_gym.wrappers.policy import CausalLMPolicy

ROWS, VOCAB = 16, 8192
LIMITS = {
    "cache: 4 x 256 tokens": 0.75,
    "cache: 5 x 32 tokens over 512": 0.35,
    "cache: 5 x 32 tokens over 512, 2 kv heads": 0.35,
    "loop: ours / generate": 1.10,
    "precision: log-probs": 1e-5,
    "precision: ratio - 1": 1e-5,
    "share: outside the policy": 0.03,
}
AT_LEAST = {"stream: barrier / stream": 1.5}


def llama(kv_heads: int = 8, intermediate: int = 1408) -> Any:
    """A random Llama of 30M parameters; with fewer `kv_heads` than 8, query heads share keys and values."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=512,
        intermediate_size=intermediate,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    return model.eval()


def prompts(count: int, length: int, vocab: int = VOCAB) -> list[Ids]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, vocab, size=length) for _ in range(count)]


def medians(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """CPU seconds of each, in turn, so that a slow moment of the machine hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            began = time.process_time()
            action()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def play(policy: CausalLMPolicy, prompt: int, turns: int, size: int, feedback: int) -> Iterator[list[Completion]]:
    """`turns` completions of `size` ids each, with `feedback` ids in between."""
    rng, contexts = np.random.default_rng(1), prompts(ROWS, prompt)
    for turn in range(turns):
        found = policy.complete(contexts, max_tokens=[size] * ROWS, seeds=[turn * ROWS + b for b in range(ROWS)])
        contexts = [
            np.concatenate([context, completion.ids, rng.integers(3, VOCAB, size=feedback)])
            for context, completion in zip(contexts, found, strict=True)
        ]
        yield found


def cache(model: Any, repeats: int) -> dict[str, float]:
    """Models whose query heads share keys and values (Llama 3, Qwen, Gemma) read four times less to attend in a step."""
    figures: dict[str, float] = {}
    for name, (played, prompt, turns, size, feedback) in {
        "5 x 32 tokens over 512": (model, 512, 5, 32, 20),
        "5 x 32 tokens over 512, 2 kv heads": (llama(2, 1664), 512, 5, 32, 20),
        "4 x 256 tokens": (model, 128, 4, 256, 16),
    }.items():
        policies = {
            label: CausalLMPolicy(played, temperature=0, stop_ids=[], cache_bytes=budget)
            for label, budget in (("kept", 2**32), ("anew", 0))
        }
        seconds: dict[str, list[float]] = {label: [0.0] * repeats for label in policies}
        pairs: list[tuple[Completion, Completion]] = []
        for repeat in range(repeats):
            players = {label: play(policy, prompt, turns, size, feedback) for label, policy in policies.items()}
            policies["kept"].drop_caches()
            policies["kept"].stats.reset()
            for _ in range(turns):  # turn about, so that a slow moment of the machine hits both alike
                found = {}
                for label, player in players.items():
                    began = time.process_time()
                    found[label] = next(player)
                    seconds[label][repeat] += time.process_time() - began
                pairs += zip(found["kept"], found["anew"], strict=True)
        kept, anew = (statistics.median(seconds[label]) for label in ("kept", "anew"))
        expected = ROWS * (prompt + (turns - 1) * (feedback + 1))
        figures |= {
            f"cache: {name}": kept / anew,
            f"{name}: seconds kept": kept,
            f"{name}: seconds anew": anew,
            f"{name}: same greedy ids": float(np.mean([np.array_equal(a.ids, b.ids) for a, b in pairs])),
            f"{name}: log-probs differ by": float(max(np.abs(a.logprobs - b.logprobs).max() for a, b in pairs)),
            f"{name}: prefilled / (prompt + feedback)": policies["kept"].stats.prefilled / expected,
        }
    return figures


def loop(model: Any, repeats: int) -> dict[str, float]:
    size, contexts = 128, prompts(ROWS, 128)
    policy = CausalLMPolicy(model, stop_ids=[], cache_bytes=0)
    ids = torch.from_numpy(np.stack(contexts))
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": size, "min_new_tokens": size, "eos_token_id": None}
    seconds = medians(
        {
            "ours": lambda: policy.complete(contexts, max_tokens=[size] * ROWS, seeds=range(ROWS)),
            "generate": lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **settings),
        },
        max(2, repeats),
    )
    return {"loop: ours / generate": seconds["ours"] / seconds["generate"], "generate: seconds": seconds["generate"]}


def long_tailed(count: int) -> list[int]:
    """Lengths of completions: log-normal, median 20, 1 to 200."""
    return np.clip(np.random.default_rng(2).lognormal(3.0, 1.0, size=count), 1, 200).astype(int).tolist()  # type: ignore[no-any-return]


def stream(model: Any, repeats: int) -> dict[str, float]:
    turns, episodes = 3, 4 * ROWS
    lengths = np.reshape(long_tailed(turns * episodes), (episodes, turns)).tolist()
    starts = prompts(episodes, 32)
    feedback = np.arange(3, 19)

    def barrier() -> None:
        policy = CausalLMPolicy(model, stop_ids=[])
        for first in range(0, episodes, ROWS):
            contexts = starts[first : first + ROWS]
            for turn in range(turns):
                budgets = [lengths[first + b][turn] for b in range(ROWS)]
                found = policy.complete(contexts, max_tokens=budgets, seeds=range(ROWS))
                contexts = [np.concatenate([c, d.ids, feedback]) for c, d in zip(contexts, found, strict=True)]

    def streamed() -> None:
        policy = CausalLMPolicy(model, stop_ids=[], max_batch_size=ROWS)
        running = {
            policy.submit(starts[i], max_tokens=lengths[i][0], seed=i): (i, 0, starts[i]) for i in range(episodes)
        }
        while running:
            for ticket, completion in policy.advance():
                i, turn, context = running.pop(ticket)
                if turn + 1 < turns:
                    context = np.concatenate([context, completion.ids, feedback])
                    ticket = policy.submit(context, max_tokens=lengths[i][turn + 1], seed=i)
                    running[ticket] = i, turn + 1, context

    seconds = medians({"barrier": barrier, "stream": streamed}, repeats)
    tokens = int(np.sum(lengths))
    return {
        "stream: barrier / stream": seconds["barrier"] / seconds["stream"],
        "stream: tokens per CPU second": tokens / seconds["stream"],
        "barrier: tokens per CPU second": tokens / seconds["barrier"],
    }


def library(model: Any, repeats: int) -> dict[str, float]:
    """Single-turn requests of long-tailed lengths: what transformers' own loop can do as well."""
    count = 2 * ROWS
    lengths, contexts = long_tailed(count), prompts(count, 32)
    policy = CausalLMPolicy(model, stop_ids=[], max_batch_size=ROWS, cache_bytes=0)

    def theirs() -> None:
        settings: Any = transformers.GenerationConfig
        config = settings(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=200)
        manager = model.init_continuous_batching(generation_config=config)
        manager.start()
        try:
            for row in range(count):
                manager.add_request(contexts[row].tolist(), max_new_tokens=lengths[row])
            found = 0
            while found < count:
                result = manager.get_result(timeout=600)
                if result is None:
                    raise RuntimeError("transformers' continuous batching gave no result")
                if result.is_finished():
                    found += 1
        finally:
            manager.stop(block=True)

    seconds = medians(
        {"ours": lambda: policy.complete(contexts, max_tokens=lengths, seeds=range(count)), "theirs": theirs}, repeats
    )
    return {"library: transformers / ours": seconds["theirs"] / seconds["ours"], "ours: seconds": seconds["ours"]}


def processed(logits_V: torch.Tensor, temperature: float, top_p: float, top_k: int) -> torch.Tensor:
    """Temperature, top-k and top-p written out once more, in float64."""
    logits_V = logits_V.double() / temperature
    order = torch.argsort(logits_V, descending=True, stable=True)[: top_k or None]
    probs = torch.softmax(logits_V[order], dim=-1)
    kept = order[(torch.cumsum(probs, dim=-1) - probs) < top_p]
    found = torch.full_like(logits_V, -torch.inf)
    found[kept] = torch.log_softmax(logits_V[kept], dim=-1)
    return found


def precision(model: Any, repeats: int) -> dict[str, float]:
    """Against the model's own float32 logits, processed in float64: what sampling adds; and after packing."""
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 200}
    policy = CausalLMPolicy(model, stop_ids=[], **sampling)  # type: ignore[arg-type]
    contexts, worst = prompts(8, 48), 0.0
    found = policy.complete(contexts, max_tokens=[32] * 8, seeds=range(8))
    for context, completion in zip(contexts, found, strict=True):
        ids = torch.from_numpy(np.concatenate([context, completion.ids]))[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        for k, chosen in enumerate(completion.ids.tolist()):
            expected = processed(logits[len(context) + k - 1], **sampling)[chosen]  # type: ignore[arg-type]
            worst = max(worst, abs(float(completion.logprobs[k]) - float(expected)))
    env = gym.make_vec("MathMultiTurn-v0", num_envs=8, num_turns=3, max_completion_tokens=24)
    player = CausalLMPolicy(model, Dialogue("builtin").tokenizer, temperature=0.8)
    batch = pack(unpack(pack(collect(env, player, 8))))
    scores = player.logprobs(batch)
    ratio = (scores.double() - batch.behavior_logprobs.double()).exp()[batch.loss_mask]
    return {"precision: log-probs": worst, "precision: ratio - 1": float((ratio - 1).abs().max())}


class Timed:
    """A streaming policy whose own CPU time is taken."""

    def __init__(self, policy: CausalLMPolicy) -> None:
        self.seconds = 0.0
        self.complete, self.cancel = self._timed(policy.complete), self._timed(policy.cancel)
        self.submit, self.advance = self._timed(policy.submit), self._timed(policy.advance)
        self.release = self._timed(policy.release)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        return timed


def share(model: Any, repeats: int) -> dict[str, float]:
    env = gym.make_vec("MathMultiTurn-v0", num_envs=ROWS, num_turns=3, max_completion_tokens=64)
    policy = CausalLMPolicy(model, Dialogue("builtin").tokenizer)
    inside, outside = [], []
    for repeat in range(repeats):
        timed, began = Timed(policy), time.process_time()
        collect(env, timed, ROWS, seed=repeat)
        inside.append(timed.seconds)
        outside.append(time.process_time() - began - timed.seconds)
    return {
        "share: outside the policy": statistics.median(outside)
        / (statistics.median(inside) + statistics.median(outside)),
        "share: seconds inside": statistics.median(inside),
    }


def real_models() -> Iterator[tuple[str, Any]]:
    """SmolLM2 where it was fetched, and random weights in the shape of Qwen2.5-0.5B."""
    folder = models_folder() / "smollm2"
    if folder.is_dir():
        model_class = transformers.AutoModelForCausalLM
        smollm2 = model_class.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        yield "SmolLM2, 49,152 rows", smollm2
    yield "Qwen2.5-0.5B's shape, 151,936 rows", qwen_shape()


def qwen_shape() -> Any:
    """Random weights in the shape of Qwen2.5-0.5B."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    return transformers.Qwen2ForCausalLM(config)


def vocabulary(model: Any, repeats: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, real in real_models():
        real.eval()
        for rows in (1, 16, 64):
            found |= {f"{name}, batch {rows}: {what}": value for what, value in decoding(real, rows, repeats).items()}
        found[f"{name}: matrix products / update"] = products_of_an_update(real)
    return found


def decoding(model: Any, rows: int, repeats: int, size: int = 16) -> dict[str, float]:
    """Share of sampling in a decode step, and our time for equal tokens in units of `generate`'s."""
    vocab = model.config.vocab_size
    contexts = prompts(rows, 32, vocab)
    policy = CausalLMPolicy(model, stop_ids=[], cache_bytes=0)
    ids, sampling = torch.from_numpy(np.stack(contexts)), Sampling()
    logits_BV = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0))
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": size, "min_new_tokens": size, "eos_token_id": None}

    def sample() -> None:
        for _ in range(size):
            dist_BV = sampling.log_distribution(logits_BV)
            sampling.draw(dist_BV, torch.full((rows,), 0.5, dtype=torch.float64))
            entropy(dist_BV)

    seconds = medians(
        {
            "ours": lambda: policy.complete(contexts, max_tokens=[size] * rows, seeds=range(rows)),
            "generate": lambda: model.generate(ids, attention_mask=torch.ones_like(ids), **settings),
            "sampling": sample,
        },
        repeats,
    )
    return {
        "ours / generate": seconds["ours"] / seconds["generate"],
        "sampling / ours": seconds["sampling"] / seconds["ours"],
    }


def products_of_an_update(model: Any) -> float:
    """Share of an update's time that its matrix products take: forward, loss and backward of 16 two-turn dialogues."""
    vocab = model.config.vocab_size
    batch = pack(
        [synthetic_episode(0, i, [8, 8], prompt=40, feedback=20, vocab_size=vocab) for i in range(16)],
        advantages=[[1.0, -1.0]] * 16,
    )
    use_row_attention(model)

    def update() -> None:
        logprobs, _ = trained_logprobs(trained_logits(model, batch).float(), batch, entropy_graph=False)
        policy_loss(logprobs, batch).loss.backward()  # type: ignore[no-untyped-call]

    update()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        update()
    spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    return float(sum(spent.get(f"aten::{name}", 0.0) for name in ("mm", "addmm", "bmm")) / sum(spent.values()))


def bfloat16(model: Any, repeats: int) -> dict[str, float]:
    """What weights in bfloat16 cost in units of float32, prompts and sampled ids apart; needs SmolLM2."""
    found: dict[str, float] = {}
    folder, size, model_class = models_folder() / "smollm2", 12, transformers.AutoModelForCausalLM
    for rows, context in ((32, 300), (128, 50)) if folder.is_dir() else ():
        seconds: dict[torch.dtype, tuple[float, float]] = {}
        for dtype in (torch.float32, torch.bfloat16):
            loaded: Any = model_class.from_pretrained(folder, dtype=dtype, trust_remote_code=False)
            policy = CausalLMPolicy(loaded.eval(), stop_ids=[], cache_bytes=0)
            contexts = prompts(rows, context, loaded.config.vocab_size)
            complete = functools.partial(policy.complete, contexts, seeds=range(rows))
            actions = {str(n): functools.partial(complete, max_tokens=[n] * rows) for n in (1, size)}
            took = medians(dict(actions), repeats)
            seconds[dtype] = took["1"], (took[str(size)] - took["1"]) / (size - 1)
            found[f"{rows} rows of {context}, {dtype}: tokens decoded per CPU second"] = rows / seconds[dtype][1]
        for at, what in enumerate(("prompts", "decoding")):
            ratio = seconds[torch.bfloat16][at] / seconds[torch.float32][at]
            found[f"{rows} rows of {context}: bfloat16 / float32, {what}"] = ratio
    return found


PARTS = {
    "matrix products": ("mm", "addmm", "bmm"),
    "attention": ("_scaled_dot_product",),
    "distributions over the vocabulary": (
        "_log_softmax",
        "_softmax",
        "logsumexp",
        "exp",
        "gather",
        "cumsum",
        "multinomial",
    ),
    "conversions": ("copy_", "_to_copy", "to", "cat", "index"),
    "optimizer": ("_fused_adam", "_foreach", "norm", "linalg_vector_norm"),
}
"""Operations of torch by what they are for, by the beginnings of their names; the first that fits counts."""


def iteration(model: Any, repeats: int) -> dict[str, float]:
    """Shares of the time of one iteration of `smol-add2`, sampled and learned from as in training; needs SmolLM2."""
    if not (models_folder() / "smollm2").is_dir():
        print("iteration: SmolLM2 is not here; `mathturn models get smollm2` fetches it")
        return {}
    quiet = {"threads": 1, "evaluation.every": 0, "evaluation.episodes": 0, "evaluation.test_episodes": 0}
    trainer = Trainer(load_task("smol-add2").config(settings=quiet))
    try:
        trainer.step()
        torch.set_num_threads(1)
        seconds: dict[str, float] = {}
        figures: dict[str, float] = {}
        with profiled("rollout", seconds, figures):
            episodes = trainer.play()
        with profiled("update", seconds, figures):
            trainer._update_policy(trainer.credit(episodes), 1e-5)
    finally:
        trainer.close()
    figures["iteration: rollout / update"] = seconds["rollout"] / seconds["update"]
    figures["iteration: update / its matrix products"] = 1 / figures["iteration: update, matrix products"]
    figures |= {f"iteration: {name}, CPU seconds": value for name, value in seconds.items()}
    return figures


@contextmanager
def profiled(name: str, seconds: dict[str, float], figures: dict[str, float]) -> Iterator[None]:
    """Enters the CPU seconds of what happens inside, and the shares of its parts."""
    began = time.process_time()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield
    seconds[name] = time.process_time() - began
    spent = dict.fromkeys(PARTS, 0.0) | {"other operations": 0.0}
    for event in profile.key_averages():
        key = event.key.removeprefix("aten::")
        fits = (part for part, beginnings in PARTS.items() if key.startswith(beginnings))
        spent[next(fits, "other operations")] += event.self_cpu_time_total / 1e6
    inside = sum(spent.values())
    for part, value in spent.items():
        figures[f"iteration: {name}, {part}"] = value / max(seconds[name], inside)
    figures[f"iteration: {name}, outside torch"] = max(0.0, 1 - inside / seconds[name])


def gpu(model: Any, repeats: int) -> dict[str, float]:
    """A Qwen2 of 0.5B shape in bfloat16: wall seconds, tokens per second, time outside the model, memory."""
    if not torch.cuda.is_available():
        return {}
    qwen = qwen_shape().to("cuda", torch.bfloat16).eval()
    figures: dict[str, float] = {}
    forward, inside = qwen.forward, [0.0]

    def timed(*args: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()
        began = time.perf_counter()
        out = forward(*args, **kwargs)
        torch.cuda.synchronize()
        inside[0] += time.perf_counter() - began
        return out

    for name, size in (("kept", 2**34), ("anew", 0)):
        policy = CausalLMPolicy(qwen, stop_ids=[], cache_bytes=size)
        list(play(policy, 512, 2, 8, 20))
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        list(play(policy, 512, 4, 256, 20))
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        figures[f"gpu {name}: tokens per second"] = ROWS * 4 * 256 / seconds
        figures[f"gpu {name}: peak memory, GiB"] = torch.cuda.max_memory_allocated() / 2**30
    qwen.forward, inside[0] = timed, 0.0
    began = time.perf_counter()
    list(play(CausalLMPolicy(qwen, stop_ids=[]), 512, 2, 128, 20))
    figures["gpu: share outside the model"] = 1 - inside[0] / (time.perf_counter() - began)
    return figures


SECTIONS: dict[str, Callable[[Any, int], dict[str, float]]] = {
    "precision": precision,
    "share": share,
    "loop": loop,
    "stream": stream,
    "library": library,
    "cache": cache,
    "vocabulary": vocabulary,
    "bfloat16": bfloat16,
    "iteration": iteration,
    "gpu": gpu,
}


def report(figures: dict[str, float]) -> None:
    for name, value in figures.items():
        verdict = ""
        if name in LIMITS:
            verdict = f"(at most {LIMITS[name]:g}) {'ok' if value <= LIMITS[name] else 'OVER'}"
        if name in AT_LEAST:
            verdict = f"(at least {AT_LEAST[name]:g}) {'ok' if value >= AT_LEAST[name] else 'UNDER'}"
        print(f"{name:55} {value:12.4g}  {verdict}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/generation.json"))
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = llama()
    figures: dict[str, float] = json.loads(args.out.read_text())["figures"] if args.out.exists() else {}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for section in args.sections:
        found = SECTIONS[section](model, args.repeats)
        report(found)
        figures |= found
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        versions["transformers"] = transformers.__version__
        args.out.write_text(json.dumps({"figures": figures, "limits": LIMITS | AT_LEAST, **versions}, indent=2) + "\n")


if __name__ == "__main__":
    main()
