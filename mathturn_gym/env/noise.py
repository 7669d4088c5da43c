"""Verdicts that are sometimes false: what the reward and the feedback say of a turn, apart from what is true.

The verifier's verdict stays the truth: it is `info["verdict"]`, and metrics count it. With `verdict_noise`, the reward is
made of `info["reward_verdict"]`, and feedback and `stop_on_success` follow `info["feedback_verdict"]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mathturn_gym.errors import InvalidValueError, check_float, raise_unknown_name
from mathturn_gym.seeding import derive_seed
from mathturn_gym.types import Status, TurnContext, Verdict

_PLACES: Final = ("reward", "feedback")
_NAMES: Final = (*_PLACES, "same_coin")
_SEEDS: Final = 2**63  # seeds are below this


@dataclass(frozen=True, slots=True)
class VerdictNoise:
    """How often verdicts are false, in the reward and in the feedback.

    Args:
        reward: Share of right answers that the reward takes for wrong (false negatives), and of wrong answers that it
            takes for right (false positives).
        feedback: The same for feedback and for the end of an episode that stops on success.
        same_coin: One draw a turn decides both, so that equal shares give equal verdicts; else each has its own draw.
    """

    reward: tuple[float, float] = (0.0, 0.0)
    feedback: tuple[float, float] = (0.0, 0.0)
    same_coin: bool = True

    def verdicts(self, episode_seed: int, turn: int, verdict: Verdict) -> tuple[Verdict, Verdict]:
        """What the reward and the feedback take a turn for; the episode's seed decides, so that a copy of it meets the same."""
        seen = []
        for place, shares in zip(_PLACES, (self.reward, self.feedback), strict=True):
            coin = "verdict" if self.same_coin else f"{place} verdict"
            false = derive_seed(coin, episode_seed, turn) / _SEEDS < shares[0 if verdict.correct else 1]
            seen.append(_opposite(verdict) if false else verdict)
        return seen[0], seen[1]

    def contexts(self, context: TurnContext) -> tuple[TurnContext, TurnContext]:
        """A judged turn as the reward and as the feedback see it, earlier turns included.

        Reward terms and feedback read earlier verdicts too, and must not learn the truth from them.
        """
        verdicts = [one.verdict for one in context.earlier] + [context.judged]
        seen = [self.verdicts(context.episode_seed, turn, verdict) for turn, verdict in enumerate(verdicts)]
        rewarded, told = (
            replace(
                context,
                verdict=seen[-1][place],
                earlier=tuple(replace(one, verdict=seen[k][place]) for k, one in enumerate(context.earlier)),
            )
            for place in range(2)
        )
        return rewarded, told


def get_noise(noise: Mapping[str, Any] | None) -> VerdictNoise | None:
    """The noise of the environment's `verdict_noise`.

    Args:
        noise: For example `{"reward": [0.3, 0.0], "feedback": [0.3, 0.0], "same_coin": False}`; None for none.

    >>> get_noise({"feedback": [0.3, 0.1]})
    VerdictNoise(reward=(0.0, 0.0), feedback=(0.3, 0.1), same_coin=True)
    """
    if noise is None:
        return None
    if not isinstance(noise, Mapping):
        raise InvalidValueError(
            f'verdict_noise must be a table as {{"reward": [FALSE NEGATIVES, FALSE POSITIVES]}}, got {noise!r}'
        )
    for name in noise:
        if name not in _NAMES:
            raise_unknown_name("key of verdict_noise", name, _NAMES)
    found: dict[str, Any] = {name: _shares(name, noise[name]) for name in _PLACES if name in noise}
    same = noise.get("same_coin", True)
    if not isinstance(same, bool):
        raise InvalidValueError(f"verdict_noise: same_coin must be true or false, got {same!r}")
    return VerdictNoise(**found, same_coin=same)


def _shares(name: str, given: Any) -> tuple[float, float]:
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise InvalidValueError(f"verdict_noise: {name} must be [FALSE NEGATIVES, FALSE POSITIVES], got {given!r}")
    negatives, positives = (check_float(f"verdict_noise: {name}", share, low=0.0, high=1.0) for share in given)
    return negatives, positives


def _opposite(verdict: Verdict) -> Verdict:
    """Right for wrong and the reverse; a turn without a readable answer is not taken for right."""
    if verdict.status not in (Status.RIGHT, Status.WRONG):
        return verdict
    status = Status.WRONG if verdict.correct else Status.RIGHT
    return replace(verdict, status=status, reason="noise", score=None)
