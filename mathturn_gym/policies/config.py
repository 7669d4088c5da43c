"""`PolicyConfig`: which model answers, and how it is sampled; plain data that travels as JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name, shown

BUILTIN_PATH: Final = Path(str(files("mathturn_gym"))) / "assets" / "tiny"
"""Folder of the built-in tokenizer and of the warm-start model: an ordinary Hugging Face folder in the package."""

POLICY_NAMES: Final = (
    "builtin (the tiny warm-start policy), random (uniform over token ids), smollm2 (after `mathturn models get smollm2`),"
    " the folder of a model or of a training run,"
    " ORG/NAME or hf:NAME (Hugging Face hub), vllm:FOLDER (vLLM in this process), http(s)://… (a server that returns"
    " token ids; several with commas), chat:MODEL@URL (a chat API: texts alone, for evaluations), module:callable (a policy of yours)"
)
"""What a policy can be called, for help texts."""

MODEL_SCHEMES: Final = ("hf", "vllm", "chat")
"""What may stand before the colon of a model's name; any other text with a colon, but for a URL, names code."""

_DTYPES: Final = ("float32", "bfloat16", "float16")
_INITS: Final = ("pretrained", "random")
_GRAMMARS: Final = ("boxed-integer", "none")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """A policy as plain data; `load_policy` makes it.

    Where a field is None, the folder's own value holds if the folder remembers one (a training run does: it writes
    `policy.json` beside its weights), else the default that is given with the field.

    Args:
        model: A name as `POLICY_NAMES` lists them.
        tokenizer: Folder or hub name of another tokenizer than the model's own. A server's policy needs it, because
            the environment is made with it.
        device: "cpu", "cuda", "cuda:1", …; None takes a GPU where there is one.
        dtype: "float32", "bfloat16" or "float16"; None keeps the checkpoint's.
        init: "pretrained", or "random" for fresh weights of the same shape, determined by `seed`.
        seed: Determines random weights, a new adapter's weights, and the samples of rows without a seed of their own.
        lora: Puts a new LoRA adapter around the model: keywords of `peft.LoraConfig`, e.g. `{"r": 16}`. All linear
            layers are adapted unless `target_modules` says otherwise.
        adapter: Folder or hub name of an adapter to load around the model.
        grammar: "boxed-integer" masks everything but boxed whole numbers (`mathturn_gym.policies.sampling`); "none"
            masks nothing, also where the folder remembers a mask. None: none.
        temperature: See `Sampling`. None: 1.
        top_p: See `Sampling`. None: 1.
        top_k: See `Sampling`. None: 0.
        min_p: See `Sampling`. None: 0.
        max_batch_size: Most rows that decode together; None for no limit.
        attention: transformers' name of an attention implementation ("flash_attention_2", …); None chooses.
        options: Further keywords of the policy's class: `CausalLMPolicy`, `OpenAIPolicy`, `vllm.LLM`, or of the
            callable of `module:callable`.
        rollout: In training, the engine that samples instead of the trained policy's own, which is given the
            weights after each update: "continuous" (transformers' continuous batching on the trained weights), "vllm:" or
            "vllm:FOLDER" (vLLM in this process), "http(s)://…" (vLLM servers), "sglang:http(s)://…" (SGLang servers). None
            samples with the policy itself.
        rollout_options: Keywords of that engine: of `transformers.ContinuousBatchingConfig`, `vllm.LLM` or `OpenAIPolicy`;
            for servers also `weights_dir`, `adapter` and `mode` (`ServerRollout`).

    Raises:
        InvalidValueError: a value outside its range; fields that exclude each other; a URL with a password in it
            (the config is written to files: give the key in the environment variable MATHTURN_API_KEY).

    >>> config = PolicyConfig("builtin", temperature=0.7)
    >>> PolicyConfig.from_json(config.to_json()) == config
    True
    """

    model: str = "builtin"
    tokenizer: str | None = None
    device: str | None = None
    dtype: str | None = None
    init: Literal["pretrained", "random"] = "pretrained"
    seed: int = 0
    lora: Mapping[str, Any] | None = None
    adapter: str | None = None
    grammar: Literal["boxed-integer", "none"] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_batch_size: int | None = None
    attention: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rollout: str | None = None
    rollout_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks what can be checked without loading anything."""
        for name in ("model", "tokenizer", "device", "adapter", "attention", "rollout"):
            value = getattr(self, name)
            if isinstance(value, Path):
                object.__setattr__(self, name, str(value))
            elif (value is not None or name == "model") and (not isinstance(value, str) or not value.strip()):
                raise InvalidValueError(f"{name} must be a non-empty text, got {value!r}")
        for name, allowed in (("dtype", _DTYPES), ("init", _INITS), ("grammar", _GRAMMARS)):
            value = getattr(self, name)
            if value not in allowed and not (value is None and name != "init"):
                raise_unknown_name(name, value, allowed)
        self._check_numbers()
        self._check_together()

    def _check_numbers(self) -> None:
        check_int("seed", self.seed, low=0)
        if self.temperature is not None:
            check_float("temperature", self.temperature, low=0.0)
        if self.top_p is not None and check_float("top_p", self.top_p, low=0.0, high=1.0) == 0.0:
            raise InvalidValueError("top_p must be in (0, 1], got 0.0; for greedy decoding use temperature=0")
        if self.top_k is not None:
            check_int("top_k", self.top_k, low=0)
        if self.min_p is not None:
            check_float("min_p", self.min_p, low=0.0, high=1.0)
        if self.max_batch_size is not None:
            check_int("max_batch_size", self.max_batch_size, low=1)

    def _check_together(self) -> None:
        for name in ("lora", "options", "rollout_options"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
                raise InvalidValueError(f"{name} must be keywords by name, got {value!r}")
        if self.rollout_options and self.rollout is None:
            raise InvalidValueError("rollout_options are of a rollout engine: give rollout as well")
        if self.lora is not None and self.adapter is not None:
            raise InvalidValueError("lora makes a new adapter and adapter loads one: give one of them")
        if self.init == "random" and (self.lora is not None or self.adapter is not None):
            raise InvalidValueError('an adapter around init="random" has nothing to adapt: leave one of them out')
        urls = {
            "model": re.sub(r"^chat:.*?@(?=https?://)", "", self.model),
            "rollout": (self.rollout or "").removeprefix("sglang:"),
        }
        for name, url in urls.items():
            if not url.startswith(("http://", "https://")) or not any("@" in _authority(u) for u in url.split(",")):
                continue
            raise InvalidValueError(
                f"{name} must be a URL without user and password, because configs are written to files: give a key in"
                " the environment variable MATHTURN_API_KEY"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, every field."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PolicyConfig:
        """The config that `to_json` gave; fields that are missing have their defaults.

        Raises:
            InvalidValueError: a field is unknown (the nearest is suggested) or outside its range.
        """
        if not isinstance(data, Mapping):
            raise InvalidValueError(f"a policy must be a table of FIELD = VALUE, got {shown(data)}")
        known = [one.name for one in dataclasses.fields(cls)]
        for name in data:
            if name not in known:
                raise_unknown_name("policy field", name, known)
        return cls(**data)


def _authority(url: str) -> str:
    """The part of a URL between "//" and its path."""
    return url.partition("//")[2].partition("/")[0]
