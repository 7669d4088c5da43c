"""TRL's GRPOTrainer with an advantage per turn: the shortest script that trains a model on this environment.

On a CPU, with the built-in model (130,000 parameters, a warm start on linear equations), about four minutes:

    pip install '.[trl]'
    python examples/trl_turn_grpo.py --out runs/trl

Eight GPUs, one of which serves vLLM to the seven that train:

    CUDA_VISIBLE_DEVICES=7 trl vllm-serve --model Qwen/Qwen2.5-1.5B-Instruct --max-model-len 8192 &
    CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 accelerate launch --num_processes 7 --mixed_precision bf16 \
        examples/trl_turn_grpo.py --model Qwen/Qwen2.5-1.5B-Instruct --problems linear@1+quadratic@1+primes --vllm server \
        --num-turns 4 --max-completion-tokens 1024 --learning-rate 1e-6 --batch 28 --group 4 --out runs/trl-1.5b

or, with vLLM beside the trainer on every GPU:

    accelerate launch --num_processes 8 --mixed_precision bf16 examples/trl_turn_grpo.py \
        --model Qwen/Qwen2.5-1.5B-Instruct --problems linear@1+quadratic@1+primes --vllm colocate \
        --num-turns 4 --max-completion-tokens 1024 --learning-rate 1e-6 --batch 32 --group 4 --out runs/trl-1.5b

A run that was interrupted goes on from its last checkpoint when the command is given again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is announced as experimental

import gymnasium as gym
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig

from mathturn_gym import collect
from mathturn_gym.episodes.metrics import summarize
from mathturn_gym.neighbors.trl import TurnLevelGRPOTrainer, TurnRollout
from mathturn_gym.policies import BUILTIN_PATH
from mathturn_gym.wrappers import CausalLMPolicy


def main() -> None:
    """See the module."""
    args = arguments()
    model = AutoModelForCausalLM.from_pretrained(args.model)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    rollout = TurnRollout(
        num_turns=args.num_turns, max_completion_tokens=args.max_completion_tokens, discount=args.discount
    )
    trainer = TurnLevelGRPOTrainer(
        model,
        grpo_config(args),
        rollout.dataset(args.problems, args.size),
        rollout=rollout,
        processing_class=tokenizer,
        scale_advantages=True,
    )
    before = evaluate(trainer, args)
    checkpoint: Any = get_last_checkpoint(args.out) if Path(args.out).is_dir() else None  # type: ignore[no-untyped-call]
    trainer.train(resume_from_checkpoint=checkpoint)
    after = evaluate(trainer, args)
    if trainer.accelerator.is_main_process:
        report = {"settings": vars(args), "steps": trainer.state.global_step, "before": before, "after": after}
        Path(args.out).mkdir(parents=True, exist_ok=True)
        (Path(args.out) / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(report, indent=2))


def grpo_config(args: argparse.Namespace) -> GRPOConfig:
    """TRL's settings: `batch` episodes are played, and learned from in `minibatches` parts, twice."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    on_gpu = args.model != str(BUILTIN_PATH)
    return GRPOConfig(
        output_dir=args.out,
        seed=args.seed,
        max_steps=args.steps,
        num_generations=args.group,
        per_device_train_batch_size=args.batch // processes // args.minibatches,
        steps_per_generation=args.minibatches,
        num_iterations=2,
        max_completion_length=args.num_turns * (args.max_completion_tokens + 64),
        loss_type="bnpo",  # the mean over sampled ids, as our own trainers have it
        epsilon=0.2,
        beta=0.0,
        entropy_coef=args.entropy,
        learning_rate=args.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.2},
        warmup_steps=args.steps // 20,
        adam_beta2=0.95,
        adam_epsilon=1e-5,
        max_grad_norm=1.0,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=on_gpu,
        use_vllm=args.vllm is not None,
        vllm_mode=args.vllm or "colocate",
        report_to=[],
        save_strategy="steps",
        save_steps=max(1, args.steps // 4),
        save_total_limit=1,
        logging_steps=max(1, args.steps // 20),
        disable_tqdm=True,
    )


def evaluate(trainer: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Accuracy by turn on problems that are never trained on, with its interval; in the main process, with its model."""
    if not (args.eval_episodes and trainer.accelerator.is_main_process):
        return {}
    model = trainer.accelerator.unwrap_model(trainer.model)
    policy = CausalLMPolicy(model, trainer.processing_class, stop_ids=trainer.eos_token_ids)
    env = gym.make_vec(
        "MathMultiTurnUntilCorrect-v0",
        num_envs=128,
        problems=args.test_problems or f"{args.problems}:test",
        tokenizer=trainer.processing_class,
        num_turns=args.num_turns,
        max_completion_tokens=args.max_completion_tokens,
    )
    report = summarize(collect(env, policy, args.eval_episodes, seed=1), by=())
    return {
        name: [report[name].value, report[name].low, report[name].high] for name in ("acc@1", f"acc@{args.num_turns}")
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", default=str(BUILTIN_PATH))
    parser.add_argument("--problems", default="lins")
    parser.add_argument("--test-problems", help="where it is not PROBLEMS:test")
    parser.add_argument("--size", type=int, default=600, help="different problems to train on")
    parser.add_argument("--num-turns", type=int, default=4)
    parser.add_argument("--max-completion-tokens", type=int, default=8)
    parser.add_argument("--discount", type=float, default=0.0)
    parser.add_argument("--group", type=int, default=2, help="episodes per problem")
    parser.add_argument("--batch", type=int, default=128, help="episodes played at once, on all processes together")
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3200, help="gradient steps")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--entropy", type=float, default=0.005)
    parser.add_argument("--eval-episodes", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vllm", choices=["server", "colocate"])
    parser.add_argument("--out", default="runs/trl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
