"""The built-in tokenizer and the built-in model's shape: small enough to train on one CPU core.

    TINY_PATH (in the package)   tokenizer.json, config.json, model.safetensors: an ordinary Hugging Face folder

The tokenizer takes any text (a byte-level BPE without a pattern, so nothing is ever unknown), and its few merges are
trained on the fixed wording of the built-in problems and feedback: each such phrase is one token, every digit and
operator is a token of its own, and a dialogue of four turns stays below 80 ids.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from mathturn_gym.dialogue import CHATML_TEMPLATE

if TYPE_CHECKING:
    from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "TINY_PATH",
    "make_tiny_model",
    "tiny_config",
    "train_tokenizer",
]

TINY_PATH = Path(str(files("mathturn_gym"))) / "assets" / "tiny"
"""Folder of the built-in tokenizer and of the warm-start checkpoint, made by `mathturn_gym.baselines.warmup`."""

MAX_LENGTH = 8192
"""Longest context the built-in model is declared for (rotary positions: nothing is allocated for it)."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Each phrase is one "word" of the training text, so each ends up as one token. No digit, operator or variable is in
# them except the "x" of the question: numbers stay sequences of digits, which the model can learn to calculate with.
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


def train_tokenizer() -> PreTrainedTokenizerBase:
    r"""Trains the built-in tokenizer from nothing; the same on every machine.

    Returns:
        About 400 ids: 3 special tokens, the 256 bytes, and the merges that make each of `PHRASES` one token.

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
        vocab_size=512,
        min_frequency=1,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(PHRASES, trainer)
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHATML_TEMPLATE
    return tokenizer


def tiny_config(tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    """The shape of the built-in model: Llama, 2 layers of width 64, tied embeddings, about 130k parameters."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        # 1/sqrt(width): the usual 0.02 is made for wide models, and this one learns slowly from it.
        initializer_range=0.125,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def make_tiny_model(tokenizer: PreTrainedTokenizerBase, *, seed: int = 0) -> PreTrainedModel:
    """A freshly initialised built-in model, float32 on the CPU; `seed` determines its weights."""
    import torch
    from transformers import LlamaForCausalLM

    # transformers initialises from torch's global generator: borrow it, and give it back as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(tiny_config(tokenizer))
