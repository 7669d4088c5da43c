"""`load_policy`: from a name or a `PolicyConfig` to a policy that is ready to play.

    "builtin"  "random"  "smollm2"  FOLDER  RUN  ORG/NAME  hf:NAME  vllm:FOLDER  http(s)://…  module:callable
                                       │     └─ its checkpoint/, and what it was sampled with (policy.json)
                                       └─ a model's folder, or an adapter's

What a name means is decided before anything heavy is loaded, so that a misspelt one fails at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from mathturn_gym.base.files import parse_json
from mathturn_gym.base.model_folders import NAMED_MODELS, folder_of
from mathturn_gym.base.model_folders import is_hub_name
from mathturn_gym.policies.config import BUILTIN_PATH, POLICY_NAMES, PolicyConfig
from mathturn_gym.errors import CheckpointError, InvalidValueError, raise_unknown_name
from mathturn_gym.types import Policy

_REMEMBERED: Final = ("model", "tokenizer", "dtype", "grammar", "temperature", "top_p", "top_k", "min_p")
"""What a folder's policy.json may say."""

_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p")
_DEFAULTS: Final[Mapping[str, Any]] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "grammar": "none"}
_CALLABLE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

Kind = Literal["random", "folder", "hub", "vllm", "server", "callable"]


@dataclass(frozen=True, slots=True)
class _Source:
    """What a name stands for.

    Args:
        kind: How it is loaded.
        name: Folder, hub name, URLs or import path.
        adapter: Folder of an adapter that stands where a model was expected.
    """

    kind: Kind
    name: str
    adapter: str | None = None


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
    config = replace(policy, **changes) if isinstance(policy, PolicyConfig) else _config_of(str(policy), changes)
    source = _source_of(config.model)
    config = _with_memory(config, source)
    load: Callable[[PolicyConfig, _Source], Any] = {
        "random": _random,
        "folder": _local,
        "hub": _local,
        "vllm": _vllm,
        "server": _server,
        "callable": _called,
    }[source.kind]
    return load(config, source)


def resolved_config(config: PolicyConfig) -> PolicyConfig:
    """The config with what the policy's folder remembers, and the defaults of sampling, in place of None.

    Args:
        config: Nothing is loaded for it.

    Raises:
        InvalidValueError: an unknown name.
        CheckpointError: the folder's policy.json cannot be read.
    """
    source = _source_of(config.model)
    found = _with_memory(config, source)
    if source.kind in ("random", "callable"):  # they sample as they will
        return found
    return replace(found, **{name: one for name, one in _DEFAULTS.items() if getattr(found, name) is None})


def _config_of(name: str, changes: Mapping[str, Any]) -> PolicyConfig:
    return PolicyConfig.from_json({"model": name, **changes})


# ---- what a name stands for


def _source_of(name: str) -> _Source:
    """What a name stands for; nothing is loaded."""
    if name == "builtin":
        return _Source("folder", str(BUILTIN_PATH))
    if name == "random":
        return _Source("random", name)
    if name in NAMED_MODELS:
        return _Source("folder", str(folder_of(name)))
    if name.startswith(("http://", "https://")):
        return _Source("server", name)
    scheme, _, rest = name.partition(":")
    if scheme == "hf" and rest:
        return _folder(Path(rest)) if Path(rest).exists() else _Source("hub", rest)
    if scheme == "vllm" and rest:
        return _Source("vllm", str(folder_of(rest)) if rest in NAMED_MODELS else rest)
    if Path(name).exists():
        return _folder(Path(name))
    if _CALLABLE.fullmatch(name) and importlib.util.find_spec(scheme.partition(".")[0]) is not None:
        return _Source("callable", name)
    # A path below a folder that is here is a misspelt path; anything else of two parts may be the hub's.
    if name.count("/") == 1 and is_hub_name(name) and not Path(name).parent.is_dir():
        return _Source("hub", name)
    near = _nearest(name)
    if name.startswith(("./", "../", "~", "/", ".\\")):
        hint = f": did you mean {near!r}?" if near else " (a run's or a model's folder is expected)"
        raise InvalidValueError(f"unknown policy {name!r}: there is no such folder in {str(Path.cwd())!r}{hint}")
    hint = f": did you mean {near!r}?" if near else ""
    raise InvalidValueError(f"unknown policy {name!r}{hint} (allowed: {POLICY_NAMES})")


def _folder(path: Path) -> _Source:
    """A model's folder, an adapter's, or a run's with a checkpoint in it."""
    if not path.is_dir():
        raise CheckpointError(f"{str(path)!r} is a file: a policy is loaded from the folder around it")
    if (path / "checkpoint").is_dir():
        path = path / "checkpoint"
    elif (path / "policy.safetensors").is_file():
        raise CheckpointError(
            f"{str(path)!r} holds a run of a classic algorithm: mathturn_gym.baselines.classic.load_classic reads it"
        )
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        return _Source("folder", str(path), adapter=str(path))
    return _Source("folder", str(path))


def _nearest(name: str) -> str | None:
    """What a misspelt name may have meant: a fixed name, or what lies beside the path."""
    _, colon, rest = name.partition(":")
    if "/" in name and not colon:
        # The first part that is not there is the misspelt one.
        missing = next(path for path in [*reversed(Path(name).parents), Path(name)] if not path.exists())
        beside = [one.name for one in missing.parent.iterdir() if one.is_dir()] if missing.parent.is_dir() else []
        found = difflib.get_close_matches(missing.name, beside, n=1)
        return str(missing.parent / found[0]) if found else None
    names = [f"{known}:{rest}" for known in ("hf", "vllm")] if colon else ["builtin", "random", *NAMED_MODELS]
    names += [f"hf:{name}"] if is_hub_name(name) else []
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)


# ---- what a folder remembers


def _with_memory(config: PolicyConfig, source: _Source) -> PolicyConfig:
    """The config with what the folder remembers where it says nothing itself."""
    if source.kind not in ("folder", "vllm") or not Path(source.name).is_dir():
        return config
    remembered = _memory_of(Path(source.name))
    fields = {name: value for name, value in remembered.items() if name != "model" and getattr(config, name) is None}
    return replace(config, **fields)


def _memory_of(folder: Path) -> dict[str, Any]:
    """What policy.json says, checked."""
    file = folder / "policy.json"
    if not file.is_file():
        return {}
    try:
        data = parse_json(file.read_bytes())
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
            known = parse_json((adapter / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{adapter / 'adapter_config.json'}: {error}") from error
    if not isinstance(known, str) or not known:
        raise CheckpointError(f"{str(adapter)!r} does not say what model it adapts: give model=BASE, adapter={adapter}")
    source = _source_of(known)
    if source.kind not in ("folder", "hub") or source.adapter is not None:
        # A downloaded folder must not choose what is executed or asked.
        raise CheckpointError(f"{str(adapter)!r} adapts {known!r}, which is neither a folder nor a hub name")
    return source.name


# ---- loading


def _local(config: PolicyConfig, source: _Source) -> Any:
    """A transformers model in this process."""
    from mathturn_gym.wrappers.policy import CausalLMPolicy

    _check_options(config, CausalLMPolicy.__init__)
    adapter = source.adapter or config.adapter
    kwargs: dict[str, Any] = {**_sampling(config), **config.options}
    if config.tokenizer is not None:
        kwargs["tokenizer"] = _named_tokenizer(config.tokenizer)
    elif source.adapter is not None and (Path(source.adapter) / "tokenizer.json").is_file():
        kwargs["tokenizer"] = _named_tokenizer(source.adapter)  # a run writes it beside the adapter
    try:
        return _loaded(config, source, adapter, kwargs)
    except InvalidValueError as error:  # a tokenizer that the mask cannot work with, a chat template of no use
        raise InvalidValueError(f"policy {config.model!r}: {error}") from error


def _loaded(config: PolicyConfig, source: _Source, adapter: str | None, kwargs: Mapping[str, Any]) -> Any:
    from mathturn_gym.wrappers.policy import CausalLMPolicy

    return CausalLMPolicy.from_pretrained(
        source.name if source.adapter is None else _base_of(Path(source.adapter)),
        adapter=adapter,
        lora=config.lora,
        dtype=_dtype(config.dtype),
        attention=config.attention,
        init_seed=config.seed if config.init == "random" else None,
        device=_device(config.device),
        grammar=None if config.grammar == "none" else config.grammar,
        seed=config.seed,
        max_batch_size=config.max_batch_size,
        # An adapter's checkpoint notes the name: the folder of a named model is another one on every machine.
        base=config.model if config.model in NAMED_MODELS else source.name,
        **kwargs,
    )


def _random(config: PolicyConfig, source: _Source) -> Any:
    """Uniform over the ids of a tokenizer."""
    from mathturn_gym.env.dialogue import Dialogue
    from mathturn_gym.testing import RandomPolicy

    _refuse(config, "random", "dtype", "lora", "adapter", "grammar", "max_batch_size", "attention", *_SAMPLING)
    dialogue = Dialogue(config.tokenizer or "builtin")
    end = dialogue.end_of_turn[-1] if dialogue.end_of_turn else None
    return RandomPolicy(dialogue.vocab_size, end, config.seed, tokenizer=dialogue.tokenizer)


def _vllm(config: PolicyConfig, source: _Source) -> Any:
    """VLLM in this process."""
    from mathturn_gym.policies import VLLMPolicy

    _refuse(config, "vllm:", "lora", "adapter", "grammar", "attention", "max_batch_size", "device")
    engine: dict[str, Any] = {} if config.dtype is None else {"dtype": config.dtype}
    tokenizer = _named_tokenizer(config.tokenizer or source.name)
    return VLLMPolicy(source.name, tokenizer=tokenizer, **_sampling(config), **engine, **config.options)


def _server(config: PolicyConfig, source: _Source) -> Any:
    """One or more servers."""
    from mathturn_gym.policies import OpenAIPolicy

    _refuse(config, "a server", "dtype", "device", "lora", "adapter", "grammar", "attention")
    _check_options(config, OpenAIPolicy.__init__)
    if config.tokenizer is None:
        raise InvalidValueError(
            f"policy {source.name!r} needs tokenizer=FOLDER_OR_NAME of the model that is served: a server takes and"
            " returns token ids, and the environment has to write them"
        )
    options = dict(config.options)
    if config.max_batch_size is not None:
        options.setdefault("concurrency", config.max_batch_size)
    return OpenAIPolicy(
        source.name.split(","),
        tokenizer=_named_tokenizer(config.tokenizer),
        api_key=os.environ.get("MATHTURN_API_KEY"),
        **_sampling(config),
        **options,
    )


def _called(config: PolicyConfig, source: _Source) -> Any:
    """A policy of the user's: an object, or what a class or function gives when it is called with `options`."""
    module_name, _, path = source.name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise InvalidValueError(f"policy {source.name!r} cannot be imported: {error}") from error
    _refuse(config, "module:callable", "dtype", "device", "lora", "adapter", "grammar", "attention", *_SAMPLING)
    if inspect.isclass(found) or not isinstance(found, Policy):
        if not callable(found):
            raise InvalidValueError(f"policy {source.name!r} is neither a policy nor callable, but {found!r}")
        found = found(**config.options)
    if not callable(getattr(found, "complete", None)) and not callable(getattr(found, "acomplete", None)):
        raise InvalidValueError(
            f"policy {source.name!r} gave {found!r}, which has no complete(contexts, max_tokens=, seeds=)"
        )
    if config.tokenizer is not None:
        found.tokenizer = _named_tokenizer(config.tokenizer)
    elif not hasattr(found, "tokenizer"):
        found.tokenizer = None
    return found


def _sampling(config: PolicyConfig) -> dict[str, Any]:
    """Those sampling parameters that are given."""
    return {name: value for name in _SAMPLING if (value := getattr(config, name)) is not None}


def _refuse(config: PolicyConfig, kind: str, *names: str) -> None:
    """Raises for options that would do nothing."""
    defaults = {field.name: field.default for field in dataclasses.fields(PolicyConfig)}
    for name in names:
        if getattr(config, name) != defaults[name]:
            raise InvalidValueError(f"{name} has no meaning for {kind} policies: leave it out ({config.model!r})")
    if config.init == "random":
        raise InvalidValueError(f'init="random" has no meaning for {kind} policies ({config.model!r})')


def _check_options(config: PolicyConfig, function: Callable[..., Any]) -> None:
    """Raises for an option that the policy's class does not take, or that has a field of its own."""
    fields = {field.name for field in dataclasses.fields(PolicyConfig)}
    allowed = set(inspect.signature(function).parameters) - fields - {"self", "urls", "base", "api_key"}
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
