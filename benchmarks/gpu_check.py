"""What a GPU makes of every path from sampling to the update: `make gpu-check`, 15 minutes at most, JSON.

    python benchmarks/gpu_check.py [--paths local continuous …] [--tiny] [--out runs/gpu_check.json]

Each path is a short run of `train` on random weights of Qwen2.5-0.5B's shape (nothing is downloaded):

* local: the package's own loop. autocast: the same under bfloat16. lora: an adapter around bfloat16 weights.
* continuous: transformers' continuous batching on the trained weights, also with one batch ahead (ahead).
* vllm: vLLM in the process, which sleeps during updates. A path whose library is missing says so.

Rows have sampled tokens per second of rollouts, seconds of an update and of a hand-over of weights, how far the engine's
log-probs are from the trainer's, and the peak of the GPU's memory. The first iteration warms up and is not counted. Without a
GPU it says what it would run; `--tiny` runs all of it on any machine with a model of two layers, to see that it works.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from mathturn_gym.baselines.tasks import load_task
from mathturn_gym.baselines.trainer import Trainer
from mathturn_gym.errors import MathTurnError
from mathturn_gym.testing import make_tokenizer

PATHS: Final[Mapping[str, Mapping[str, Any]]] = {
    "local": {},
    "autocast": {"precision": "bfloat16"},
    "lora": {"policy.dtype": "bfloat16", "policy.lora": {"r": 16}},
    "continuous": {"policy.rollout": "continuous"},
    "ahead": {"policy.rollout": "continuous", "max_staleness": 1},
    "vllm": {"policy.rollout": "vllm:"},
}
NEEDS: Final = {"vllm": "vllm", "lora": "peft"}
SHAPES: Final = {
    "qwen2.5-0.5b": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
}
SIZES: Final = {
    "qwen2.5-0.5b": {"batch_episodes": 128, "env.max_completion_tokens": 512},
    "tiny": {"batch_episodes": 8, "env.max_completion_tokens": 8},
}


def write_model(folder: Path, shape: str) -> None:
    """Writes a model of random weights and a tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    make: Any = Qwen2Config
    torch.manual_seed(0)
    Qwen2ForCausalLM(make(**SHAPES[shape], tie_word_embeddings=True, eos_token_id=2)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def settings_of(path: str, shape: str, model: Path, device: str) -> dict[str, Any]:
    """The settings of a path's run."""
    found: dict[str, Any] = {
        "policy.model": str(model),
        "minibatches": 1,
        "epochs": 1,
        "evaluation.episodes": 0,
        "env.num_turns": 2,
        "micro_batch_tokens": 16384,
        "recompute_logprobs": True,
        **SIZES[shape],
        **PATHS[path],
    }
    if path == "vllm":
        on_gpu = {"enable_sleep_mode": True, "gpu_memory_utilization": 0.5}
        found["policy.rollout_options"] = on_gpu if device == "cuda" else {"enforce_eager": True}
    return found


def run(path: str, shape: str, model: Path, iterations: int) -> dict[str, Any]:
    """Runs a path, and returns its row."""
    needed = NEEDS.get(path)
    if needed is not None and importlib.util.find_spec(needed) is None:
        return {"path": path, "skipped": f"{needed} is not installed"}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = load_task("lins").config(settings=settings_of(path, shape, model, device), budget={"episodes": 10**6})
    began = time.perf_counter()
    try:
        trainer = Trainer(config)
        try:
            rows = []
            for iteration in range(iterations + 1):
                if iteration == 1 and device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                before = trainer.tokens
                rows.append({**trainer.step(), "sampled": trainer.tokens - before})
        finally:
            trainer.close()
    except (MathTurnError, RuntimeError) as error:  # one path that fails is a result, and the others go on
        return {"path": path, "failed": f"{type(error).__name__}: {error}"}

    def median(name: str) -> float | None:
        values = [row[name] for row in rows[1:] if name in row]
        return statistics.median(values) if values else None

    return {
        "path": path,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "sampled_tokens_per_s": statistics.median(row["sampled"] / row["time/rollout_s"] for row in rows[1:]),
        "update_s": median("time/update_s"),
        "hand_over_s": median("train/sync_s"),
        "mismatch_mean": median("train/mismatch_mean"),
        "mismatch_max": max(row.get("train/mismatch_max", 0.0) for row in rows[1:]),
        "peak_gpu_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "seconds": time.perf_counter() - began,
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs what was asked for, prints it and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", nargs="*", choices=PATHS, default=list(PATHS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args(arguments)
    shape = "tiny" if chosen.tiny else "qwen2.5-0.5b"
    found: dict[str, Any] = {"shape": shape, "torch": torch.__version__, "gpu": torch.cuda.is_available()}
    if not torch.cuda.is_available() and not chosen.tiny:
        found["would_run"] = {path: settings_of(path, shape, Path("MODEL"), "cuda") for path in chosen.paths}
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), shape)
            found["rows"] = [run(path, shape, Path(folder), chosen.iterations) for path in chosen.paths]
    text = json.dumps(found, indent=2)
    print(text)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(text + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
