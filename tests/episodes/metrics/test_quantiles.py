"""Quantiles, held against SciPy's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mathturn_gym.episodes.metrics.intervals import beta_cdf, beta_quantile, f_quantile, normal_quantile, t_quantile

shapes = st.floats(0.2, 1e5)


@given(st.floats(0.001, 0.999), shapes, shapes)
def test_the_incomplete_beta_function(x: float, a: float, b: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-8, abs=1e-12)


@given(st.sampled_from([0.001, 0.025, 0.05, 0.5, 0.95, 0.975, 0.999]), shapes, shapes)
def test_its_inverse(p: float, a: float, b: float) -> None:
    assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-8, abs=1e-13)


@given(st.floats(0.5, 0.9995), st.floats(1, 1e6))
def test_students_t(p: float, degrees: float) -> None:
    assert t_quantile(p, degrees) == pytest.approx(stats.t.ppf(p, degrees), rel=1e-7, abs=1e-9)


@given(st.sampled_from([0.025, 0.5, 0.95, 0.975]), st.floats(1, 500), st.floats(1, 500))
def test_fishers_f(p: float, numerator: float, denominator: float) -> None:
    assert f_quantile(p, numerator, denominator) == pytest.approx(stats.f.ppf(p, numerator, denominator), rel=1e-7)


def test_the_limits() -> None:
    assert t_quantile(0.975, float("inf")) == normal_quantile(0.975) == pytest.approx(1.959963984540054)
    assert (beta_cdf(0.0, 2, 3), beta_cdf(1.0, 2, 3), beta_cdf(-1.0, 2, 3), beta_cdf(2.0, 2, 3)) == (0, 1, 0, 1)
