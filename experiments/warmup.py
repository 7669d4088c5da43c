r"""The warm start: trains a tokenizer and a checkpoint that knows the answer format and a little arithmetic.

    python experiments/warmup.py FOLDER [--recipe tiny|world|calculator] [--seed 0] [--steps N] [--episodes 256]

The defaults make the checkpoint that travels with the package, in a minute on one CPU core. The folder is a Hugging Face
one: give it to `mathturn eval --policy` or `mathturn train --set policy.model=FOLDER`. Ctrl-C leaves no folder behind.

Supervised learning on dialogues that the program writes itself, on the train splits only, by a recipe. The checkpoints
are *meant* to be weak, so that the gain of reinforcement learning is visible: they answer in the right format, and about
four in ten problems rightly at the first try.

    problems         question ─► right answer; some of them after one to three wrong ones, which bear no loss
    calculations     the same, and some answers write down what they are of: 154+382=\boxed{536}
    hidden numbers   question ─► any digit ─► feedback ─► any digit …, hints or not: the format, and nothing of use
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from tiny import PHRASES, TINY_SHAPE, Shape, make_tiny_model, train_tokenizer

from mathturn_gym.base.model_folders import no_progress_bars
from mathturn_gym.baselines.session import cpu_threads
from mathturn_gym.env.config import EnvConfig
from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.env.feedback._registry import RIGHT_TEXT, WRONG_TEXT, get_feedback
from mathturn_gym.episodes.metrics import Estimate, summarize
from mathturn_gym.episodes.rollout import collect
from mathturn_gym.errors import InvalidValueError, MissingDependencyError, check_float, check_int, raise_unknown_name
from mathturn_gym.problems import ProblemSource, load_problems
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Ids, Policy, Problem, Status, TurnContext, Verdict
from mathturn_gym.wrappers.policy import CausalLMPolicy

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

WRONG_ANSWERS: Final = ("digits", "golds")
OPTIMIZERS: Final = ("adamw", "muon")


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of problem in a warm start.

    Args:
        problems: Name of a source (see `load_problems`) without its split. Names that begin with "guess" are hidden
            numbers, which are guessed blindly; all others are answered.
        share: Its share of the dialogues, above 0.

    Raises:
        InvalidValueError: a share that is none, or a name with a split in it.
    """

    problems: str
    share: float

    def __post_init__(self) -> None:
        """Refuses a split: training is on the train splits, and evaluation on the others."""
        if ":" in self.problems or "+" in self.problems:
            raise InvalidValueError(f"problems must be the name of one source without a split, got {self.problems!r}")
        if check_float("share", self.share, low=0.0) == 0.0:
            raise InvalidValueError(f"share of {self.problems!r} must be above 0; leave the part out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    r"""Everything that determines a warm start, except the seed.

    Args:
        parts: Kinds of problems; their shares add up to 1.
        phrases: Texts that become one token each (see `train_tokenizer`).
        shape: Size of the model.
        retry_share: Share of the dialogues in which wrong answers come before the right one.
        wrong_answers: Where the wrong answers before a retry come from: "digits" are the other digits (all answers are
            digits), "golds" are right answers to other problems of the same kind.
        most_wrong: The most wrong answers before a right one.
        feedback: Mode of the feedback on wrong answers, as an environment's.
        calculations: Share of the right answers that write down what they are of, as `154+382=\boxed{536}`; half of the
            wrong ones do, which bear no loss. Then all problems are like "What is 154+382?".
        steps: Gradient steps.
        batch_size: Dialogues per step.
        groups: A batch is cut by length into this many parts, to be padded apart: retries are long, and few.
        optimizer: "adamw", or "muon" for the matrices inside the layers, with AdamW for the rest.
        learning_rate: The highest.

    Raises:
        InvalidValueError: a value outside its range; the field is named.
    """

    parts: tuple[Part, ...]
    phrases: tuple[str, ...]
    shape: Shape
    retry_share: float
    wrong_answers: str
    steps: int
    batch_size: int
    groups: int
    optimizer: str
    learning_rate: float
    most_wrong: int = 3
    feedback: str = "plain"
    calculations: float = 0.0

    def __post_init__(self) -> None:
        """Checks the fields."""
        for name in ("steps", "batch_size", "groups", "most_wrong"):
            check_int(name, getattr(self, name), low=1)
        check_float("learning_rate", self.learning_rate, low=0.0)
        for name in ("retry_share", "calculations"):
            check_float(name, getattr(self, name), low=0.0, high=1.0)
        get_feedback(self.feedback)
        if self.groups > self.batch_size:
            raise InvalidValueError(f"groups ({self.groups}) exceed batch_size ({self.batch_size})")
        for name, known in (("wrong_answers", WRONG_ANSWERS), ("optimizer", OPTIMIZERS)):
            if getattr(self, name) not in known:
                raise_unknown_name(name, getattr(self, name), known)
        if abs(sum(part.share for part in self.parts) - 1.0) > 1e-9:
            raise InvalidValueError(f"shares of parts must add up to 1, got {[part.share for part in self.parts]}")

    @property
    def problems(self) -> tuple[str, ...]:
        """Names of the parts' sources, without splits."""
        return tuple(part.problems for part in self.parts)


TINY: Final = Recipe(
    parts=(Part("lins", 0.70), Part("add1", 0.15), Part("guess8", 0.15)),
    phrases=PHRASES,
    shape=TINY_SHAPE,
    retry_share=0.25,
    wrong_answers="digits",
    steps=330,
    batch_size=32,
    groups=1,
    optimizer="adamw",
    learning_rate=4e-3,
)
"""The built-in warm start."""

_DIALOGUE: Final = ("system\n", "user\n", "assistant\n", "\\boxed{", RIGHT_TEXT, WRONG_TEXT)

_WORDING: Final = (
    *_DIALOGUE,
    "What is ",
    "?",
    "Solve ",
    " for x.",
    "Solve for x: ",
    ". Give the exact value of x.",
    "How many positive whole numbers x satisfy ",
    "What is the remainder when ",
    " is divided by ",
    "What is the greatest common divisor of ",
    " and ",
    "Multiply: ",
    " + ",
    " - ",
    " * ",
    " = ",
    " < ",
    " <= ",
)

WORLD: Final = Recipe(
    parts=(
        Part("add2", 0.18),
        Part("lins", 0.09),
        Part("linear@1", 0.15),
        Part("inequalities@1", 0.14),
        Part("modular@1", 0.15),
        Part("gcd-lcm@1", 0.14),
        Part("multiplication@1", 0.15),
    ),
    phrases=_WORDING,
    shape=Shape(width=192, layers=2, heads=4, feedforward=576),
    retry_share=0.15,
    wrong_answers="golds",
    steps=800,
    batch_size=64,
    groups=4,
    optimizer="muon",
    learning_rate=6e-3,
)
"""The small world: seven families."""

CALCULATOR: Final = Recipe(
    parts=(Part("add3", 1.0),),
    phrases=(
        *_DIALOGUE,
        " A calculator says ",
        " There is no calculation in your response that a calculator could repeat.",
        "What is ",
        " = ",
    ),
    shape=TINY_SHAPE,
    retry_share=0.7,
    wrong_answers="golds",
    most_wrong=1,
    feedback="tool",
    calculations=0.25,
    steps=600,
    batch_size=32,
    groups=2,
    optimizer="muon",
    learning_rate=4e-3,
)
"""Sums of three digits, which the policy cannot compute, with a calculator in the feedback.

The policy asks for the calculator in a quarter of its answers and can read the value off the feedback. Asking earns nothing
in its own turn and the right answer in the next.
"""

RECIPES: Final[Mapping[str, Recipe]] = {"tiny": TINY, "world": WORLD, "calculator": CALCULATOR}
"""By name."""


def recipe_named(name: str) -> Recipe:
    """The recipe of this name.

    Raises:
        InvalidValueError: unknown name (the nearest is suggested).
    """
    if name not in RECIPES:
        raise_unknown_name("recipe", name, RECIPES)
    return RECIPES[name]


GUESSES: Final = 3
WRONG_CALCULATIONS: Final = 0.5
_QUESTION: Final = re.compile(r"What is ([-+*/\d]+)\?")
_WRONG: Final = Verdict(Status.WRONG)


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
    recipe: Recipe = TINY,
    *,
    seed: int = 0,
    on_progress: Callable[[WarmupProgress], None] | None = None,
    **changes: Any,
) -> Path:
    """Trains a tokenizer and a warm-start checkpoint from nothing, and writes them as a Hugging Face folder.

    The defaults make the checkpoint that travels with the package; on one machine, the same file each time. The
    learning rate rises linearly over the first tenth of the steps, and falls linearly to zero over the others.

    Args:
        output_dir: Folder to write; it must not exist yet, or be empty.
        recipe: What is trained, on what.
        seed: Determines initial weights and dialogues.
        on_progress: Called after each step.
        **changes: Fields of the recipe, e.g. `steps=100`.

    Returns:
        The folder.

    Raises:
        InvalidValueError: a value outside its range; the folder holds something already.
        MissingDependencyError: the recipe's optimizer is not in this version of torch.
    """
    recipe = dataclasses.replace(recipe, **changes)
    path = Path(output_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidValueError(f"output_dir {str(path)!r} exists and is not an empty folder; choose another")
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe.phrases)
    model = make_tiny_model(tokenizer, recipe.shape, seed=derive_seed("init", seed) % 2**32)
    with cpu_threads(1):
        _fit(model, Dialogue(tokenizer), recipe, seed, on_progress)
    with no_progress_bars(), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
        # Written beside and moved at once, so that an interrupted run leaves no half-written folder.
        whole = Path(scratch) / path.name
        whole.mkdir()
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        # It would be applied by `generate`, and says nothing that config.json does not.
        (whole / "generation_config.json").unlink()
        if path.exists():  # an empty folder: not every system moves onto one
            path.rmdir()
        whole.rename(path)
    return path


def first_try_accuracy(
    policy: Policy, recipe: Recipe, split: str = "validation", *, episodes: int = 256, seed: int = 0
) -> dict[str, Estimate]:
    """Accuracy of the first answer on each part of a recipe, with intervals.

    Args:
        policy: With a tokenizer of its own (`policy.tokenizer`), e.g. a `CausalLMPolicy` of what `warmup` wrote.
        recipe: Whose problems are played.
        split: "train", "validation" or "test".
        episodes: Per part, one answer each.
        seed: Decides problems and samples.

    Returns:
        By the name of the part's problems.
    """
    found = {}
    for name in recipe.problems:
        config = EnvConfig(problems=name, test=split, num_turns=1, max_completion_tokens=8)
        env: Any = config.make("test", min(episodes, 128), policy=policy)
        with closing(env):
            found[name] = summarize(collect(env, policy, episodes, seed=seed), by=())["acc@1"]
    return found


def warmup_dialogue(
    rng: np.random.Generator, dialogue: Dialogue, recipe: Recipe, sources: Sequence[ProblemSource]
) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """One dialogue of the warm start.

    Args:
        rng: Determines it.
        dialogue: Of the tokenizer.
        recipe: What is trained.
        sources: One per part of the recipe.

    Returns:
        Ids, int64 (T,), and the loss mask, bool (T,): True on the answers to be learned, end-of-turn ids included.
    """
    kind = int(rng.choice(len(recipe.parts), p=[part.share for part in recipe.parts]))
    problem = sources[kind].get(int(rng.integers(2**31)), 0)
    if recipe.parts[kind].problems.startswith("guess"):
        turns = _blind_guesses(rng, problem)
    else:
        turns = _answers(rng, problem, recipe, sources[kind])
    ids = [dialogue.prompt_ids(problem.prompt)]
    mask = [np.zeros(len(ids[0]), np.bool_)]
    end = np.array([dialogue.tokenizer.eos_token_id], np.int64)
    for turn, (response, feedback, learned) in enumerate(turns):
        said = np.concatenate([np.array(dialogue.tokenizer.encode(response), np.int64), end])
        ids.append(said)
        mask.append(np.full(len(said), learned))
        if turn < len(turns) - 1:
            ids.append(dialogue.feedback_ids(feedback, turn, said))
            mask.append(np.zeros(len(ids[-1]), np.bool_))
    return np.concatenate(ids), np.concatenate(mask)


def _answers(
    rng: np.random.Generator, problem: Problem, recipe: Recipe, source: ProblemSource
) -> list[tuple[str, str, bool]]:
    """Returns (response, feedback, learned) by turn: wrong answers without loss, then the right one."""
    count = int(rng.integers(1, recipe.most_wrong + 1)) if rng.random() < recipe.retry_share else 0
    wrong = (_other_digits if recipe.wrong_answers == "digits" else _other_golds)(rng, problem, source, count)
    responses = [_written(rng, problem, answer, WRONG_CALCULATIONS, recipe) for answer in wrong]
    feedback = get_feedback(recipe.feedback)
    turns = [
        (response, feedback(TurnContext(problem, turn, count + 1, response, verdict=_WRONG)), False)
        for turn, response in enumerate(responses)
    ]
    return [*turns, (_written(rng, problem, problem.gold[0], recipe.calculations, recipe), "", True)]


def _written(rng: np.random.Generator, problem: Problem, answer: str, share: float, recipe: Recipe) -> str:
    """The response of an answer; in a share of them with the calculation before it, if the recipe has any."""
    boxed = f"\\boxed{{{answer}}}"
    if not recipe.calculations or rng.random() >= share:
        return boxed
    question = _QUESTION.fullmatch(problem.prompt)
    if question is None:
        raise InvalidValueError(f"calculations needs problems like 'What is 1+2?', got {problem.prompt!r}")
    return f"{question[1]}={boxed}"


def _other_digits(rng: np.random.Generator, problem: Problem, source: ProblemSource, count: int) -> list[str]:
    """Digits that are not the answer."""
    gold = int(problem.gold[0])
    return [str(digit) for digit in rng.choice([digit for digit in range(10) if digit != gold], size=count)]


def _other_golds(rng: np.random.Generator, problem: Problem, source: ProblemSource, count: int) -> list[str]:
    """Right answers to other problems of the source: as long and as often negative as answers here are.

    A wrong answer derived from the right one would contain information about it, which real wrong answers do not.
    """
    found: list[str] = []
    while len(found) < count:
        answer = source.get(int(rng.integers(2**31)), 0).gold[0]
        if answer != problem.gold[0]:
            found.append(answer)
    return found


def _blind_guesses(rng: np.random.Generator, problem: Problem) -> list[tuple[str, str, bool]]:
    """Returns (response, feedback, learned) by turn: random digits with random feedback, so that hints mean nothing."""
    hints = ("", *(f" Hint: {hint}" for hint in (*problem.hints, *problem.false_hints)))
    return [(f"\\boxed{{{rng.integers(10)}}}", WRONG_TEXT + str(rng.choice(hints)), True) for _ in range(GUESSES)]


def _fit(
    model: PreTrainedModel,
    dialogue: Dialogue,
    recipe: Recipe,
    seed: int,
    on_progress: Callable[[WarmupProgress], None] | None,
) -> None:
    """AdamW on the masked next-id loss."""
    import torch

    sources = [load_problems(f"{name}:train") for name in recipe.problems]
    steps = recipe.steps
    optimizers = _optimizers(model, recipe)
    rise = max(1, steps // 10)
    model.train()
    for step in range(steps):
        rng = np.random.Generator(np.random.Philox(key=derive_seed("warmup", seed, step)))
        batch = [warmup_dialogue(rng, dialogue, recipe, sources) for _ in range(recipe.batch_size)]
        model.zero_grad()
        loss = _backward(model, batch, recipe.groups)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * min((step + 1) / rise, (steps - step) / (steps - rise + 1))
            optimizer.step()
        if on_progress is not None:
            on_progress(WarmupProgress(step + 1, steps, loss))
    model.eval()  # type: ignore[no-untyped-call]


def _optimizers(model: PreTrainedModel, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Makes the recipe's optimizers; each parameter belongs to one of them.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) takes the matrices inside the layers, its
    steps scaled to AdamW's size (Liu et al. 2025, arXiv:2502.16982) so that one learning rate serves both.
    """
    import torch

    rate, settings = recipe.learning_rate, {"betas": (0.9, 0.95), "weight_decay": 0.01}
    if recipe.optimizer == "adamw":
        return [torch.optim.AdamW(model.parameters(), lr=rate, **settings)]  # type: ignore[arg-type]
    if not hasattr(torch.optim, "Muon"):
        raise MissingDependencyError(f"optimizer 'muon' needs torch 2.9 or newer, this is {torch.__version__}")
    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if p.ndim != 2 or p is embedding]
    return [
        torch.optim.Muon(matrices, lr=rate, momentum=0.9, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, **settings),  # type: ignore[arg-type]
    ]


def _backward(model: PreTrainedModel, batch: list[tuple[Ids, npt.NDArray[np.bool_]]], groups: int) -> float:
    """Adds the gradient of the batch's mean loss per learned id, and returns that loss."""
    if groups > 1:
        batch = sorted(batch, key=lambda item: len(item[0]))
    learned = sum(int(mask.sum()) for _, mask in batch)
    ends = [len(batch) * k // groups for k in range(groups + 1)]
    total = 0.0
    for first, last in pairwise(ends):
        part = batch[first:last]
        loss = _masked_loss(model, part) * (sum(int(mask.sum()) for _, mask in part) / learned)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, writes the folder, and prints the accuracy of first answers to validation problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="to write; new or empty")
    parser.add_argument("--recipe", default="tiny", help=", ".join(RECIPES))
    parser.add_argument("--seed", type=int, default=0, help="decides initial weights and dialogues")
    parser.add_argument("--steps", type=int, help="gradient steps; by default the recipe's")
    parser.add_argument("--episodes", type=int, default=256, help="of validation, per kind of problem; 0 plays none")
    options = parser.parse_args(arguments)
    recipe = recipe_named(options.recipe)

    def show(state: WarmupProgress) -> None:
        if state.step % 50 == 0 or state.step == state.steps:
            print(f"step {state.step} of {state.steps}, loss {state.loss:.3f}", flush=True)

    changes = {} if options.steps is None else {"steps": options.steps}
    path = warmup(options.folder, recipe, seed=options.seed, on_progress=show, **changes)
    print(f"wrote {path}")
    if options.episodes:
        policy = CausalLMPolicy.from_pretrained(path)
        for name, figure in first_try_accuracy(policy, recipe, episodes=options.episodes).items():
            print(f"{name:18} acc@1 {figure}")


if __name__ == "__main__":
    main()
