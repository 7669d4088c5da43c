"""Models, tokenizers and adapters from folders and hub names; and new weights for a model that is in use.

Safetensors only (no pickle is ever opened), and no code from a folder is executed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from mathturn_gym.base.model_folders import check_adapter, check_attention, no_progress_bars, pretrained_kwargs
from mathturn_gym.errors import CheckpointError, MissingDependencyError, install_extra, raise_unknown_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# What is raised for a folder that is broken in one way or another: tokenizers has no class of its own for it, and
# transformers, huggingface_hub and safetensors have several each.
_BROKEN: Final = (Exception,)


def load_model(
    name: str | Path, *, dtype: torch.dtype | None = None, attention: str | None = None, init_seed: int | None = None
) -> PreTrainedModel:
    """A causal language model from a folder or hub name.

    Args:
        name: The folder or name.
        dtype: Of the weights; None keeps the checkpoint's.
        attention: transformers' name of an attention implementation; None leaves the choice to it.
        init_seed: Where given, only the model's shape is taken, and its weights are drawn with this seed.

    Raises:
        CheckpointError: nothing loadable is there, or weights are missing; the message says what was found.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    check_attention(attention)
    auto: Any = AutoModelForCausalLM  # its methods' types say nothing of what they return
    _check_folder(Path(name), weights=init_seed is None)
    try:
        shared: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
        kwargs = pretrained_kwargs(name)
        with no_progress_bars():
            if init_seed is not None:
                config = AutoConfig.from_pretrained(str(name), **kwargs)
                # transformers draws weights from torch's global generator: borrow it, and give it back as it was.
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(init_seed)
                    drawn: PreTrainedModel = auto.from_config(config, dtype=dtype, trust_remote_code=False, **shared)
                    return drawn
            model, info = auto.from_pretrained(
                str(name), use_safetensors=True, dtype=dtype or "auto", output_loading_info=True, **kwargs, **shared
            )
    except torch.OutOfMemoryError:
        raise
    except _BROKEN as error:
        raise CheckpointError(f"no model can be loaded from {str(name)!r}: {_first_line(error)}") from error
    # transformers fills weights that are not there with random numbers, and only logs it.
    missing = sorted(info["missing_keys"])
    if missing:
        raise CheckpointError(f"the weights in {str(name)!r} lack {', '.join(missing[:5])}: it is no whole checkpoint")
    loaded: PreTrainedModel = model
    return loaded


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub name.

    Raises:
        CheckpointError: none is there.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(name), **pretrained_kwargs(name))
        tokenizer("1")  # settings of the wrong type show when it is first used
    except _BROKEN as error:
        raise CheckpointError(
            f"no tokenizer can be loaded from {str(name)!r}: {_first_line(error)}; give tokenizer=FOLDER_OR_NAME"
        ) from error
    return tokenizer


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
            weights = load_model(weights).state_dict()
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


def exported_weights(model: Any) -> dict[str, torch.Tensor]:
    """A model's weights by the names of a checkpoint, adapters merged into copies; the model stays as it is.

    Merging in place and undoing it would leave rounding in the trained weights, update after update. Tied weights have both
    of their names: an engine that ties them skips one, and one that does not (vLLM's CPU build packs the output layer into a
    copy) needs it.

    Args:
        model: A transformers model, or a peft model around one.
    """
    adapted = hasattr(model, "peft_config")
    inner = model.get_base_model() if adapted else model
    merged = {
        f"{name}.weight": layer.get_base_layer().weight
        + sum(layer.get_delta_weight(one) for one in layer.active_adapters)
        for name, layer in (inner.named_modules() if adapted else ())
        if hasattr(layer, "get_delta_weight")
    }
    found: dict[str, torch.Tensor] = {}
    for name, tensor in inner.state_dict().items():
        whole = name.replace(".base_layer.", ".")
        if ".lora_" not in name:
            found[whole] = merged.get(whole, tensor).detach().to(tensor.dtype)
    tied: Mapping[str, str] = getattr(inner, "all_tied_weights_keys", None) or {}
    found.update({name: found[source].clone() for name, source in tied.items() if source in found})
    return found


def load_adapter(model: Any, name: str | Path, *, trainable: bool = False) -> Any:
    """Puts a LoRA (or other peft) adapter around a model.

    Args:
        model: The base model.
        name: The adapter's folder (`adapter_config.json` and safetensors) or hub name.
        trainable: Whether its weights take gradients.

    Raises:
        MissingDependencyError: peft is not installed.
        CheckpointError: no adapter is there, or it is another model's.
    """
    peft = _peft()
    folder = Path(name)
    if folder.is_dir() and not (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(f"{str(name)!r} holds no adapter_model.safetensors: {_listing(folder)}")
    try:
        kwargs = pretrained_kwargs(name)
        del kwargs["trust_remote_code"]  # peft knows no custom code
        return peft.PeftModel.from_pretrained(model, str(name), is_trainable=trainable, use_safetensors=True, **kwargs)
    except _BROKEN as error:
        raise CheckpointError(f"no adapter can be loaded from {str(name)!r}: {_first_line(error)}") from error


def new_adapter(model: Any, settings: Mapping[str, Any], *, seed: int = 0) -> Any:
    """Puts a new, trainable LoRA adapter around a model: at first it changes nothing.

    Args:
        model: The base model; its own weights are frozen.
        settings: Keywords of `peft.LoraConfig`; all linear layers are adapted unless `target_modules` says otherwise.
        seed: Determines the adapter's first weights.

    Raises:
        MissingDependencyError: peft is not installed.
        InvalidValueError: a keyword is unknown.
        CheckpointError: the model has no layers of the names given.
    """
    peft = _peft()
    known = [field.name for field in dataclasses.fields(peft.LoraConfig)]
    for name in settings:
        if name not in known:
            raise_unknown_name("lora setting", name, known)
    check_adapter({**settings, "peft_type": "LORA"})
    try:
        config = peft.LoraConfig(**{"task_type": "CAUSAL_LM", "target_modules": "all-linear", **settings})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return peft.get_peft_model(model, config)
    except _BROKEN as error:
        raise CheckpointError(f"lora={dict(settings)!r} does not fit the model: {_first_line(error)}") from error


def _peft() -> Any:
    try:
        import peft  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingDependencyError(f"adapters need peft: {install_extra('peft')}") from error
    return peft


def _check_folder(folder: Path, *, weights: bool) -> None:
    """Says of a folder without a model what it holds instead."""
    if not folder.is_dir():
        return
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{str(folder)!r} holds no config.json, so it is no model's folder: {_listing(folder)}")
    if weights and not any(folder.glob("*.safetensors")):
        hint = ""
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            hint = "; pickled weights are not opened: save them again with safetensors"
        if any(folder.glob("*.gguf")):
            hint = "; `mathturn models convert FILE FOLDER` turns a GGUF file into a folder that has them"
        raise CheckpointError(f"{str(folder)!r} holds no weights (*.safetensors){hint}: {_listing(folder)}")


def _listing(folder: Path) -> str:
    names = sorted(one.name for one in folder.iterdir())
    return f"it holds {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else "it is empty"


def _first_line(error: BaseException) -> str:
    """The beginning of what is often a page of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400] if lines else ''}"
