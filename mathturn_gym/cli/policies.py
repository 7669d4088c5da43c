"""Policies by name, for the commands that take `--policy`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mathturn_gym.dialogue import Dialogue
from mathturn_gym.errors import InvalidValueError
from mathturn_gym.types import Policy

__all__ = ["POLICY_HELP", "NamedPolicy", "load_policy"]

POLICY_HELP: Final = (
    "builtin (the tiny warm-start policy), random (uniform over ids), a run folder of `mathturn train`,"
    " or a Hugging Face model: folder or hub name."
)


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and the dialogue whose ids it speaks.

    Args:
        name: As the user gave it.
        policy: The policy.
        dialogue: With the policy's tokenizer.
    """

    name: str
    policy: Policy
    dialogue: Dialogue


def load_policy(
    name: str,
    *,
    tokenizer: str | None = None,
    temperature: float = 1.0,
    device: str | None = None,
    dtype: str | None = None,
    system_prompt: str | None = None,
    seed: int = 0,
) -> NamedPolicy:
    """The policy behind a name (see `POLICY_HELP`).

    Args:
        name: What the user gave.
        tokenizer: Another tokenizer than the one in the model's folder.
        temperature: Of sampling, 0 for greedy.
        device: "cpu", "cuda", …; None chooses.
        dtype: "float32", "bfloat16", …; None takes the checkpoint's.
        system_prompt: For the dialogue.
        seed: Of a random policy.

    Raises:
        InvalidValueError: nothing loads under that name.
    """
    if name == "random":
        from mathturn_gym.testing import RandomPolicy

        dialogue = Dialogue(tokenizer or "builtin", system_prompt)
        end = dialogue.end_of_turn[-1] if dialogue.end_of_turn else None
        return NamedPolicy(name, RandomPolicy(dialogue.vocab_size, end, seed), dialogue)
    import torch

    from mathturn_gym.baselines.process import no_progress_bars
    from mathturn_gym.baselines.tiny import TINY_PATH
    from mathturn_gym.wrappers.policy import CausalLMPolicy

    checkpoint = Path(name) / "checkpoint"
    path = str(TINY_PATH if name == "builtin" else checkpoint if checkpoint.is_dir() else name)
    kind = None if dtype is None else getattr(torch, dtype, None)
    if dtype is not None and not isinstance(kind, torch.dtype):
        raise InvalidValueError(f"dtype must be a torch dtype such as float32 or bfloat16, got {dtype!r}")
    dialogue = Dialogue(tokenizer or path, system_prompt)
    with no_progress_bars():
        policy = CausalLMPolicy.from_pretrained(
            path, tokenizer=dialogue.tokenizer, device=device, dtype=kind, temperature=temperature
        )
    return NamedPolicy(name, policy, dialogue)
