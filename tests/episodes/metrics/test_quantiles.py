"""SciPy's quantiles as the intervals call them, held against 40 digits of mpmath."""

from __future__ import annotations

import mpmath
import pytest

from mathturn_gym.episodes.metrics.intervals import Pivot, clopper_pearson


@pytest.mark.parametrize(
    ("value", "samples"), [(0.5, 10.0), (0.02, 50.0), (0.137, 33.7), (0.9, 3.0), (0.4, 2000.0), (0.999, 12345.6)]
)
def test_clopper_and_pearsons_ends(value: float, samples: float) -> None:
    """Each end leaves 2.5 % of its beta distribution outside."""
    low, high = clopper_pearson(value, samples, 0.95)
    with mpmath.workdps(40):
        hits = mpmath.mpf(value * samples)
        below = mpmath.betainc(hits, samples - hits + 1, 0, low, regularized=True)
        above = mpmath.betainc(hits + 1, samples - hits, 0, high, regularized=True)
    assert float(below) == pytest.approx(0.025, rel=1e-10)
    assert float(above) == pytest.approx(0.975, rel=1e-10)


@pytest.mark.parametrize("degrees", [1.0, 2.5, 4.0, 30.0, 999.0])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_students_ends_and_p_values(degrees: float, confidence: float) -> None:
    low, high = Pivot(1.0, 2.0, degrees).interval(confidence)
    assert low == pytest.approx(2 - high, abs=1e-12)
    with mpmath.workdps(40):
        t = (mpmath.mpf(high) - 1) / 2
        outside = mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + t**2), regularized=True)
    assert float(outside) == pytest.approx(1 - confidence, rel=1e-10)
    assert Pivot(float(2 * t), 2.0, degrees).p_value() == pytest.approx(1 - confidence, rel=1e-10)


def test_the_ends_of_a_p_value() -> None:
    assert Pivot(0.0, 0.0, 3.0).p_value() == 1.0
    assert Pivot(0.1, 0.0, 3.0).p_value() == 0.0
    assert Pivot(0.0, 0.5, 3.0).p_value() == 1.0
