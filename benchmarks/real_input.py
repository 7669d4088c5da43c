"""Real problems and a real vocabulary, end to end: `mathturn eval` over the 1,319 GSM8K test problems.

    python benchmarks/real_input.py [--gsm8k FILE] [--tokenizer FOLDER] [--episodes N] [--out runs/benchmarks/real_input]

Once with the built-in tiny policy, and once with a randomly initialized Qwen2-style model under the Qwen2.5 tokenizer.
Neither has read a word problem in its life: an accuracy near zero is right. What is shown is that everything runs,
that it is reported, and what ended each episode.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from mathturn_gym.cli.app import app

SHARED = Path(__file__).resolve().parents[2] / "shared"


def make_random_qwen2(folder: Path, tokenizer_path: Path) -> Path:
    """A two-layer Qwen2 with random weights and the real vocabulary (embedding rows padded as the real ones are)."""
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, trust_remote_code=False)
        config = Qwen2Config(
            vocab_size=151936,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        Qwen2ForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def evaluate(policy: str, problems: Path, episodes: int | None, out: Path) -> dict[str, object]:
    """Runs the command and returns its report."""
    args = ["eval", "--policy", policy, "--problems", str(problems), "--num-turns", "3", "--overwrite"]
    args += ["--max-completion-tokens", "32", "--num-envs", "64", "--out", str(out)]
    start = time.perf_counter()
    app([*args, *([] if episodes is None else ["--episodes", str(episodes)])], standalone_mode=False)
    report: dict[str, object] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return {**report, "seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, default=SHARED / "data" / "gsm8k_test.jsonl")
    parser.add_argument("--tokenizer", type=Path, default=SHARED / "golden" / "real" / "tokenizers" / "qwen2.5")
    parser.add_argument("--episodes", type=int, default=None, help="fewer than all, for a quick look")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/real_input"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    qwen = make_random_qwen2(args.out / "random_qwen2", args.tokenizer)
    reports = {
        name: evaluate(policy, args.gsm8k, args.episodes, args.out / name)
        for name, policy in (("tiny", "builtin"), ("random_qwen2_eval", str(qwen)))
    }
    (args.out / "real_input.json").write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
