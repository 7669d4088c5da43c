"""Training over turns on one page: environment, sampling, credit per turn, update, in plain PyTorch.

    python examples/one_file.py                                   # linear equations, the built-in model, a minute or two
    python examples/one_file.py --model Qwen/Qwen2.5-0.5B-Instruct --problems gsm8k.jsonl --tokens 256 --lr 1e-6 --batch 32

It does what `mathturn train lins` does, without its trainer, its generation engine and its losses. What is used of the
package is the environment (`gym.make`) and nothing else. Read it from top to bottom.

The algorithm is REINFORCE with a baseline per turn and PPO's clipping:

    advantage of turn k  =  reward of turn k  -  running mean of the rewards of k-th turns      (divided by their spread)
    loss                 =  -min(ratio * advantage, clip(ratio) * advantage) - entropy weight * entropy, mean over tokens

A turn is judged by its own reward alone (discount 0): on these problems nothing said in one turn helps in the next. With
feedback that informs (`--problems guess8 --feedback hint`) set `--discount 1`, and a turn is also worth what follows.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer

import mathturn_gym  # noqa: F401 - registers the environments
from mathturn_gym.policies import BUILTIN_PATH

# ---- one episode: what the policy saw and said, as one row of ids


@dataclass
class Episode:
    """Ids grow by appending. A mask made in the same step says which of them the policy said, and in which turn."""

    ids: list[int]
    turn_of: list[int]
    """-1 for prompt and feedback, which are never trained on; k for ids said in turn k."""
    logprobs: list[float]
    """What each id had when it was sampled; 0 where `turn_of` is -1."""
    rewards: list[float] = field(default_factory=list)
    solved: list[bool] = field(default_factory=list)


# ---- sampling


@torch.no_grad()
def sample(model: Any, contexts: list[list[int]], budgets: list[int], ends: set[int], temperature: float = 1.0) -> Any:
    """Continues each context by one completion, all of them at once.

    Contexts are padded on the left, so that every row's next id stands in the same column. The cache of keys and values
    makes a step cost one id per row.

    Returns:
        A list of ids and a list of their log-probs for each context. The id that ends a turn belongs to the completion.
    """
    device, rows, longest = model.device, len(contexts), max(map(len, contexts))
    ids = torch.zeros(rows, longest, dtype=torch.long, device=device)
    mask = torch.zeros(rows, longest, dtype=torch.long, device=device)
    for row, context in enumerate(contexts):
        ids[row, longest - len(context) :] = torch.tensor(context)
        mask[row, longest - len(context) :] = 1
    positions, cache = (mask.cumsum(-1) - 1).clamp(min=0), None
    said: list[list[int]] = [[] for _ in contexts]
    scores: list[list[float]] = [[] for _ in contexts]
    running = [budget > 0 for budget in budgets]
    while any(running):
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logprobs = log_softmax(out.logits[:, -1].float() / temperature, dim=-1)
        drawn = torch.multinomial(logprobs.exp(), 1)
        chosen = logprobs.gather(1, drawn)
        for row, (token, score) in enumerate(zip(drawn[:, 0].tolist(), chosen[:, 0].tolist(), strict=True)):
            if running[row]:
                said[row].append(token)
                scores[row].append(score)
                running[row] = token not in ends and len(said[row]) < budgets[row]
        ids, positions = drawn, positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
    return said, scores


# ---- playing


def play(envs: list[Any], model: Any, ends: set[int], seeds: list[int] | None = None) -> list[Episode]:
    """One episode in each environment; every turn is sampled for all that still run.

    What the environment returns is what was there before, then the action, then the feedback: the policy's own ids are
    never decoded and encoded again.
    """
    episodes, budgets = [], []
    for i, env in enumerate(envs):
        observation, info = env.reset(seed=None if seeds is None else seeds[i])
        length = len(observation)
        episodes.append(Episode(observation.tolist(), [-1] * length, [0.0] * length))
        budgets.append(info["completion_budget"])
    running = list(range(len(envs)))
    while running:
        said, scores = sample(model, [episodes[i].ids for i in running], [budgets[i] for i in running], ends)
        still = []
        for i, completion, logprobs in zip(running, said, scores, strict=True):
            episode = episodes[i]
            observation, reward, terminated, truncated, info = envs[i].step(np.array(completion, np.int64))
            feedback = len(observation) - len(episode.ids) - len(completion)
            episode.ids = observation.tolist()
            episode.turn_of += [len(episode.rewards)] * len(completion) + [-1] * feedback
            episode.logprobs += logprobs + [0.0] * feedback
            episode.rewards.append(float(reward))
            episode.solved.append(info["verdict"].correct)
            budgets[i] = info["completion_budget"]
            if not (terminated or truncated):
                still.append(i)
        running = still
    return episodes


def accuracy(episodes: list[Episode], turns: int) -> float:
    """Share of episodes that are solved within so many turns."""
    return float(np.mean([any(episode.solved[:turns]) for episode in episodes]))


# ---- credit


class Baseline:
    """A running mean of the returns of each turn, and of their squared distance from it.

    The mean is over earlier iterations only: a baseline that depends on the action that it judges would bias the gradient.
    """

    def __init__(self, turns: int, decay: float = 0.9) -> None:
        self.mean, self.square, self.decay = [math.nan] * turns, math.nan, decay

    def advantages(self, episodes: list[Episode], discount: float) -> list[list[float]]:
        """An advantage for each turn of each episode."""
        returns = []
        for episode in episodes:
            following, found = 0.0, []
            for reward in reversed(episode.rewards):
                following = reward + discount * following
                found.append(following)
            returns.append(found[::-1])
        before = list(self.mean)
        for k in range(len(self.mean)):
            of_turn = [r[k] for r in returns if len(r) > k]
            if of_turn:
                now = float(np.mean(of_turn))
                before[k] = now if math.isnan(before[k]) else before[k]
                self.mean[k] = self.decay * before[k] + (1 - self.decay) * now
        centered = [[value - before[k] for k, value in enumerate(r)] for r in returns]
        now = float(np.mean([value**2 for row in centered for value in row]))
        earlier = now if math.isnan(self.square) else self.square
        self.square = self.decay * earlier + (1 - self.decay) * now
        # The larger of the two spreads: one success in a batch of failures must not become an advantage of any size.
        spread = math.sqrt(max(now, earlier)) or 1.0
        return [[value / spread for value in row] for row in centered]


# ---- update


def batch_of(episodes: list[Episode], advantages: list[list[float]], device: Any) -> dict[str, torch.Tensor]:
    """Episodes as padded rows; every trained id carries the advantage of its turn."""
    width = max(len(episode.ids) for episode in episodes)
    batch = {name: torch.zeros(len(episodes), width) for name in ("advantages", "old", "trained", "attention")}
    batch["ids"] = torch.zeros(len(episodes), width, dtype=torch.long)
    for row, (episode, worth) in enumerate(zip(episodes, advantages, strict=True)):
        length = len(episode.ids)
        batch["ids"][row, :length] = torch.tensor(episode.ids)
        batch["attention"][row, :length] = 1
        batch["trained"][row, :length] = torch.tensor([float(k >= 0) for k in episode.turn_of])
        batch["old"][row, :length] = torch.tensor(episode.logprobs)
        batch["advantages"][row, :length] = torch.tensor([worth[k] if k >= 0 else 0.0 for k in episode.turn_of])
    return {name: tensor.to(device) for name, tensor in batch.items()}


def loss_of(model: Any, batch: dict[str, torch.Tensor], clip: float, entropy_weight: float) -> torch.Tensor:
    """The clipped objective with an entropy bonus, as a mean over the trained ids."""
    logits = model(batch["ids"], attention_mask=batch["attention"].long(), use_cache=False).logits[:, :-1].float()
    logprobs = log_softmax(logits, dim=-1)
    # The logits of position t say what stands at t + 1.
    new = logprobs.gather(-1, batch["ids"][:, 1:, None])[..., 0]
    trained, advantages = batch["trained"][:, 1:], batch["advantages"][:, 1:]
    ratio = ((new - batch["old"][:, 1:]) * trained).exp()
    objective = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return -((objective + entropy_weight * entropy) * trained).sum() / trained.sum().clamp(min=1)


# ---- the loop


def train(args: argparse.Namespace) -> list[dict[str, float]]:
    """Trains, evaluates on validation problems as it goes, and returns a row for each evaluation."""
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = str(BUILTIN_PATH) if args.model == "builtin" else args.model
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, trust_remote_code=False)
    model.to(device)

    def environments(split: str, count: int) -> list[Any]:
        made = [
            gym.make(
                "MathMultiTurnUntilCorrect-v0",
                problems=f"{args.problems}:{split}",
                tokenizer=tokenizer,
                num_turns=args.turns,
                max_completion_tokens=args.tokens,
                feedback=args.feedback,
            )
            for _ in range(count)
        ]
        for i, env in enumerate(made):  # one stream of problems for each; later resets go on in it
            env.reset(seed=args.seed * 1_000_003 + i)
        return made

    training, validation = environments("train", args.batch), environments("validation", args.evaluated)
    ends = set(training[0].unwrapped.dialogue.end_of_turn)
    # eps=1e-5: ids that are hardly ever sampled have tiny gradients, and 1e-8 would move their embeddings as far as others.
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.0)
    baseline, history, used = Baseline(args.turns), [], 0.0
    for iteration in range(args.iterations + 1):
        if iteration % args.every == 0 or iteration == args.iterations:
            model.eval()
            found = play(validation, model, ends, seeds=list(range(args.evaluated)))
            row = {"episodes": float(iteration * args.batch), "cpu_s": used}
            row |= {f"acc@{k}": accuracy(found, k) for k in (1, args.turns)}
            history.append(row)
            print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
        if iteration == args.iterations:
            break
        begun = time.process_time()
        for group in optimizer.param_groups:  # ten iterations of warm-up, then down to a tenth
            group["lr"] = args.lr * min(1.0, (iteration + 1) / 10) * (1 - 0.9 * iteration / args.iterations)
        model.eval()
        episodes = play(training, model, ends)
        advantages = baseline.advantages(episodes, args.discount)
        model.train()
        for _ in range(args.epochs):
            for part in np.array_split(rng.permutation(len(episodes)), args.minibatches):
                batch = batch_of([episodes[i] for i in part], [advantages[i] for i in part], device)
                optimizer.zero_grad()
                loss: Any = loss_of(model, batch, args.clip, args.entropy_weight)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        used += time.process_time() - begun
    for env in [*training, *validation]:
        env.close()
    if args.out is not None:
        model.save_pretrained(args.out)
        tokenizer.save_pretrained(args.out)
        (args.out / "history.json").write_text(json.dumps(history))
        draw(history, args.out / "curve.png", args.turns)
    return history


def draw(history: list[dict[str, float]], path: Path, turns: int) -> None:
    """The share of validation problems solved at the first turn and within all turns, over episodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in ("acc@1", f"acc@{turns}"):
        axes.plot([row["episodes"] for row in history], [row[name] for row in history], marker="o", label=name)
    axes.set(xlabel="training episodes", ylabel="validation problems solved", ylim=(0, 1))
    axes.legend()
    figure.savefig(str(path))


def arguments() -> argparse.ArgumentParser:
    """The options; their defaults are those of `mathturn train lins`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin", help="a folder, a name on the hub, or builtin")
    parser.add_argument("--problems", default="lins", help="a family, or a file")
    parser.add_argument("--feedback", default="plain")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8, help="of a completion, at most")
    parser.add_argument("--iterations", type=int, default=118)
    parser.add_argument("--batch", type=int, default=128, help="episodes of an iteration")
    parser.add_argument("--minibatches", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--entropy-weight", type=float, default=0.005)
    parser.add_argument("--discount", type=float, default=0.0, help="per turn")
    parser.add_argument("--evaluated", type=int, default=256, help="validation episodes")
    parser.add_argument("--every", type=int, default=20, help="iterations between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for the model and its curve")
    return parser


if __name__ == "__main__":
    train(arguments().parse_args())
