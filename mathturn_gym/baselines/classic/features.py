"""A small transformer as the features extractor of stable-baselines3's policies, and the way into it for a language model.

    WindowTransformer        the window of `TokenLevelEnv` ─► the hidden state at its last id
    language_model_kwargs    `policy_kwargs` for a policy that is to start as a language model
    load_language_model      a Hugging Face Llama's weights ─► extractor and action net

The architecture is Llama's (Touvron et al. 2023, arXiv:2302.13971), parameter for parameter, so that its checkpoints load;
what it leaves out is what no one looks at: the last layer is computed at the last id alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn
from torch.nn import functional

from mathturn_gym.base.files import parse_json, read_regular
from mathturn_gym.errors import CheckpointError, InvalidValueError, check_int

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy


_ROPE_BASE = 10_000.0
_EPS = 1e-6


class WindowTransformer(BaseFeaturesExtractor):
    """Features of a window of ids: a Llama's hidden state at the last id that is no padding, after the final norm.

    Of a "dict" observation the turn and the verdict follow, one-hot.

    Args:
        observation_space: Of `TokenLevelEnv` or `WholeAnswerEnv`.
        width: Of the residual stream, a multiple of 2 * heads.
        layers: Transformer layers, >= 1.
        heads: Attention heads.
        feedforward: Width inside the gated feed-forward layers.

    Raises:
        InvalidValueError: another observation space, or a size that does not fit.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        feedforward: int = 192,
    ) -> None:
        window, extra = _window_of(observation_space)
        for name, value in (("width", width), ("layers", layers), ("heads", heads), ("feedforward", feedforward)):
            check_int(name, value, low=1)
        if width % (2 * heads):
            raise InvalidValueError(f"width ({width}) must be a multiple of 2 * heads ({2 * heads})")
        super().__init__(observation_space, features_dim=width + extra)
        self.pad = int(window.high.flat[0])
        # The largest number of the window stands for padding, so there are as many ids as it.
        self.embed_tokens = nn.Embedding(self.pad, width)
        self.layers = nn.ModuleList(_Layer(width, heads, feedforward) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=_EPS)
        half = width // heads // 2
        # Made here and not saved: they follow from the shape, and checkpoints of transformers have none.
        angles = torch.arange(window.shape[0])[:, None] * _ROPE_BASE ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:  # 1/sqrt(width): the usual 0.02 is made for wide models
                nn.init.normal_(parameter, std=width**-0.5)

    def forward(self, observations: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
        """Float (B, N) windows, or a dict with them and one-hot facts: float (B, features_dim)."""
        if not isinstance(observations, dict):
            return self._hidden(observations)
        # stable-baselines3 leaves one-hot numbers of a batch of one fact as (B, 1, n).
        facts = [observations[name].flatten(1) for name in ("turn", "verdict")]
        return torch.cat([self._hidden(observations["ids"]), *facts], dim=1)

    def _hidden(self, windows_BN: torch.Tensor) -> torch.Tensor:
        ids_BT = windows_BN.long()
        last_B = (ids_BT < self.pad).sum(1).clamp(min=1) - 1
        # Padding stands behind the ids, where causal attention never looks: what no row needs is cut off.
        ids_BT = ids_BT[:, : int(last_B.max()) + 1].clamp(max=self.pad - 1)
        cos, sin = self.cos[: ids_BT.shape[1]], self.sin[: ids_BT.shape[1]]  # type: ignore[index]
        x = self.embed_tokens(ids_BT)
        for layer in self.layers[:-1]:
            x = layer(x, cos, sin)
        hidden: torch.Tensor = self.norm(self.layers[-1](x, cos, sin, last_B))
        return hidden


class _Layer(nn.Module):
    """A Llama layer; its parameters have the names that they have in transformers."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.heads = heads
        self.self_attn = nn.ModuleDict(
            {f"{name}_proj": nn.Linear(width, width, bias=False) for name in ("q", "k", "v", "o")}
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, feedforward, bias=False),
                "up_proj": nn.Linear(width, feedforward, bias=False),
                "down_proj": nn.Linear(feedforward, width, bias=False),
            }
        )
        self.input_layernorm = nn.RMSNorm(width, eps=_EPS)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=_EPS)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, last_B: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, T, width): the same; or (B, width), at the positions `last_B` alone."""
        attention, mlp = self.self_attn, self.mlp
        normed = self.input_layernorm(x)
        k, v = self._split(attention["k_proj"](normed)), self._split(attention["v_proj"](normed))
        k = _rotated(k, cos, sin)
        # The last layer is asked for one position: its queries are computed there alone, keys and values everywhere.
        if last_B is None:
            q = _rotated(self._split(attention["q_proj"](normed)), cos, sin)
            places = torch.arange(x.shape[1], device=x.device)
            mixed = _attention(q, k, v, places <= places[:, None])
        else:
            rows = torch.arange(len(x), device=x.device)
            x = x[rows, last_B][:, None]
            q = self._split(attention["q_proj"](normed[rows, last_B][:, None]))
            q = _rotated(q, cos[last_B][:, None, None], sin[last_B][:, None, None])
            seen = torch.arange(k.shape[2], device=x.device) <= last_B[:, None]
            mixed = _attention(q, k, v, seen[:, None, None])
        x = x + attention["o_proj"](mixed.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(x)
        x = x + mlp["down_proj"](functional.silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed))
        return x if last_B is None else x.squeeze(1)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to (B, heads, T, width / heads)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def language_model_kwargs(folder: str | Path, **more: Any) -> dict[str, Any]:
    """The `policy_kwargs` of an actor-critic policy that `load_language_model` can turn into the language model.

    The extractor has the model's shape, the action net reads it directly, and the value has a layer of its own.

    Args:
        folder: A Hugging Face folder of a Llama model.
        **more: Other `policy_kwargs`; they win.

    Raises:
        CheckpointError: the folder holds no such model.
    """
    return {
        "features_extractor_class": WindowTransformer,
        "features_extractor_kwargs": _shape(Path(folder)),
        "net_arch": {"pi": [], "vf": [64]},
        "ortho_init": False,
        **more,
    }


def load_language_model(policy: BasePolicy, folder: str | Path, action_ids: Sequence[int] | None = None) -> None:
    """Gives a policy's extractors a language model's weights, and its action net the model's output embedding.

    An action net that reads the extractor directly (`language_model_kwargs`) then has the model's logits: the policy
    begins as the model's distribution of the next id, restricted to the actions. Any other keeps its weights.

    Args:
        policy: Of a stable-baselines3 or sb3-contrib algorithm, with `WindowTransformer` extractors.
        folder: A Hugging Face folder of a Llama model.
        action_ids: The id behind each action; None where action and id are the same number.

    Raises:
        InvalidValueError: the policy has no such extractor, or its actions are not these ids.
        CheckpointError: the folder holds no Llama model, or one of another shape.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    extractors = [module for module in policy.modules() if isinstance(module, WindowTransformer)]
    if not extractors:
        raise InvalidValueError("policy has no WindowTransformer as its features extractor: see language_model_kwargs")
    _shape(Path(folder))
    try:
        weights = load_file(Path(folder) / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} has no readable model.safetensors: {error}") from error
    inner = {name.removeprefix("model."): value for name, value in weights.items() if name.startswith("model.")}
    for extractor in extractors:
        try:
            extractor.load_state_dict(inner)
        except RuntimeError as error:
            raise CheckpointError(
                f"the model in {str(folder)!r} has another shape than the extractor: {error}"
            ) from error
    head = getattr(policy, "action_net", None)
    layers: Any = getattr(getattr(policy, "mlp_extractor", None), "policy_net", None)
    reads_the_extractor = layers is not None and len(layers) == 0 and not hasattr(policy, "lstm_actor")
    if isinstance(head, nn.Linear) and reads_the_extractor:
        # Tied embeddings are saved once.
        rows = weights.get("lm_head.weight", inner["embed_tokens.weight"])
        ids = list(range(len(rows)) if action_ids is None else action_ids)
        if len(ids) != head.out_features or max(ids) >= len(rows):
            raise InvalidValueError(f"action_ids must be the {head.out_features} ids behind the actions, got {ids!r}")
        with torch.no_grad():
            head.weight.copy_(rows[ids])
            # a language model has no bias: the logits are then exactly its own.
            head.bias.zero_()


def _shape(folder: Path) -> dict[str, int]:
    """The extractor's sizes for a model's folder; raises where it is something else than a plain Llama."""
    try:
        config: Mapping[str, Any] = parse_json(read_regular(folder / "config.json", 1 << 24))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(folder)!r} has no readable config.json: {error}") from error
    rope = config.get("rope_parameters") or {}
    needed = {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": _EPS,
        "num_key_value_heads": config.get("num_attention_heads"),
    }
    # Refused by name: a Llama with another rope or norm would load, and say something else.
    odd = {name: config.get(name) for name, value in needed.items() if config.get(name, value) != value}
    if rope.get("rope_type", "default") != "default" or rope.get("rope_theta", _ROPE_BASE) != _ROPE_BASE:
        odd["rope_parameters"] = rope
    if odd:
        raise CheckpointError(f"{str(folder)!r} is no plain Llama model: {odd} (WindowTransformer takes {needed})")
    return {
        "width": config["hidden_size"],
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "feedforward": config["intermediate_size"],
    }


def _window_of(space: spaces.Space[Any]) -> tuple[spaces.Box, int]:
    """The window's space, and how many one-hot numbers come with it."""
    window = space["ids"] if isinstance(space, spaces.Dict) and "ids" in space.spaces else space
    if not (isinstance(window, spaces.Box) and len(window.shape) == 1 and window.dtype.kind == "i"):
        raise InvalidValueError(f"observation_space must be one of TokenLevelEnv's, got {space}")
    others = [space[name] for name in ("turn", "verdict")] if isinstance(space, spaces.Dict) else []
    return window, sum(int(one.n) for one in others if isinstance(one, spaces.Discrete))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Attention in plain operations: torch's fused one has no second derivative, and TRPO needs one."""
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    mixed: torch.Tensor = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return mixed


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), first half with second half, as transformers has them."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
