"""Tokens and seconds of one update in each layout, and the speed and memory of packing itself.

    python benchmarks/packing.py [--out runs/packing.json] [--repeats 3] [--only updates|tree|speed] [--device cuda]

Three parts, every figure a ratio within the run:

* updates: 5 turns, group 8, prompt 200, each completion 400: "episode" and "tree" against "turns";
* tree: group 8, prompt 800, 2 turns of 200: "tree" against "episode";
* speed: 100,000 episodes packed, against a plain Python loop over tokens, and its peak memory against the tensors made.

An update is forward, loss and backward of a small random Llama, in micro-batches of the same number of tokens.
Everything is timed in turns, on one thread and in processor seconds (on a GPU: by the clock), so that what else the
machine does weighs little; updates by their median, packing by its best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mathturn_gym.episodes.losses import policy_loss, token_logprobs
from mathturn_gym.episodes.packing import PackedBatch, micro_batches, model_inputs, pack
from mathturn_gym.episodes.packing.batch import LAYOUTS, Form, Layout
from mathturn_gym.episodes.returns import advantages
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode

VOCAB = 512


def small_model(device: str) -> Any:
    torch.manual_seed(0)
    config: Any = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
    )
    model: Any = LlamaForCausalLM(config)
    return model.to(device)


def group_of(size: int, prompt: int, completion: int, turns: int, feedback: int = 10) -> list[Episode]:
    return [
        synthetic_episode(0, i, [completion] * turns, prompt=prompt, feedback=feedback, group="g", vocab_size=VOCAB)
        for i in range(size)
    ]


def update(model: Any, parts: list[PackedBatch], tokens: int) -> float:
    """Seconds of one update; gradients are left on the model."""
    # One thread: processor seconds are what an idle machine's clock would show. A GPU's work shows on the clock only.
    on_gpu = parts[0].device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    started = clock()
    model.zero_grad(set_to_none=True)
    for part in parts:
        logprobs, _ = token_logprobs(model(**model_inputs(part), use_cache=False).logits, part)
        policy_loss(logprobs, part, denominator=tokens).loss.backward()  # type: ignore[no-untyped-call]
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - started


def compare(
    episodes: list[Episode], layouts: list[Layout], repeats: int, max_tokens: int, device: str
) -> dict[str, Any]:
    """Tokens, median seconds and gradient of each layout; all but the first as ratios to the first."""
    model = small_model(device)
    batches = {layout: pack(episodes, layout, device=device) for layout in layouts}
    parts = {layout: micro_batches(batch, max_tokens=max_tokens) for layout, batch in batches.items()}
    seconds: dict[str, list[float]] = {layout: [] for layout in layouts}
    gradients: dict[str, torch.Tensor] = {}
    for repeat in range(repeats + 1):  # the first warms up
        for layout in layouts:
            taken = update(model, parts[layout], batches[layout].count("token"))
            gradients[layout] = torch.cat([p.grad.flatten() for p in model.parameters()])
            if repeat:
                seconds[layout].append(taken)
    first = layouts[0]
    result: dict[str, Any] = {}
    for layout in layouts:
        median = statistics.median(seconds[layout])
        result[layout] = {
            "tokens": batches[layout].num_tokens,
            "seconds": median,
            "tokens_ratio": batches[layout].num_tokens / batches[first].num_tokens,
            "seconds_ratio": median / statistics.median(seconds[first]),
            "micro_batches": len(parts[layout]),
            "gradient_difference": float((gradients[layout] - gradients[first]).norm() / gradients[first].norm()),
        }
    return result


def loop_pack(episodes: list[Episode], given: list[np.ndarray[Any, Any]], *, lists: bool) -> dict[str, list[list[Any]]]:
    """Packing as one would write it first: a loop over the tokens of each episode's arrays.

    With `lists` the arrays are turned into lists beforehand, which is the same loop tuned.
    """
    columns: dict[str, list[list[Any]]] = {
        name: []
        for name in (
            "input_ids",
            "loss_mask",
            "behavior_logprobs",
            "advantages",
            "returns",
            "rewards",
            "versions",
            "turn_index",
            "position_ids",
        )
    }
    for episode, own in zip(episodes, given, strict=True):
        rows: dict[str, list[Any]] = {name: [] for name in columns}
        source: Any = (
            (episode.ids.tolist(), episode.logprobs.tolist(), episode.versions.tolist(), episode.rewards.tolist())
            if lists
            else (episode.ids, episode.logprobs, episode.versions, episode.rewards)
        )
        ids, logprobs, versions, rewards = source
        spans, values = (episode.turn_spans.tolist(), own.tolist()) if lists else (episode.turn_spans, own)
        returns, running = [0.0] * len(rewards), 0.0
        for k in reversed(range(len(rewards))):
            running = rewards[k] + running
            returns[k] = running
        turn = 0
        for position in range(len(ids)):
            while turn < len(spans) and position >= spans[turn][1]:
                turn += 1
            inside = turn < len(spans) and bool(position >= spans[turn][0])
            rows["input_ids"].append(int(ids[position]))
            rows["loss_mask"].append(inside)
            rows["behavior_logprobs"].append(float(logprobs[position]))
            rows["advantages"].append(float(values[turn]) if inside else 0.0)
            rows["returns"].append(float(returns[turn]) if inside else 0.0)
            rows["rewards"].append(float(rewards[turn]) if inside else 0.0)
            rows["versions"].append(int(versions[position]))
            rows["turn_index"].append(turn if inside else -1)
            rows["position_ids"].append(position)
        for name, row in rows.items():
            columns[name].append(row)
    return columns


def loop_batch(
    episodes: list[Episode], given: list[np.ndarray[Any, Any]], like: PackedBatch, *, lists: bool
) -> dict[str, torch.Tensor]:
    """The loop's rows as varlen tensors of the same dtypes."""
    columns = loop_pack(episodes, given, lists=lists)
    return {
        name: torch.tensor([[value for row in rows for value in row]], dtype=getattr(like, name).dtype)
        for name, rows in columns.items()
    }


def speed(count: int, sample: int, repeats: int) -> dict[str, Any]:
    """`pack` of `count` episodes against the loops on a `sample` of them, all varlen, and peak memory over tensors."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 70, size=(count, 3)).tolist()
    episodes = [
        synthetic_episode(0, i, row, prompt=40, feedback=8, group=str(i // 8), vocab_size=VOCAB)
        for i, row in enumerate(lengths)
    ]
    given = advantages(episodes)
    results: dict[str, Any] = {"episodes": count, "loop_sample": sample}
    forms: list[tuple[Layout, Form]] = [
        ("episode", "varlen"),
        ("episode", "padded"),
        ("turns", "varlen"),
        ("tree", "varlen"),
    ]
    head = pack(episodes[:sample], form="varlen", advantages=given[:sample], discount=1.0)
    loops = {True: float("inf"), False: float("inf")}
    times = dict.fromkeys(forms, float("inf"))
    for _ in range(repeats):  # in turns, and the best of each: whatever else the machine does hits all of them
        for lists in loops:
            took = timed(lambda lists=lists: loop_batch(episodes[:sample], given[:sample], head, lists=lists))  # type: ignore[misc]
            loops[lists] = min(loops[lists], took)
        for layout, form in forms:
            took = timed(lambda layout=layout, form=form: pack(episodes, layout, form=form, advantages=given))  # type: ignore[misc]
            times[layout, form] = min(times[layout, form], took)
    for layout, form in forms:
        tracemalloc.start()
        batch = pack(episodes, layout, form=form, advantages=given)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        made = sum(tensor.numel() * tensor.element_size() for tensor in batch.tensors().values())
        results[f"{layout}/{form}"] = {
            "seconds": times[layout, form],
            "tokens": batch.num_tokens,
            "tensor_bytes": made,
            "peak_bytes": peak,
            "peak_over_tensors": peak / made,
        }
    for lists in loops:
        for name, tensor in loop_batch(episodes[:sample], given[:sample], head, lists=lists).items():
            assert torch.equal(tensor, getattr(head, name)), name
    # The loop is linear in tokens: its time on the sample, scaled, is at most its time on everything.
    scale = results["episode/varlen"]["tokens"] / head.num_tokens
    for name, lists in (("loop", False), ("loop_over_lists", True)):
        results[name] = loops[lists] * scale
        results[f"{name}_ratio"] = results[name] / results["episode/varlen"]["seconds"]
    return results


def timed(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def show(title: str, result: dict[str, Any]) -> None:
    print(f"\n{title}")
    print(f"{'layout':10}{'tokens':>9}{'ratio':>8}{'seconds':>10}{'ratio':>8}{'parts':>7}{'gradient':>11}")
    for layout, row in result.items():
        print(
            f"{layout:10}{row['tokens']:9d}{row['tokens_ratio']:8.3f}{row['seconds']:10.3f}{row['seconds_ratio']:8.3f}"
            f"{row['micro_batches']:7d}{row['gradient_difference']:11.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/packing.json"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=["updates", "tree", "speed"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {"device": options.device}
    if options.only in (None, "updates"):
        episodes = group_of(8, 200, 400, 5)
        layouts: list[Layout] = ["turns", *(layout for layout in LAYOUTS if layout != "turns")]
        record["updates"] = compare(episodes, layouts, options.repeats, 20_000, options.device)
        show("5 turns, group 8, prompt 200, completion 400 (against turns)", record["updates"])
    if options.only in (None, "tree"):
        episodes = group_of(8, 800, 200, 2)
        record["tree"] = compare(episodes, ["episode", "tree"], options.repeats, 20_000, options.device)
        show("2 turns, group 8, prompt 800, completion 200 (against episode)", record["tree"])
    if options.only in (None, "speed"):
        record["speed"] = speed(options.episodes, min(options.episodes, 2_000), options.repeats)
        speeds = record["speed"]
        print(
            f"\npacking {options.episodes} episodes, against a Python loop over tokens (scaled from {speeds['loop_sample']}):"
        )
        for name in ("loop", "loop_over_lists"):
            print(f"{name:16}{speeds[name]:8.2f} s, {speeds[f'{name}_ratio']:.1f} x the time of episode/varlen")
        for name, row in record["speed"].items():
            if isinstance(row, dict):
                print(
                    f"{name:16}{row['tokens']:10d} tokens{row['seconds']:8.2f} s{row['tensor_bytes'] / 2**20:8.0f} MiB"
                    f"  peak memory {row['peak_over_tensors']:.2f} x the tensors"
                )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
