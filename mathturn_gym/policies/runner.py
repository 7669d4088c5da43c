"""Forward passes of a decoder-only model: what it takes, where its vocabulary ends, and which ids stop it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch

from mathturn_gym.env.dialogue import Dialogue
from mathturn_gym.errors import ChatTemplateError, InvalidValueError, check_int
from mathturn_gym.types import Ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MEMORY: Final = Path("/proc/meminfo")
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
        """The device of the model."""
        return self.model.get_input_embeddings().weight.device  # type: ignore[no-any-return]

    @property
    def bytes_per_id(self) -> int:
        """Bytes of an id's keys and values in all layers."""
        inner = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        config = inner.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kind = self.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inner.dtype
        return int(2 * self.num_layers * heads * size * dtype.itemsize)

    def free_bytes(self) -> int | None:
        """Memory that is free on the model's device; None where that cannot be asked."""
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        if self.device.type != "cpu" or not _MEMORY.is_file():
            return None
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="ascii").splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None

    def weights_mark(self) -> tuple[tuple[int, int], ...]:
        """A value that changes whenever a weight does: torch counts the writes to each tensor."""
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
    """Number of ids that may be sampled: the model's, or the tokenizer's where that has fewer."""
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

    With them goes the id with which the tokenizer's chat template closes a turn: Gemma's config, say, does not name it.
    """
    if given is not None:
        return tuple(sorted({check_int("stop_ids", i, low=0, high=vocab_size - 1) for i in given}))
    known: set[int] = set()
    for value in (getattr(tokenizer, "eos_token_id", None), getattr(config, "eos_token_id", None)):
        known |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    known |= set(_end_of_turn(tokenizer)[-1:])
    if not known:
        raise InvalidValueError(
            "stop_ids: neither tokenizer nor model config names an end-of-sequence id; "
            "give stop_ids=[...], or stop_ids=[] to let every completion run to its budget"
        )
    return tuple(sorted(i for i in known if i < vocab_size))


def _end_of_turn(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Ids that close a turn of a tokenizer's chat template; none where it has no template that can be used."""
    if not getattr(tokenizer, "chat_template", None):
        return ()
    try:
        return Dialogue(tokenizer).end_of_turn
    except ChatTemplateError:  # then no environment can be made with it, but ids can still be continued
        return ()
