from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.policies import sampling as sampling_module
from mathturn_gym.policies.sampling import Sampling, entropy

LOGITS = torch.tensor([[2.0, -1.0, 0.5, 0.5, -3.0, 1.0]])


def test_temperature_divides_the_logits() -> None:
    expected = torch.log_softmax(LOGITS / 0.7, dim=-1)
    assert torch.allclose(Sampling(temperature=0.7).log_distribution(LOGITS), expected)


def test_top_k_keeps_the_k_likeliest_and_normalizes_again() -> None:
    probs = Sampling(top_k=2).log_distribution(LOGITS).exp()[0]
    kept = torch.softmax(torch.tensor([2.0, 1.0]), dim=-1)
    assert probs.tolist() == pytest.approx([float(kept[0]), 0, 0, 0, 0, float(kept[1])])


def test_top_k_larger_than_the_vocabulary_keeps_all() -> None:
    assert torch.equal(Sampling(top_k=99).log_distribution(LOGITS), torch.log_softmax(LOGITS, dim=-1))


def test_of_equal_logits_the_smaller_id_is_kept() -> None:
    assert Sampling(top_k=3).log_distribution(LOGITS).isfinite().tolist() == [[True, False, True, False, False, True]]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in ((0.4, 1), (0.5, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)):
        assert int(Sampling(top_p=top_p).log_distribution(logits).isfinite().sum()) == kept, top_p


def test_top_k_comes_before_top_p() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    # Among the two likeliest the first has 0.625 of the probability, which reaches 0.6; of all four it has not.
    assert int(Sampling(top_k=2, top_p=0.6).log_distribution(logits).isfinite().sum()) == 1


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 5),
    st.floats(0.05, 1),
)
def test_only_possible_ids_are_drawn(logits: list[float], uniform: float, top_k: int, top_p: float) -> None:
    sampling = Sampling(top_k=top_k, top_p=top_p)
    logprobs = sampling.log_distribution(torch.tensor([logits]))
    chosen = sampling.draw(logprobs, torch.tensor([uniform], dtype=torch.float64))
    assert float(logprobs[0, chosen]) > -np.inf


def test_the_largest_uniform_number_draws_the_last_possible_id() -> None:
    sampling = Sampling(top_k=3)
    last = torch.tensor([np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert sampling.draw(sampling.log_distribution(LOGITS), last).tolist() == [5]
    assert sampling.draw(sampling.log_distribution(LOGITS), torch.zeros(1, dtype=torch.float64)).tolist() == [0]


def test_draws_follow_the_distribution() -> None:
    sampling = Sampling(temperature=1.3)
    logprobs = sampling.log_distribution(LOGITS)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    counts = torch.bincount(sampling.draw(logprobs.expand(20_000, -1), grid), minlength=6) / 20_000
    assert torch.allclose(counts.float(), logprobs.exp()[0], atol=1e-4)


LARGE = 2 * sampling_module._SMALL_VOCABULARY + 57  # the last block is not full


def in_one_piece(logprobs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The draw of a small vocabulary, of a large one."""
    cdf = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    return torch.searchsorted(cdf, (uniforms * cdf[:, -1])[:, None], right=True)[:, 0]


@pytest.mark.parametrize("size", [LARGE, 49152])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.4), Sampling(top_k=50), Sampling(top_p=0.9, min_p=0.01)])
def test_a_large_vocabulary_is_drawn_from_as_in_one_piece(sampling: Sampling, size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    for rows in (1, 7, 64):
        logprobs = sampling.log_distribution(3 * torch.randn(rows, size, generator=generator))
        uniforms = torch.rand(rows, dtype=torch.float64, generator=generator)
        drawn = sampling.draw(logprobs, uniforms)
        assert drawn.tolist() == in_one_piece(logprobs, uniforms).tolist()
        alone = [sampling.draw(logprobs[i : i + 1], uniforms[i : i + 1])[0].item() for i in range(rows)]
        assert drawn.tolist() == alone, "a row's id does not depend on the rows beside it"


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 0.25, 0.5, 0.75, 1.0 - 2.0**-53])
@pytest.mark.parametrize(
    "places", [(0,), (LARGE - 1,), (127, 128), (5, 130, 131, LARGE - 40), (LARGE - 58, LARGE - 57)]
)
def test_only_possible_ids_of_a_large_vocabulary_are_drawn(places: tuple[int, ...], uniform: float) -> None:
    """Borders of blocks, the last block, and uniform numbers at both ends."""
    logits = torch.full((1, LARGE), -torch.inf)
    logits[0, list(places)] = torch.linspace(0.0, 1.3, len(places))
    logprobs = Sampling().log_distribution(logits)
    target = torch.tensor([uniform], dtype=torch.float64)
    drawn = int(Sampling().draw(logprobs, target))
    assert drawn in places
    assert drawn == int(in_one_piece(logprobs, target).clamp_max(places[-1]))


@pytest.mark.parametrize("size", [6, LARGE, 49152])
def test_broken_logits_draw_an_id_of_the_vocabulary(size: int) -> None:
    """So that the decoding loop can say which row is broken."""
    drawn = Sampling().draw(torch.full((2, size), torch.nan), torch.tensor([0.0, 0.9], dtype=torch.float64))
    assert all(0 <= one < size for one in drawn.tolist())


def test_temperature_zero_takes_the_likeliest() -> None:
    sampling = Sampling(temperature=0)
    drawn = sampling.draw(sampling.log_distribution(LOGITS), torch.tensor([0.99], dtype=torch.float64))
    assert drawn.tolist() == [0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -0.1), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.5), ("top_k", -1)],
)
def test_values_outside_their_range_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=field):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_min_p_keeps_what_is_near_the_likeliest() -> None:
    probs = torch.softmax(LOGITS, dim=-1)[0]
    kept = probs >= 0.2 * probs.max()
    found = Sampling(min_p=0.2).log_distribution(LOGITS).exp()[0]
    assert kept.tolist() == [True, False, True, True, False, True]
    assert found.tolist() == pytest.approx(torch.where(kept, probs, 0.0).div(probs[kept].sum()).tolist())


def test_min_p_of_one_is_greedy() -> None:
    assert Sampling(min_p=1.0).log_distribution(LOGITS).exp()[0].tolist() == pytest.approx([1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("min_p", [-0.1, 1.1])
def test_min_p_outside_its_range_is_refused(min_p: float) -> None:
    with pytest.raises(InvalidValueError, match="min_p"):
        Sampling(min_p=min_p)


def test_entropy_counts_what_is_cut_off_as_nothing() -> None:
    assert float(entropy(torch.log(torch.tensor([[0.5, 0.5, 0.0]])))[0]) == pytest.approx(np.log(2))
    assert float(entropy(torch.log_softmax(LOGITS, dim=-1))[0]) == pytest.approx(
        float(-(torch.softmax(LOGITS[0], -1) * torch.log_softmax(LOGITS[0], -1)).sum())
    )
