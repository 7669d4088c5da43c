"""Which session a context continues, at a cost that does not grow with the number of sessions."""

from __future__ import annotations

import time

import numpy as np

from mathturn_gym.policies._replicas import PrefixIndex
from mathturn_gym.types import Ids


def ids(count: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(0, 50_000, count)


def test_a_context_continues_the_longest_that_is_known() -> None:
    prefixes = PrefixIndex()
    first, second = ids(30, 0), ids(30, 1)
    a, b = prefixes.of(first), prefixes.of(second)
    assert a != b
    prefixes.remember(first, a)
    prefixes.remember(second, b)
    assert prefixes.of(first) == a
    longer = np.concatenate([first, ids(9, 2)])
    assert prefixes.of(longer) == a
    prefixes.remember(longer, "other")
    assert prefixes.of(np.concatenate([longer, [3]])) == "other"
    assert prefixes.of(np.concatenate([first, [3]])) == a


def test_a_context_that_begins_otherwise_is_new() -> None:
    prefixes = PrefixIndex()
    known = ids(30, 0)
    prefixes.remember(known, prefixes.of(known))
    changed = known.copy()
    changed[0] += 1
    swapped = known.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    names = {prefixes.of(known), prefixes.of(changed), prefixes.of(swapped), prefixes.of(known[:-1])}
    assert len(names) == 4


def test_padding_with_the_id_zero_is_another_context() -> None:
    prefixes = PrefixIndex()
    prefixes.remember(np.array([5]), "a")
    assert prefixes.of(np.array([0, 5])) != "a"
    assert prefixes.of(np.array([5, 0])) == "a"


def test_the_oldest_are_forgotten_and_what_ended_at_once() -> None:
    prefixes = PrefixIndex(room=3)
    for number in range(5):
        prefixes.remember(np.array([number]), "abcde"[number])
    assert len(prefixes) == 3
    assert prefixes.of(np.array([4, 7])) == "e"
    assert prefixes.of(np.array([0, 7])) not in set("abcde")
    prefixes.release(np.array([4, 7, 8]))
    assert len(prefixes) == 2


def seconds_per_lookup(contexts: int) -> float:
    prefixes = PrefixIndex()
    rng = np.random.default_rng(0)
    known = [rng.integers(0, 50_000, rng.integers(500, 4_000)) for _ in range(400)]
    for number in range(contexts):
        context = known[number % 400].copy()
        context[0] = number  # as many different contexts as asked for, of many lengths
        prefixes.remember(context, str(number))
    asked = [np.concatenate([known[number], ids(100, number)]) for number in range(200)]
    for number, context in enumerate(asked):
        context[0] = number
    best = np.inf
    for _ in range(3):
        began = time.process_time()
        for number, context in enumerate(asked):
            assert prefixes.of(context) == str(number)
        best = min(best, (time.process_time() - began) / len(asked))
    return best


def test_a_lookup_costs_the_same_among_many_contexts() -> None:
    few, many = seconds_per_lookup(400), seconds_per_lookup(20_000)
    assert many < 3 * few + 1e-4
    assert many < 2e-3
