"""`load_policy`: from a name or a `PolicyConfig` to a policy that is ready to play.

    "builtin"  "random"  "smollm2"  FOLDER  RUN  ORG/NAME  hf:NAME  vllm:FOLDER  http(s)://…  chat:MODEL@URL  module:callable
                                       │     └─ its checkpoint/, and what it was sampled with (policy.json)
                                       └─ a model's folder, or an adapter's

`SCHEMES` lists what a name can begin with: a new kind of policy is one function, its `PolicyKind`, and one entry there. The
kind of a name is decided before anything heavy is loaded, so that a misspelt name fails at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mathturn_gym.base.files import parse_json, read_regular
from mathturn_gym.base.import_paths import import_object, is_import_path, module_exists
from mathturn_gym.base.model_folders import NAMED_MODELS, folder_of, is_hub_name
from mathturn_gym.errors import CheckpointError, InvalidValueError, raise_unknown_name
from mathturn_gym.policies.config import BUILTIN_PATH, POLICY_NAMES, PolicyConfig
from mathturn_gym.types import Policy

# Fields that a folder's policy.json may have.
_REMEMBERED: Final = ("model", "tokenizer", "dtype", "grammar", "temperature", "top_p", "top_k", "min_p")

_MOST_JSON: Final = 1 << 24
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p")
_DEFAULTS: Final[Mapping[str, Any]] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "grammar": "none"}


def load_policy(policy: str | Path | PolicyConfig, **changes: Any) -> Any:
    """The policy behind a name or a config.

    Args:
        policy: A name as `POLICY_NAMES` lists them, or a config.
        **changes: Fields of `PolicyConfig` to set, by name.

    Returns:
        A policy. Its `tokenizer` is the one whose ids it speaks (an environment is made with it); None where a
        callable of yours gave a policy without one.

    Raises:
        InvalidValueError: an unknown name (the nearest is suggested), or options that do not go together.
        CheckpointError: nothing loadable is there.
        MissingDependencyError: the policy needs a library that is not installed.
        PolicyError: a server that cannot be used.

    >>> policy = load_policy("builtin", temperature=0.5, device="cpu")
    >>> policy.sampling.temperature, policy.scheduler
    (0.5, 'streaming')
    """
    if not isinstance(policy, (str, Path, PolicyConfig)):
        raise InvalidValueError(
            f"policy must be a name, a folder or a PolicyConfig, got a {type(policy).__name__}; of a model that is loaded"
            " already, CausalLMPolicy(model, tokenizer) makes a policy"
        )
    if isinstance(policy, PolicyConfig):
        config = replace(policy, **changes)
    else:
        config = PolicyConfig.from_json({"model": str(policy), **changes})
    kind, place = _resolve(config.model)
    if kind.remembers and Path(place).is_dir():
        config = _with_memory(config, Path(place))
    _refuse(config, kind)
    return kind.load(config, place)


def resolved_config(config: PolicyConfig) -> PolicyConfig:
    """The config with what the policy's folder remembers, and the defaults of sampling, in place of None."""
    kind, place = _resolve(config.model)
    found = _with_memory(config, Path(place)) if kind.remembers and Path(place).is_dir() else config
    if "temperature" in kind.refused:  # such policies sample as they will
        return found
    return replace(found, **{name: one for name, one in _DEFAULTS.items() if getattr(found, name) is None})


# ---- what a name stands for


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A kind of policy: its loader and the fields that it refuses."""

    title: str  # what error messages call the kind
    # Makes the policy of a config and a place: a folder, a hub name, URLs or an import path.
    load: Callable[[PolicyConfig, str], Any]
    # Fields of `PolicyConfig` without a meaning for the kind; an error where they are set.
    refused: tuple[str, ...] = ()
    remembers: bool = False  # the place may be a folder whose policy.json fills in what the config leaves out


def _resolve(name: str) -> tuple[PolicyKind, str]:
    """The kind of a policy and its place; nothing is loaded."""
    scheme = next((scheme for scheme in SCHEMES if name.startswith(scheme) and name != scheme), None)
    if scheme is not None:
        rest = name if scheme.endswith("//") else name.removeprefix(scheme)
        if SCHEMES[scheme] is MODEL:
            return MODEL, _model_folder(Path(rest)) if Path(rest).exists() else rest
        return SCHEMES[scheme], str(folder_of(rest)) if rest in NAMED_MODELS else rest
    if name == "builtin":
        return MODEL, str(BUILTIN_PATH)
    if name == "random":
        return RANDOM, name
    if name in NAMED_MODELS:
        return MODEL, str(folder_of(name))
    if Path(name).exists():
        return MODEL, _model_folder(Path(name))
    # The gate of run folders (`names_code`) calls every such text code: what the parser does not take is never imported.
    if is_import_path(name) and module_exists(name):
        return CALLABLE, name
    # a path below a folder that is here is a misspelt path; anything else of two parts may be the hub's.
    if name.count("/") == 1 and is_hub_name(name) and not Path(name).parent.is_dir():
        return MODEL, name
    near = _nearest(name)
    if name.startswith(("./", "../", "~", "/", ".\\")):
        hint = f": did you mean {near!r}?" if near else " (a run's or a model's folder is expected)"
        raise InvalidValueError(f"unknown policy {name!r}: there is no such folder in {str(Path.cwd())!r}{hint}")
    hint = f": did you mean {near!r}?" if near else ""
    raise InvalidValueError(f"unknown policy {name!r}{hint} (allowed: {POLICY_NAMES})")


def _model_folder(path: Path) -> str:
    """A model's folder, an adapter's, or the checkpoint of a run's."""
    if not path.is_dir():
        raise CheckpointError(f"{str(path)!r} is a file: a policy is loaded from the folder around it")
    if (path / "checkpoint").is_dir():
        return str(path / "checkpoint")
    if (path / "policy.safetensors").is_file():
        raise CheckpointError(
            f"{str(path)!r} holds a run of a classic algorithm: mathturn_gym.baselines.classic.load_classic reads it"
        )
    return str(path)


def _is_adapter(place: str) -> bool:
    return (Path(place) / "adapter_config.json").is_file() and not (Path(place) / "config.json").is_file()


def _nearest(name: str) -> str | None:
    """The nearest name to a misspelt one: a fixed name, or a file beside the path."""
    _, colon, rest = name.partition(":")
    if "/" in name and not colon:
        # The first part that is not there is the misspelt one.
        missing = next(path for path in [*reversed(Path(name).parents), Path(name)] if not path.exists())
        beside = [one.name for one in missing.parent.iterdir() if one.is_dir()] if missing.parent.is_dir() else []
        found = difflib.get_close_matches(missing.name, beside, n=1)
        return str(missing.parent / found[0]) if found else None
    prefixes = [scheme for scheme in SCHEMES if scheme.endswith(":")]
    names = [f"{scheme}{rest}" for scheme in prefixes] if colon else ["builtin", "random", *NAMED_MODELS]
    names += [f"hf:{name}"] if is_hub_name(name) else []
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)


# ---- what a folder remembers


def _with_memory(config: PolicyConfig, folder: Path) -> PolicyConfig:
    """The config, with what the folder's policy.json says where the config says nothing."""
    remembered = _memory_of(folder)
    fields = {name: value for name, value in remembered.items() if name != "model" and getattr(config, name) is None}
    return replace(config, **fields)


def _memory_of(folder: Path) -> dict[str, Any]:
    """The content of policy.json, checked; {} where there is none."""
    file = folder / "policy.json"
    if not file.is_file():
        return {}
    try:
        data = parse_json(read_regular(file, _MOST_JSON))
        if not isinstance(data, dict):
            raise InvalidValueError(f"must be an object, got {type(data).__name__}")
        for name in data:
            if name not in _REMEMBERED:
                raise_unknown_name("field", name, _REMEMBERED)
        PolicyConfig.from_json(data)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    return data


def _base_of(adapter: Path) -> str:
    """The model that an adapter was trained around."""
    known = _memory_of(adapter).get("model")
    if known is None:
        try:
            known = parse_json(read_regular(adapter / "adapter_config.json", _MOST_JSON)).get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{adapter / 'adapter_config.json'}: {error}") from error
    if not isinstance(known, str) or not known:
        raise CheckpointError(f"{str(adapter)!r} does not say what model it adapts: give model=BASE, adapter={adapter}")
    kind, place = _resolve(known)
    if kind is not MODEL or _is_adapter(place):
        # a downloaded folder must not choose what is executed or asked.
        raise CheckpointError(f"{str(adapter)!r} adapts {known!r}, which is neither a folder nor a hub name")
    return place


# ---- loading


def _model(config: PolicyConfig, place: str) -> Any:
    """A transformers model in this process, from a folder or the hub."""
    from mathturn_gym.wrappers.policy import CausalLMPolicy

    _check_options(config, CausalLMPolicy.__init__)
    adapted = _is_adapter(place)
    kwargs: dict[str, Any] = {**_sampling(config), **config.options}
    if config.tokenizer is not None:
        kwargs["tokenizer"] = _named_tokenizer(config.tokenizer)
    elif adapted and (Path(place) / "tokenizer.json").is_file():
        kwargs["tokenizer"] = _named_tokenizer(place)  # a run writes it beside the adapter
    try:
        return CausalLMPolicy.from_pretrained(
            _base_of(Path(place)) if adapted else place,
            adapter=place if adapted else config.adapter,
            lora=config.lora,
            dtype=_dtype(config.dtype),
            attention=config.attention,
            init_seed=config.seed if config.init == "random" else None,
            device=_device(config.device),
            grammar=None if config.grammar == "none" else config.grammar,
            seed=config.seed,
            max_batch_size=config.max_batch_size,
            # An adapter's checkpoint notes the name: the folder of a named model is another one on every machine.
            base=config.model if config.model in NAMED_MODELS else place,
            **kwargs,
        )
    except InvalidValueError as error:  # a tokenizer that the mask cannot work with, a chat template of no use
        raise InvalidValueError(f"policy {config.model!r}: {error}") from error


def _random(config: PolicyConfig, place: str) -> Any:
    """Uniform over the ids of a tokenizer."""
    from mathturn_gym.env.dialogue import Dialogue
    from mathturn_gym.testing import RandomPolicy

    dialogue = Dialogue(config.tokenizer or "builtin")
    end = dialogue.end_of_turn[-1] if dialogue.end_of_turn else None
    return RandomPolicy(dialogue.vocab_size, end, config.seed, tokenizer=dialogue.tokenizer)


def _vllm(config: PolicyConfig, place: str) -> Any:
    """VLLM in this process."""
    from mathturn_gym.policies import VLLMPolicy

    engine: dict[str, Any] = {} if config.dtype is None else {"dtype": config.dtype}
    tokenizer = _named_tokenizer(config.tokenizer or place)
    return VLLMPolicy(place, tokenizer=tokenizer, **_sampling(config), **engine, **config.options)


def _server(config: PolicyConfig, place: str) -> Any:
    """One or more servers."""
    from mathturn_gym.policies import OpenAIPolicy

    _check_options(config, OpenAIPolicy.__init__)
    if config.tokenizer is None:
        raise InvalidValueError(
            f"policy {place!r} needs tokenizer=FOLDER_OR_NAME of the model that is served: a server takes and"
            " returns token ids, and the environment has to write them"
        )
    options = dict(config.options)
    if config.max_batch_size is not None:
        # What decodes together on a server is the requests under way.
        options.setdefault("concurrency", config.max_batch_size)
    return OpenAIPolicy(
        place.split(","),
        tokenizer=_named_tokenizer(config.tokenizer),
        api_key=os.environ.get("MATHTURN_API_KEY"),
        **_sampling(config),
        **options,
    )


def _chat(config: PolicyConfig, place: str) -> Any:
    """A model behind a chat API."""
    from mathturn_gym.policies import ChatPolicy

    _check_options(config, ChatPolicy.__init__)
    model, found, url = place.partition("@http")
    if not found:
        raise InvalidValueError(
            f"policy {config.model!r} must be chat:MODEL@URL, as chat:gpt-5@https://api.openai.com/v1"
        )
    key = os.environ.get("MATHTURN_API_KEY")
    return ChatPolicy(f"http{url}", model, api_key=key, **_sampling(config), **config.options)


def _called(config: PolicyConfig, place: str) -> Any:
    """A policy of the user's: an object, or the result of calling a class or function with `options`."""
    found = import_object("policy", place)
    if inspect.isclass(found) or not isinstance(found, Policy):
        if not callable(found):
            raise InvalidValueError(f"policy {place!r} is neither a policy nor callable, but {found!r}")
        found = found(**config.options)
    if not callable(getattr(found, "complete", None)) and not callable(getattr(found, "acomplete", None)):
        raise InvalidValueError(
            f"policy {place!r} gave {found!r}, which has no complete(contexts, max_tokens=, seeds=)"
        )
    if config.tokenizer is not None:
        found.tokenizer = _named_tokenizer(config.tokenizer)
    elif not hasattr(found, "tokenizer"):
        found.tokenizer = None
    return found


_NO_MODEL: Final = ("dtype", "device", "lora", "adapter", "grammar", "attention")
_NOT_RANDOM: Final = tuple(field for field in (*_NO_MODEL, "max_batch_size", *_SAMPLING) if field != "device")

MODEL: Final = PolicyKind("", _model, remembers=True)
RANDOM: Final = PolicyKind("random", _random, _NOT_RANDOM)
CALLABLE: Final = PolicyKind("module:callable", _called, (*_NO_MODEL, *_SAMPLING))
_VLLM: Final = PolicyKind("vllm:", _vllm, ("lora", "adapter", "grammar", "attention", "max_batch_size", "device"), True)
_CHAT: Final = PolicyKind("chat:", _chat, (*_NO_MODEL, "tokenizer", "max_batch_size", "top_k", "min_p"))
_SERVER: Final = PolicyKind("a server", _server, _NO_MODEL)

SCHEMES: Final[Mapping[str, PolicyKind]] = {
    "hf:": MODEL,
    "vllm:": _VLLM,
    "http://": _SERVER,
    "https://": _SERVER,
    "chat:": _CHAT,
}
"""Kinds of policies by what their names begin with; `MODEL_SCHEMES` has the words before a colon, for the gate."""


# ---- what loaders share


def _sampling(config: PolicyConfig) -> dict[str, Any]:
    """Those sampling parameters that are given."""
    return {name: value for name in _SAMPLING if (value := getattr(config, name)) is not None}


def _refuse(config: PolicyConfig, kind: PolicyKind) -> None:
    """Raises for fields that would do nothing."""
    defaults = {field.name: field.default for field in dataclasses.fields(PolicyConfig)}
    for name in kind.refused:
        if getattr(config, name) != defaults[name]:
            raise InvalidValueError(f"{name} has no meaning for {kind.title} policies: leave it out ({config.model!r})")
    if config.init == "random" and kind is not MODEL:
        raise InvalidValueError(f'init="random" has no meaning for {kind.title} policies ({config.model!r})')


def _check_options(config: PolicyConfig, function: Callable[..., Any]) -> None:
    """Raises for an option that the policy's class does not take, or that has a field of its own."""
    fields = {field.name for field in dataclasses.fields(PolicyConfig)}
    allowed = set(inspect.signature(function).parameters) - fields - {"self", "urls", "url", "base", "api_key"}
    for name in config.options:
        if name in fields:
            raise InvalidValueError(f"options: {name} is a field of PolicyConfig; set it there")
        if name not in allowed:
            raise_unknown_name("policy option", name, allowed)


def _named_tokenizer(name: str) -> Any:
    from mathturn_gym.env.dialogue import load_tokenizer

    return load_tokenizer(name)


def _device(name: str | None) -> str:
    """The device of a name, checked; the GPU, if there is one, where none is given."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        if name.startswith("gpu"):
            raise InvalidValueError(
                f"unknown device {name!r}: did you mean 'cuda{name[3:]}'? (allowed: cpu, cuda, cuda:1, mps, …)"
            ) from error
        reason = str(error).partition("\n")[0]
        raise InvalidValueError(f"device {name!r} cannot be used here ({reason}); cpu always can") from error
    return name


def _dtype(name: str | None) -> Any:
    import torch

    return None if name is None else getattr(torch, name)
