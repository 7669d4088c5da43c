"""The warm start: the built-in tokenizer and a checkpoint that has the format, and a little arithmetic, from nothing.

Supervised learning on dialogues that the program writes itself, on the train splits only. The checkpoint is *meant* to
be weak: it answers in the right format, solves about four in ten linear equations at the first try, and guesses hidden
numbers blindly, so that what reinforcement learning adds can be seen.

    equations, sums   question ─► right answer; a quarter of them after one to three wrong ones, which bear no loss
    hidden numbers    question ─► any digit ─► feedback ─► any digit …, hints or not: the format, and nothing of use
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mathturn_gym.baselines.process import cpu_threads, no_progress_bars
from mathturn_gym.baselines.tiny import make_tiny_model, train_tokenizer
from mathturn_gym.dialogue import Dialogue
from mathturn_gym.errors import InvalidValueError, check_float, check_int
from mathturn_gym.feedback import WRONG_TEXT
from mathturn_gym.problems import ProblemSource, load_problems
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Ids, Problem

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["WarmupProgress", "warmup", "warmup_dialogue"]

MIXTURE: Final = (("lins", 0.70), ("add1", 0.15), ("guess8", 0.15))
RETRY_SHARE: Final = 0.25
MAX_WRONG: Final = 3
GUESSES: Final = 3


@dataclass(frozen=True, slots=True)
class WarmupProgress:
    """What `warmup` reports after each step.

    Args:
        step: From 1.
        steps: Of how many.
        loss: Mean negative log-likelihood per trained id, nats.
    """

    step: int
    steps: int
    loss: float


def warmup(
    output_dir: str | Path,
    *,
    seed: int = 0,
    steps: int = 330,
    batch_size: int = 32,
    learning_rate: float = 4e-3,
    on_progress: Callable[[WarmupProgress], None] | None = None,
) -> Path:
    """Trains the tokenizer and the warm-start checkpoint from nothing, and writes them as a Hugging Face folder.

    The defaults make the checkpoint that travels with the package; on one machine, the same file each time.

    Args:
        output_dir: Folder to write; it must not exist yet, or be empty.
        seed: Determines initial weights and dialogues.
        steps: Gradient steps.
        batch_size: Dialogues per step.
        learning_rate: AdamW's, after a linear rise over the first tenth and before a linear fall to zero.
        on_progress: Called after each step.

    Returns:
        The folder.

    Raises:
        InvalidValueError: a value outside its range; the folder holds something already.
    """
    check_int("steps", steps, low=1)
    check_int("batch_size", batch_size, low=1)
    check_float("learning_rate", learning_rate, low=0.0)
    path = Path(output_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidValueError(f"output_dir {str(path)!r} exists and is not an empty folder; choose another")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    model = make_tiny_model(tokenizer, seed=derive_seed("init", seed) % 2**32)
    with cpu_threads(1):
        _fit(model, Dialogue(tokenizer), seed, steps, batch_size, learning_rate, on_progress)
    with no_progress_bars(), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
        # Written beside and moved, so that an interrupted run leaves no half-written folder.
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        # It would be applied by `generate`, and says nothing that config.json does not.
        (Path(scratch) / "generation_config.json").unlink()
        path.mkdir(exist_ok=True)
        for file in sorted(Path(scratch).iterdir()):
            shutil.copyfile(file, path / file.name)
    return path


def warmup_dialogue(
    rng: np.random.Generator, dialogue: Dialogue, sources: Sequence[ProblemSource]
) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """One dialogue of the warm start.

    Args:
        rng: Determines it.
        dialogue: Of the tokenizer.
        sources: One per entry of `MIXTURE`.

    Returns:
        Ids, int64 (T,), and the loss mask, bool (T,): True on the answers to be learned, end-of-turn ids included.
    """
    kind = int(rng.choice(len(MIXTURE), p=[share for _, share in MIXTURE]))
    problem = sources[kind].get(int(rng.integers(2**31)), 0)
    write = _blind_guesses if MIXTURE[kind][0].startswith("guess") else _wrong_then_right
    turns = write(rng, problem)
    ids = [dialogue.prompt_ids(problem.prompt)]
    mask = [np.zeros(len(ids[0]), np.bool_)]
    end = np.array([dialogue.tokenizer.eos_token_id], np.int64)
    for turn, (answer, feedback, learned) in enumerate(turns):
        said = np.concatenate([np.array(dialogue.tokenizer.encode(f"\\boxed{{{answer}}}"), np.int64), end])
        ids.append(said)
        mask.append(np.full(len(said), learned))
        if turn < len(turns) - 1:
            ids.append(dialogue.feedback_ids(feedback, turn, said))
            mask.append(np.zeros(len(ids[-1]), np.bool_))
    return np.concatenate(ids), np.concatenate(mask)


def _wrong_then_right(rng: np.random.Generator, problem: Problem) -> list[tuple[int, str, bool]]:
    """(answer, feedback, learned) by turn: wrong answers are shown and bear no loss, the last is right."""
    wrong = int(rng.integers(1, MAX_WRONG + 1)) if rng.random() < RETRY_SHARE else 0
    gold = int(problem.gold[0])
    others = [digit for digit in range(10) if digit != gold]
    tried = rng.choice(others, size=wrong)
    return [*((int(answer), WRONG_TEXT, False) for answer in tried), (gold, "", True)]


def _blind_guesses(rng: np.random.Generator, problem: Problem) -> list[tuple[int, str, bool]]:
    """(answer, feedback, learned) by turn: any digit, whatever the feedback says - and it says anything."""
    hints = ("", *(f" Hint: {hint}" for hint in (*problem.hints, *problem.false_hints)))
    return [(int(rng.integers(10)), WRONG_TEXT + str(rng.choice(hints)), True) for _ in range(GUESSES)]


def _fit(
    model: PreTrainedModel,
    dialogue: Dialogue,
    seed: int,
    steps: int,
    batch_size: int,
    learning_rate: float,
    on_progress: Callable[[WarmupProgress], None] | None,
) -> None:
    """AdamW on the masked next-id loss."""
    import torch

    sources = [load_problems(f"{name}:train") for name, _ in MIXTURE]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    rise = max(1, steps // 10)
    model.train()
    for step in range(steps):
        rng = np.random.Generator(np.random.Philox(key=derive_seed("warmup", seed, step)))
        batch = [warmup_dialogue(rng, dialogue, sources) for _ in range(batch_size)]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min((step + 1) / rise, (steps - step) / (steps - rise + 1))
        loss = _masked_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if on_progress is not None:
            on_progress(WarmupProgress(step + 1, steps, float(loss.detach())))
    model.eval()  # type: ignore[no-untyped-call]


def _masked_loss(model: PreTrainedModel, batch: list[tuple[Ids, npt.NDArray[np.bool_]]]) -> torch.Tensor:
    """Mean cross-entropy over the learned ids, a scalar with gradient."""
    import torch

    length = max(len(ids) for ids, _ in batch)
    ids_BT = torch.zeros(len(batch), length, dtype=torch.int64)
    mask_BT = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, (ids, mask) in enumerate(batch):
        ids_BT[row, : len(ids)] = torch.from_numpy(ids)
        mask_BT[row, : len(ids)] = torch.from_numpy(mask)
    # Padding stands on the right, where a causal model never looks: no attention mask is needed.
    hidden_BTD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    # Only the positions that predict a learned id are projected to the vocabulary.
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits_NV = head(hidden_BTD[:, :-1][mask_BT[:, 1:]])
    return torch.nn.functional.cross_entropy(logits_NV, ids_BT[:, 1:][mask_BT[:, 1:]])
