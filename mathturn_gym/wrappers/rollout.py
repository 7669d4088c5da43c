"""Rollout policies: another engine samples what a trainer learns from.

    train(policy=PolicyConfig("Qwen/…", rollout="continuous"))         transformers' continuous batching, on the trainer's weights
                                        rollout="vllm:"                vLLM in this process, weights handed over in memory
                                        rollout="http://…"             vLLM servers, weights as files or LoRA adapters
                                        rollout="sglang:http://…"      SGLang servers, weights as files

Each is a policy with three more methods: `held` (nothing is sampled inside that would disturb a training step), `sync` (the
trainer's weights are another version now) and `close`. `ROLLOUTS` lists them by what their names begin with.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from mathturn_gym.base.files import parse_json, write_json
from mathturn_gym.base.model_folders import no_progress_bars
from mathturn_gym.errors import InvalidValueError, raise_unknown_name
from mathturn_gym.policies.config import PolicyConfig
from mathturn_gym.policies.continuous import ContinuousPolicy
from mathturn_gym.policies.models import exported_weights
from mathturn_gym.policies.openai import OpenAIPolicy
from mathturn_gym.policies.vllm import VLLMPolicy, on_cpu
from mathturn_gym.wrappers.policy import CausalLMPolicy


class RolloutEngine(Protocol):
    """A policy that samples for a trainer; `collect` asks it as it asks any other."""

    def held(self) -> AbstractContextManager[None]:
        """Inside, the trainer computes with its model; requests under way wait where they would disturb it."""
        ...

    def sync(self, version: int) -> None:
        """Takes the trainer's weights as they are now, as `version`, which is above the last one."""
        ...

    def close(self) -> None:
        """Ends the engine or its connections; requests under way raise a `PolicyError`."""
        ...


class VLLMRollout(VLLMPolicy):
    """vLLM in the trainer's process.

    With `enable_sleep_mode=True` (GPUs) it gives its memory to each update, and takes it back for the new weights.

    Args:
        source: The policy that is trained.
        name: A checkpoint to start from; "" writes the trainer's weights to a temporary folder.
        **options: Of `vllm.LLM`.
    """

    def __init__(self, source: CausalLMPolicy, name: str, **options: Any) -> None:
        self._source, self._asleep = source, False
        self._sleeps = bool(options.get("enable_sleep_mode"))
        dtype = str(source.model.dtype).removeprefix("torch.")
        with tempfile.TemporaryDirectory(prefix="mathturn-vllm-") as folder:
            if not name:
                save_whole(source, Path(folder), tied=not on_cpu())
            super().__init__(
                name or folder,
                tokenizer=source.tokenizer,
                stop_ids=source.stop_ids,
                version=source.version,
                **asdict(source.sampling),
                **{"dtype": dtype, "max_model_len": source.max_length, **options},
            )
        if name:
            self._hand_over(source.version)

    @contextmanager
    def held(self) -> Iterator[None]:
        """See `RolloutEngine.held`."""
        if self._sleeps and not self.running:
            self.sleep()
            self._asleep = True
        yield
        self._wake()

    def sync(self, version: int) -> None:
        """See `RolloutEngine.sync`."""
        self._wake()
        self._hand_over(version)

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self.wake_up()

    def _hand_over(self, version: int) -> None:
        self.update_weights(exported_weights(self._source.model), version=version)


class ServerRollout(OpenAIPolicy):
    """Servers whose weights are files that the trainer writes.

    Args:
        source: The policy that is trained.
        urls: Base URLs, or one router's.
        mode: What an update does with requests under way; see `OpenAIPolicy.update_weights`.
        weights_dir: Folder that the servers see under the same path; None is a temporary one of this machine.
        adapter: Send the LoRA adapter alone; else it is merged into whole weights.
        **options: Of `OpenAIPolicy`.
    """

    def __init__(
        self,
        source: CausalLMPolicy,
        urls: list[str],
        *,
        mode: Any,
        weights_dir: str | None = None,
        adapter: bool = False,
        **options: Any,
    ) -> None:
        if adapter and not hasattr(source.model, "peft_config"):
            raise InvalidValueError(
                "policy.rollout_options.adapter sends a LoRA adapter: set policy.lora, or leave it out"
            )
        self._source, self._mode, self._adapter = source, mode, adapter
        self._own_folder = weights_dir is None
        self._folder = Path(weights_dir or tempfile.mkdtemp(prefix="mathturn-weights-"))
        super().__init__(
            urls,
            tokenizer=source.tokenizer,
            stop_ids=source.stop_ids,
            version=source.version,
            support=source.sampling.truncates,
            api_key=os.environ.get("MATHTURN_API_KEY"),
            **asdict(source.sampling),
            # About a quarter of an hour: a large model is loaded for minutes where its server is started again.
            **{"endpoint": "auto", "retries": 60, **options},
        )
        try:
            self.sync(source.version)  # whatever the servers were started with
        except BaseException:
            self.close()
            raise

    def held(self) -> AbstractContextManager[None]:
        """See `RolloutEngine.held`: the servers go on."""
        return nullcontext()

    def sync(self, version: int) -> None:
        """See `RolloutEngine.sync`."""
        folder = self._folder / f"version-{version}"
        if self._adapter:
            self._source.save_pretrained(folder)
        else:
            save_whole(self._source, folder)
        self.update_weights(folder.resolve(), version=version, mode=self._mode, adapter=self._adapter)
        # The last version stays: a server that is started again is given it.
        for old in self._folder.glob("version-*"):
            if old != folder:
                shutil.rmtree(old)

    def close(self) -> None:
        """See `RolloutEngine.close`; the weights' files are deleted unless `weights_dir` was given."""
        super().close()
        if self._own_folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def save_whole(source: CausalLMPolicy, folder: Path, *, tied: bool = True) -> None:
    """Writes a policy as a model's folder, with its adapter merged into the weights.

    Args:
        source: The policy.
        folder: Made where it is not there.
        tied: False says in config.json that no weights are tied: vLLM's CPU build keeps a packed copy of a tied output layer
            when it is given other weights, and goes on sampling with the old one.
    """
    model: Any = source.model.get_base_model() if hasattr(source.model, "peft_config") else source.model
    with no_progress_bars():
        model.save_pretrained(folder, state_dict=exported_weights(source.model))
    if not tied:
        config = parse_json((folder / "config.json").read_bytes())
        write_json(folder / "config.json", {**config, "tie_word_embeddings": False})
    if source.tokenizer is not None:
        source.tokenizer.save_pretrained(folder)


# ---- by name


@dataclass(frozen=True, slots=True)
class RolloutKind:
    """A kind of rollout policy."""

    # Makes it of the trained policy, what follows the scheme, options, and whether updates come while requests are
    # under way.
    load: Callable[[CausalLMPolicy, str, Mapping[str, Any], bool], RolloutEngine]
    supports: bool = False  # truncated sampling can be trained on: its answers have the ids that could be drawn
    masks: bool = False  # a grammar's mask holds in it, because it calls the trainer's own model


def _continuous(source: CausalLMPolicy, rest: str, options: Mapping[str, Any], in_flight: bool) -> RolloutEngine:
    if rest:
        raise InvalidValueError(f"policy.rollout 'continuous' samples with the trained weights: leave {rest!r} out")
    # a step that is computed ahead would be counted to the weights after an update.
    fixed = {"use_async_batching": False} if in_flight else {}
    return ContinuousPolicy(
        source.model,
        source.tokenizer,
        sampling=source.sampling,
        stop_ids=source.stop_ids,
        vocab_size=source.vocab_size,
        max_length=source.max_length,
        seed=source.draw_seed(),
        version=source.version,
        **{**fixed, **options},
    )


def _vllm(source: CausalLMPolicy, rest: str, options: Mapping[str, Any], in_flight: bool) -> RolloutEngine:
    extra = {"return_sampling_mask": True} if source.sampling.truncates else {}
    return VLLMRollout(source, rest, **{**extra, **options})


def _servers(source: CausalLMPolicy, rest: str, options: Mapping[str, Any], in_flight: bool) -> RolloutEngine:
    return ServerRollout(source, rest.split(","), **{"mode": "abort" if in_flight else "wait", **options})


def _sglang(source: CausalLMPolicy, rest: str, options: Mapping[str, Any], in_flight: bool) -> RolloutEngine:
    return _servers(source, rest, {"api": "sglang", **options}, in_flight)


ROLLOUTS: Final[dict[str, RolloutKind]] = {
    "continuous": RolloutKind(_continuous, masks=True),
    "vllm:": RolloutKind(_vllm, supports=True),
    "http://": RolloutKind(_servers, supports=True),
    "https://": RolloutKind(_servers, supports=True),
    "sglang:": RolloutKind(_sglang, supports=True),
}
"""Kinds by what `PolicyConfig.rollout` begins with; a new one is one function and one entry."""


def load_rollout(config: PolicyConfig, source: CausalLMPolicy, *, in_flight: bool = False) -> RolloutEngine:
    """The engine that samples for a trainer.

    Args:
        config: Names it (`rollout`, `rollout_options`).
        source: The policy that is trained; weights, tokenizer and sampling are its own.
        in_flight: Updates come while requests are under way.
    """
    name = config.rollout or ""
    scheme = next((one for one in ROLLOUTS if name.startswith(one)), None)
    if scheme is None:
        raise_unknown_name("policy.rollout", name, [*ROLLOUTS])
    kind, sampling = ROLLOUTS[scheme], source.sampling
    if sampling.truncates and not kind.supports:
        raise InvalidValueError(
            f"policy.rollout {name!r} does not say which ids truncated sampling kept: train with top_p=1, top_k=0 and"
            " min_p=0, or sample with vLLM or SGLang"
        )
    if source.grammar is not None and not kind.masks:
        raise InvalidValueError(
            f"policy.grammar {source.grammar!r} does not reach policy.rollout {name!r}: leave one out"
        )
    try:
        return kind.load(
            source, name if scheme.endswith("//") else name.removeprefix(scheme), config.rollout_options, in_flight
        )
    except TypeError as error:  # a keyword that its class does not take
        raise InvalidValueError(f"policy.rollout_options of {name!r}: {error}") from error
