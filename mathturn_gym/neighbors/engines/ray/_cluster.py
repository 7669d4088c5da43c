"""A cluster that can be used: it answers, its nodes have this package, and there is room for the actors."""

from __future__ import annotations

import os
import pkgutil
import platform
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from mathturn_gym.base import VERSION
from mathturn_gym.errors import EngineError, install_extra
from mathturn_gym.neighbors.engines.ray_settings import RaySettings

FACTS: Final[dict[str, str]] = {
    "mathturn_gym": VERSION,
    "python": platform.python_version(),
    "torch": version("torch"),
    "numpy": version("numpy"),
    "transformers": version("transformers"),
    "host": platform.node(),
    "path": str(Path(__file__).parents[3] / "__init__.py"),
}
"""Versions, the machine's name, and where the package lies there."""


# ---- a cluster that can be used: it answers, its nodes have this package, and there is room for the actors


GONE: Final[tuple[type[BaseException], ...]] = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
)
"""What says that a worker, or what it made, is gone, and nothing about the work itself."""

_ALIKE: Final = ("mathturn_gym", "torch", "transformers")
_CONNECT_SECONDS: Final = 10.0
_PROBE: Final = "mathturn_gym.neighbors.engines.ray._cluster:FACTS"


@contextmanager
def connected(settings: RaySettings) -> Iterator[None]:
    """Ray, for a block: one that the program has initialized is used and left as it is.

    Raises:
        EngineError: no cluster at the address, or one of another version.
    """
    if ray.is_initialized():
        yield
        return
    _check_answers(settings.address or os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(address=settings.address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"the Ray cluster at {settings.address!r}" if settings.address else "Ray"
        raise EngineError(f"{where} cannot be used: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises where nothing listens at an address; Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto" and its like are Ray's to resolve
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineError(
            f"nothing answers at the address {address!r} of the Ray cluster ({error}): is it the head node's, with the port"
            " of `ray start --head --port`?"
        ) from error


def check_nodes(own: Mapping[str, str], timeout: float) -> None:
    """Asks every node what it is, before anything heavy starts there.

    Args:
        own: This process's facts.
        timeout: Seconds to wait.

    Raises:
        EngineError: a node cannot import this package or what it needs, or has another version of it.
    """
    # A function of the standard library: a node without the package can run it, and say so.
    probe = ray.remote(pkgutil.resolve_name)
    here = ray.get_runtime_context().get_node_id()  # workers of this node import what this process has imported
    for node in [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]:
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ref = probe.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(_PROBE)
        try:
            facts = ray.get(ref, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            raise EngineError(f"node {name} of the cluster does not answer within {timeout:g} s") from error
        except ray.exceptions.RayTaskError as error:
            raise EngineError(
                f"node {name} of the cluster cannot import this package ({_last_line(error)}): {install_extra('ray')}"
                f" there, version {own['mathturn_gym']}"
            ) from error
        unlike = [what for what in _ALIKE if facts[what] != own[what]]
        if unlike:
            what = unlike[0]
            raise EngineError(
                f"node {name} of the cluster has {what} {facts[what]}, and this process has {own[what]}: install the same"
            )


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]


def object_store_bytes() -> int:
    """The smallest object store of a node: everything that is broadcast must fit into it."""
    sizes = [int(node["Resources"].get("object_store_memory", 0)) for node in ray.nodes() if node["Alive"]]
    return min((size for size in sizes if size), default=0)


class Placement:
    """Room for the actors: a placement group, or the cluster as it is.

    Args:
        settings: See `RaySettings`.

    Raises:
        EngineError: the cluster has not got the room, and does not get it in time.
    """

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        holds_model = {"CPU": settings.cpus, "GPU": settings.gpus}
        rollout = holds_model if not settings.policy_actors else {"CPU": settings.cpus}
        self.kinds = {"policy": _positive(holds_model), "rollout": _positive(rollout)}
        self._group: Any = None
        bundles = [self.kinds["policy"]] * settings.policy_actors + [self.kinds["rollout"]] * settings.rollout_actors
        if settings.placement is None:
            self._wait_for_room(bundles)
        else:
            self._reserve(settings.placement, bundles)

    def _reserve(self, strategy: str, bundles: Sequence[dict[str, float]]) -> None:
        self._group = placement_group(list(bundles), strategy=strategy)
        if not self._group.wait(self._settings.start_timeout):
            self.release()
            raise EngineError(
                f"no room for {len(bundles)} actors under placement {strategy!r} within"
                f" {self._settings.start_timeout:g} s: asked for {_sum(bundles)}, the cluster has {_has()}"
            )

    def _wait_for_room(self, bundles: Sequence[dict[str, float]]) -> None:
        """Ray would keep actors waiting without a word, and for ever."""
        wanted, deadline = _sum(bundles), time.monotonic() + self._settings.start_timeout
        first = ray.cluster_resources()
        while any(ray.cluster_resources().get(name, 0.0) < amount for name, amount in wanted.items()):
            alone = len([node for node in ray.nodes() if node["Alive"]]) == 1 and self._settings.address is None
            if alone or time.monotonic() > deadline:
                raise EngineError(
                    f"no room for {len(bundles)} actors: they take {wanted}, the cluster has {_has(first)}; fewer actors, or"
                    " cpus below 1 for each"
                )
            time.sleep(1.0)

    def options(self, kind: str, *, beyond: bool = False) -> dict[str, Any]:
        """Where an actor is made.

        Args:
            kind: "policy" or "rollout".
            beyond: It is more than room was asked for at the start (`scale`): wherever there is some.
        """
        needs = self.kinds[kind]
        found: dict[str, Any] = {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0)}
        if self._group is not None and not beyond:
            # -1: any bundle of the group with room.
            found["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, -1)
        return found

    def release(self) -> None:
        """Gives the room back."""
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


def _positive(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in resources.items() if amount > 0} or {"CPU": 0.001}


def _sum(bundles: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for bundle in bundles for name in bundle})
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def _has(resources: Mapping[str, float] | None = None) -> dict[str, float]:
    found = ray.cluster_resources() if resources is None else resources
    return {name: found[name] for name in ("CPU", "GPU") if name in found}
