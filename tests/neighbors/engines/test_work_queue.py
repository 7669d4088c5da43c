"""Every episode is handed out, and counted once, whatever happens to workers."""

from __future__ import annotations

import random

import pytest

from mathturn_gym.errors import InvalidValueError
from mathturn_gym.neighbors.engines._work_queue import Share, WorkQueue
from mathturn_gym.testing import synthetic_episode
from mathturn_gym.types import Episode


def played(share: Share) -> list[Episode]:
    return [synthetic_episode(0, index, [2, 1]) for index in share.indices]


def test_shares_are_cut_at_the_same_places_whoever_asks() -> None:
    work_queue = WorkQueue(3, 10, size=4)
    shares = [work_queue.hand_out(worker) for worker in "abca"]
    assert shares == [Share(3, 1), Share(4, 4), Share(8, 4), Share(12, 1)]
    assert work_queue.hand_out("a") is None
    assert not work_queue.complete


def test_nothing_beyond_the_limit_begins() -> None:
    work_queue = WorkQueue(0, None, size=4)
    assert work_queue.hand_out("a", limit=6) == Share(0, 4)
    assert work_queue.hand_out("a", limit=6) == Share(4, 2)
    assert work_queue.hand_out("a", limit=6) is None
    assert work_queue.hand_out("a", limit=20) == Share(6, 2)  # and from there in whole shares again
    assert work_queue.hand_out("a", limit=20) == Share(8, 4)


def test_what_is_done_already_is_not_played() -> None:
    work_queue = WorkQueue(0, 12, size=4, done=[0, 1, 2, 3, 5, 100])
    assert [work_queue.hand_out("a") for _ in range(3)] == [Share(4, 4), Share(8, 4), None]
    new = work_queue.take("a", Share(4, 4), played(Share(4, 4)))
    assert [episode.index for episode in new] == [4, 6, 7]
    assert (work_queue.finished, work_queue.dropped, work_queue.complete) == (3, 1, False)
    work_queue.take("a", Share(8, 4), played(Share(8, 4)))
    assert work_queue.complete


def test_a_lost_workers_shares_come_first_and_a_late_delivery_counts_once() -> None:
    work_queue = WorkQueue(0, 8, size=4)
    share = work_queue.hand_out("a")
    assert share == Share(0, 4)
    assert work_queue.lost("a") == [share]
    assert work_queue.hand_out("b") == share
    assert [episode.index for episode in work_queue.take("b", share, played(share))] == [0, 1, 2, 3]
    assert work_queue.take("a", share, played(share)) == []  # it was slow, not dead
    assert (work_queue.replayed, work_queue.dropped, work_queue.finished) == (4, 4, 4)


def test_a_delivery_after_all_spares_the_replay() -> None:
    work_queue = WorkQueue(0, 4, size=4)
    share = work_queue.hand_out("a")
    assert share is not None
    work_queue.lost("a")
    work_queue.take("a", share, played(share))
    assert work_queue.hand_out("b") is None
    assert work_queue.complete


def test_other_episodes_than_those_asked_for_are_refused() -> None:
    work_queue = WorkQueue(0, 8, size=4)
    share = work_queue.hand_out("a")
    assert share is not None
    with pytest.raises(InvalidValueError, match=r"given the episodes 0 to 3 and delivered \[0, 1, 2\]"):
        work_queue.take("a", share, played(share)[:3])


@pytest.mark.parametrize("seed", range(20))
def test_random_deaths(seed: int) -> None:
    """Law 4 under fire: workers die, deliver late, and others come; every index arrives exactly once."""
    rng = random.Random(seed)
    work_queue = WorkQueue(0, 101, size=8)
    held: list[tuple[int, Share]] = []
    arrived: list[int] = []
    workers = list(range(4))
    for _ in range(100_000):
        if work_queue.complete:
            break
        act = rng.random()
        worker = rng.choice(workers)
        if act < 0.5:
            share = work_queue.hand_out(worker)
            if share is not None:
                held.append((worker, share))
        elif act < 0.8 and held:
            worker, share = held.pop(rng.randrange(len(held)))
            arrived += [episode.index for episode in work_queue.take(worker, share, played(share))]
        elif act < 0.9:
            work_queue.lost(worker)
            if rng.random() < 0.5:  # what it had is gone; otherwise it may still deliver
                held = [(who, share) for who, share in held if who != worker]
            workers[workers.index(worker)] = max(workers) + 1
    assert sorted(arrived) == list(range(101))
