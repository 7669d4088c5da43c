"""What a policy has to know of a transformers model: how to load it, what it takes, where its vocabulary ends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.errors import CheckpointError, InvalidValueError, MissingDependencyError, check_int
from mathturn_gym.types import Ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ModelRunner", "eval_mode", "load_adapter", "load_model", "prepare_weights", "stop_ids_of", "vocab_size_of"]

_ATTENTION = frozenset({"full_attention", "sliding_attention"})


class ModelRunner:
    """Forward passes of a decoder-only model over left-padded batches.

    Args:
        model: The model, or a peft model around it.
        vocab_size: Logits of higher ids are cut off.
        pad_id: What padding is filled with.

    Raises:
        InvalidValueError: a model whose layers keep something else than keys and values (recurrent states).
    """

    def __init__(self, model: Any, vocab_size: int, pad_id: int) -> None:
        self.model, self.vocab_size, self.pad_id = model, vocab_size, pad_id
        inner = model.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
        config = inner.config.get_text_config()
        self.num_layers = int(config.num_hidden_layers)
        other = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION)
        if other or getattr(inner, "_is_stateful", False):
            raise InvalidValueError(
                f"model {type(inner).__name__} has layers of type {', '.join(other) or 'recurrent'}: a policy keeps keys"
                f" and values over turns, so it takes models of {', '.join(sorted(_ATTENTION))} layers alone"
            )
        parameters = inspect.signature(inner.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._takes_logits_to_keep = "logits_to_keep" in parameters

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.get_input_embeddings().weight.device  # type: ignore[no-any-return]

    def weights_mark(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever a weight does: torch counts what is written to a tensor in place."""
        return tuple((p.data_ptr(), p._version) for p in self.model.parameters())

    def forward(
        self,
        ids_BL: torch.Tensor,
        mask_BT: torch.Tensor | None,
        position_BL: torch.Tensor,
        cache: Any = None,
        *,
        keep: int | torch.Tensor = 0,
    ) -> torch.Tensor:
        """Logits over the ids that may be sampled.

        Args:
            ids_BL: int64 (B, L).
            mask_BT: int64 (B, cached + L), or any mask that the model takes, or None where nothing is padded.
            position_BL: int64 (B, L).
            cache: A transformers cache, or None.
            keep: Logits of the last `keep` columns, of the columns that a tensor names, or (0) of all.

        Returns:
            float (B, columns kept, V).
        """
        kwargs: dict[str, Any] = {}
        if self._takes_positions:
            kwargs["position_ids"] = position_BL
        elif mask_BT is None:  # a model with biases for positions reads them off the mask
            past = 0 if cache is None else cache.get_seq_length()
            mask_BT = ids_BL.new_ones(ids_BL.shape[0], past + ids_BL.shape[1])
        if self._takes_logits_to_keep:
            kwargs["logits_to_keep"] = keep
        out = self.model(
            input_ids=ids_BL, attention_mask=mask_BT, past_key_values=cache, use_cache=cache is not None, **kwargs
        )
        logits: torch.Tensor = out.logits[..., : self.vocab_size]
        if not self._takes_logits_to_keep:
            logits = logits[:, keep] if isinstance(keep, torch.Tensor) else logits[:, -keep:]
        return logits

    def left_pad(self, contexts: Sequence[Ids]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and attention mask, int64 (B, L), padded on the left: the last column is every row's last id."""
        length = max(len(context) for context in contexts)
        ids_BL: npt.NDArray[np.int64] = np.full((len(contexts), length), self.pad_id, np.int64)
        mask_BL: npt.NDArray[np.int64] = np.zeros((len(contexts), length), np.int64)
        for row, context in enumerate(contexts):
            ids_BL[row, length - len(context) :] = context
            mask_BL[row, length - len(context) :] = 1
        return torch.from_numpy(ids_BL).to(self.device), torch.from_numpy(mask_BL).to(self.device)


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switches a model to eval mode and back (a trainer may share it)."""
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def vocab_size_of(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """Number of ids that may be sampled: the model's, or the tokenizer's where that has fewer.

    Raises:
        InvalidValueError: the tokenizer has more ids than the model's embedding.
    """
    embedding = int(model.get_input_embeddings().weight.shape[0])
    if tokenizer is None:
        return embedding
    size = max(tokenizer.get_vocab().values()) + 1
    if size > embedding:
        raise InvalidValueError(
            f"tokenizer has ids up to {size - 1}, the model's embedding only {embedding} rows: they do not belong "
            f"together, or the model needs model.resize_token_embeddings({size})"
        )
    return size


def stop_ids_of(
    config: Any, tokenizer: PreTrainedTokenizerBase | None, given: Iterable[int] | None, vocab_size: int
) -> tuple[int, ...]:
    """The ids that end a completion, sorted: those given, or all that tokenizer and config call end of sequence.

    Raises:
        InvalidValueError: none known and none given, or one outside the vocabulary.
    """
    if given is not None:
        return tuple(sorted({check_int("stop_ids", i, low=0, high=vocab_size - 1) for i in given}))
    known: set[int] = set()
    for value in (getattr(tokenizer, "eos_token_id", None), getattr(config, "eos_token_id", None)):
        known |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    if not known:
        raise InvalidValueError(
            "stop_ids: neither tokenizer nor model config names an end-of-sequence id; "
            "give stop_ids=[...], or stop_ids=[] to let every completion run to its budget"
        )
    return tuple(sorted(i for i in known if i < vocab_size))


def load_model(name_or_path: str | Path, **kwargs: Any) -> PreTrainedModel:
    """Loads a causal language model with `AutoModelForCausalLM`, from safetensors only (no pickle).

    Raises:
        CheckpointError: nothing loadable is there.
    """
    from transformers import AutoModelForCausalLM

    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(name_or_path), use_safetensors=True, **kwargs)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no model can be loaded from {str(name_or_path)!r}: {error}") from error
    return model


def prepare_weights(model: Any, weights: Mapping[str, torch.Tensor] | str | Path) -> Callable[[], object]:
    """Checks new weights against a model, and returns what puts them in.

    Args:
        model: The model, or a peft model.
        weights: A state dict, or a checkpoint's folder; for a peft model also those of its adapter.

    Raises:
        CheckpointError: a weight is missing, unknown, or of another shape.
    """
    adapted = hasattr(model, "peft_config")
    if isinstance(weights, (str, Path)):
        adapter_file = Path(weights) / "adapter_model.safetensors"
        if adapted and adapter_file.is_file():
            from safetensors.torch import load_file

            weights = load_file(adapter_file)
        else:
            weights = load_model(weights, dtype="auto").state_dict()
    new = dict(weights)
    own: Mapping[str, torch.Tensor] = model.state_dict()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())

    load: Callable[[], object] = partial(model.load_state_dict, new, strict=False)
    if adapted and not new.keys() & own.keys():
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        own, tied = get_peft_model_state_dict(model), set()
        load = partial(set_peft_model_state_dict, model, new)

    missing, unknown = sorted(own.keys() - new.keys() - tied), sorted(new.keys() - own.keys())
    shapes = [key for key in new if key in own and new[key].shape != own[key].shape]
    for what, keys in (("lack", missing), ("have unknown", unknown), ("have another shape for", shapes)):
        if keys:
            raise CheckpointError(f"the new weights {what} {', '.join(keys[:5])}; nothing was changed")
    return load


def load_adapter(model: Any, path: str | Path, *, trainable: bool = False) -> Any:
    """Puts a LoRA (or other peft) adapter around a model.

    Args:
        model: The base model.
        path: The adapter's folder (`adapter_config.json` and safetensors) or hub name.
        trainable: Whether its weights take gradients.

    Raises:
        MissingDependencyError: peft is not installed.
        CheckpointError: no adapter is there.
    """
    try:
        from peft import PeftModel  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingDependencyError("adapters need peft: pip install 'mathturn-gym[peft]'") from error
    try:
        return PeftModel.from_pretrained(model, str(path), is_trainable=trainable)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"no adapter can be loaded from {str(path)!r}: {error}") from error
