"""Trains tokenizers and makes models that are small enough for one CPU core, the built-in ones among them.

    mathturn_gym/assets/tiny   tokenizer.json, config.json, model.safetensors: an ordinary Hugging Face folder

A tokenizer takes any text (a byte-level BPE without a pattern, so nothing is ever unknown), and its few merges are
trained on the fixed wording of problems and feedback: each such phrase is one token, every digit is a token of its own.
With the built-in one a dialogue of four turns stays below 80 ids. `warmup.py` trains the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mathturn_gym.env.dialogue import CHATML_TEMPLATE
from mathturn_gym.errors import InvalidValueError, check_int

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase


MAX_LENGTH = 8192
"""Longest context the built-in model is declared for (rotary positions: nothing is allocated for it)."""

MAX_VOCABULARY = 2048
"""More than any list of phrases here needs: all of its merges are made."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

PHRASES = (
    "system\n",
    "user\n",
    "assistant\n",
    "\\boxed{",
    "Congratulations! You are correct!",
    "Unfortunately your answer is wrong. Let's try again.",
    " Hint: it is at most ",
    " Hint: it is at least ",
    "Solve ",
    " for x.",
    "What is ",
    "Guess a number from ",
    " to ",
)
"""Fixed wordings of the built-in problems and feedback.

Each is one "word" of the training text, so each ends up as one token. No digit, operator or variable is in them except
the "x" of the question: numbers stay sequences of digits, which the model can learn to calculate with.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a Llama model.

    Args:
        width: Of the residual stream, a multiple of `2 * heads`.
        layers: Transformer layers.
        heads: Attention heads.
        feedforward: Width inside the gated feed-forward layers.

    Raises:
        InvalidValueError: a value below 1, or a width that rotary heads cannot share.
    """

    width: int
    layers: int
    heads: int
    feedforward: int

    def __post_init__(self) -> None:
        """Checks the sizes against each other."""
        for name in ("width", "layers", "heads", "feedforward"):
            check_int(name, getattr(self, name), low=1)
        if self.width % (2 * self.heads):
            raise InvalidValueError(
                f"width ({self.width}) must be a multiple of 2 * heads ({2 * self.heads}): rotary positions turn pairs"
            )


TINY_SHAPE: Final = Shape(width=64, layers=2, heads=4, feedforward=192)
"""The built-in model's: about 130k parameters."""


def train_tokenizer(phrases: Sequence[str] = PHRASES) -> PreTrainedTokenizerBase:
    r"""Trains a tokenizer from nothing; the same on every machine.

    Args:
        phrases: What becomes one token each; the built-in tokenizer's by default.

    Returns:
        3 special tokens, the 256 bytes, and the merges that make each phrase one token: 405 ids for the built-in one.

    >>> tokenizer = train_tokenizer()
    >>> tokenizer.tokenize("user\nSolve 3x+4=19 for x.")
    ['userĊ', 'SolveĠ', '3', 'x', '+', '4', '=', '1', '9', 'ĠforĠx.']
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    # No pattern: it would cut "user\n" and "Let's" apart, and with so few merges it protects nothing.
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        min_frequency=1,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(phrases, trainer)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML_TEMPLATE
    return tokenizer


def tiny_config(tokenizer: PreTrainedTokenizerBase, shape: Shape = TINY_SHAPE) -> LlamaConfig:
    """A Llama of this shape with tied embeddings; the built-in model's by default."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.feedforward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        # 1/sqrt(width): the usual 0.02 is made for wide models, and this one learns slowly from it.
        initializer_range=shape.width**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_tiny_model(tokenizer: PreTrainedTokenizerBase, shape: Shape = TINY_SHAPE, *, seed: int = 0) -> PreTrainedModel:
    """A freshly initialized model of this shape, float32 on the CPU; `seed` determines its weights."""
    import torch
    from transformers import LlamaForCausalLM

    # transformers initializes from torch's global generator: borrow it, and give it back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(tiny_config(tokenizer, shape))
