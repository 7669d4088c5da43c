"""What a warm start is made of: problems in their shares, tokenizer, model and training, as one value.

    TINY         130 thousand parameters for `lins`, `add1` and `guess8`: the checkpoint that travels with the package
    WORLD        1.1 million parameters for seven families of problems, made by `mathturn warmup FOLDER --recipe world`
    CALCULATOR   100 thousand parameters for sums that are beyond them, with a calculator that they seldom call

`mathturn_gym.baselines.warmup` follows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mathturn_gym.baselines.tiny import PHRASES, TINY_SHAPE, Shape
from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name
from mathturn_gym.feedback import RIGHT_TEXT, WRONG_TEXT, get_feedback

__all__ = ["CALCULATOR", "RECIPES", "TINY", "WORLD", "Part", "Recipe", "recipe_named"]

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
    r"""Everything that decides a warm start, but for the seed.

    Args:
        parts: Kinds of problems; their shares add up to 1.
        phrases: What becomes one token each (see `train_tokenizer`).
        shape: Of the model.
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
"""Sums of three digits, which it cannot do, and a calculator: it repeats what a wrong answer was of, if it says so.

It can read the value off the feedback, and asks for it in a quarter of its answers: an id that earns nothing in its own
turn, and the next turn's answer.
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
