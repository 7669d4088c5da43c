"""What a verdict is worth."""

from __future__ import annotations

from mathturn_gym.errors import check_float

__all__ = ["affine_reward", "turn_reward"]


def affine_reward(score: float, bias: float, scaling: float) -> float:
    """`((score - 0.5) * 2 - bias) * scaling` of whatever it is given: `turn_reward` without its checks."""
    return ((score - 0.5) * 2 - bias) * scaling


def turn_reward(score: float, *, bias: float = 0.0, scaling: float = 1.0) -> float:
    """The reward of one turn, `((score - 0.5) * 2 - bias) * scaling`, in float64.

    The formula of AReaL's `MathMultiTurnAgent`: +1 for right and -1 for wrong with the defaults.

    Args:
        score: The verdict's score, in [0, 1].
        bias: Subtracted before scaling.
        scaling: Multiplies the result.

    Raises:
        InvalidValueError: the score is outside [0, 1], or a parameter is not finite.

    >>> turn_reward(1.0), turn_reward(0.0), turn_reward(1.0, bias=0.5, scaling=5.0)
    (1.0, -1.0, 2.5)
    """
    check_float("score", score, low=0.0, high=1.0)
    return affine_reward(score, check_float("reward_bias", bias), check_float("reward_scaling", scaling))
