"""`RaySettings`: how many workers, of what, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mathturn_gym.errors import InvalidValueError, check_float, check_int, raise_unknown_name

_PLACEMENTS: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """How many workers, of what, and where. None of it decides an episode.

    Args:
        rollout_actors: Processes with environments and a verifier pool; `RayEngine.scale` changes their number.
        policy_actors: Processes that hold a model and answer all rollout actors, decoding their requests together. 0
            gives every rollout actor a policy of its own (right for small models, and for policies that are clients of a
            server).
        num_envs: Episodes that a rollout actor plays at once, where its policy is asked in asyncio (policy actors,
            servers).
        share: Episodes that a rollout actor is given at once, rounded up to whole groups. A policy of the actor's own
            decodes a share together, so it decides the last bits of log-probs, and the number of actors does not.
        cpus: Cores that Ray counts for a rollout actor.
        gpus: GPUs for each actor that holds a model; may be a share of one.
        placement: Ray's strategy for a placement group of all actors, which are then scheduled together or not at all:
            "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"; None leaves each actor to Ray.
        address: Of a cluster; None takes `RAY_ADDRESS`, or starts Ray on this machine.
        start_timeout: Seconds until all actors must be ready. A cluster that grows with demand needs minutes.
        max_deaths: Workers that may die one after the other without a single share in between.

    Raises:
        InvalidValueError: a value outside its range.
    """

    rollout_actors: int = 2
    policy_actors: int = 0
    num_envs: int = 64
    share: int = 16
    cpus: float = 1.0
    gpus: float = 0.0
    placement: str | None = None
    address: str | None = None
    start_timeout: float = 120.0
    max_deaths: int = 20

    def __post_init__(self) -> None:
        """Checks every value."""
        for name in ("rollout_actors", "num_envs", "share", "max_deaths"):
            check_int(name, getattr(self, name), low=1)
        check_int("policy_actors", self.policy_actors, low=0)
        for name in ("cpus", "gpus"):
            check_float(name, getattr(self, name), low=0.0)
        if check_float("start_timeout", self.start_timeout, low=0.0) == 0.0:
            raise InvalidValueError("start_timeout must be above 0, got 0.0")
        if self.placement is not None and self.placement not in _PLACEMENTS:
            raise_unknown_name("placement", self.placement, _PLACEMENTS)

    def check_devices(self, device: str | None) -> None:
        """Refuses actors whose models would all go to the first GPU, beside the learner.

        Ray hides GPUs from an actor that asks for a part of them, and hides nothing from one that asks for none.

        Args:
            device: `PolicyConfig.device`.

        Raises:
            InvalidValueError: a GPU is visible, `gpus` is 0, and no device is named.
        """
        import torch

        if not self.gpus and device is None and torch.cuda.is_available():
            raise InvalidValueError(
                "gpus=0: this machine has a GPU, and every actor with a model would load it to cuda:0, beside the learner's; set"
                " gpus (1, or a share) for the actors, or policy.device='cpu' to leave the GPU to the learner"
            )
