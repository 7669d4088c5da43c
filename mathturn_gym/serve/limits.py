"""What a server takes from its clients: how many, how much, how fast, how long."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mathturn_gym.errors import InvalidValueError, check_float, check_int

__all__ = ["Limits"]

_BYTES_PER_ID: Final = 10
_MOST_ADDRESSES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a served environment.

    Args:
        max_sessions: Sessions at once; one more is told so and closed.
        session_timeout: Seconds without a message after which a session is closed, and its place is free again.
        send_timeout: Seconds that a client may take to make room for a reply before its connection is cut.
        request_timeout: Seconds that a client may take for the head of a request, and again for its body.
        max_message_bytes: The most that one message or request body may have.
        steps_per_second: Messages of one session per second; a faster session waits. 0 for no limit.
        requests_per_second: New sessions and HTTP requests per second of one address; what is over it gets HTTP status
            429. A burst of `max_sessions` is let through, so that a trainer can open its sessions at once. 0 for no
            limit.
        threads: Threads that verify answers; as many steps are worked on at once.

    Raises:
        InvalidValueError: a value outside its range.
    """

    max_sessions: int = 256
    session_timeout: float = 600.0
    send_timeout: float = 30.0
    request_timeout: float = 10.0
    max_message_bytes: int = 2**20
    steps_per_second: float = 100.0
    requests_per_second: float = 50.0
    threads: int = 8

    def __post_init__(self) -> None:
        """Checks every value."""
        for name, low in (("max_sessions", 1), ("max_message_bytes", 1024), ("threads", 1)):
            check_int(name, getattr(self, name), low=low)
        for name in ("session_timeout", "send_timeout", "request_timeout"):
            check_float(name, getattr(self, name), low=0.01, high=1e9)
        for name in ("steps_per_second", "requests_per_second"):
            check_float(name, getattr(self, name), low=0.0)

    def check_action_fits(self, max_completion_tokens: int) -> None:
        """Raises where an action of full length would be refused for its size."""
        needed = _BYTES_PER_ID * max_completion_tokens + 1024
        if needed > self.max_message_bytes:
            raise InvalidValueError(
                f"max_message_bytes must hold an action of max_completion_tokens={max_completion_tokens} ids as JSON,"
                f" {needed} bytes, got {self.max_message_bytes}"
            )


class Bucket:
    """A token bucket: `burst` at once, `rate` per second in the long run.

    >>> bucket = Bucket(rate=2.0, burst=1, now=lambda: 0.0)
    >>> bucket.wait(), bucket.wait(), bucket.wait()
    (0.0, 0.5, 1.0)
    """

    __slots__ = ("_burst", "_full_at", "_now", "_rate")

    def __init__(self, rate: float, burst: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._full_at = now()  # when the bucket will be full again: all that has to be kept

    def wait(self) -> float:
        """Takes one; returns the seconds after which it is within the rate (0 if it is now)."""
        now = self._now()
        self._full_at = max(self._full_at, now) + 1.0 / self._rate
        return max(0.0, self._full_at - now - self._burst / self._rate)

    def take(self) -> bool:
        """Takes one where the rate allows it now; what is refused costs nothing."""
        before = self._full_at
        if self.wait() == 0.0:
            return True
        self._full_at = before
        return False


class AddressLimiter:
    """A bucket per client address; addresses not heard of lately are forgotten.

    Args:
        rate: Per second and address; 0 for no limit.
        burst: At once.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, address: str) -> bool:
        """True where the address may send one more request now."""
        if not self._rate:
            return True
        bucket = self._buckets.pop(address, None) or Bucket(self._rate, self._burst)
        self._buckets[address] = bucket
        if len(self._buckets) > _MOST_ADDRESSES:
            self._buckets.popitem(last=False)
        return bucket.take()

    @property
    def retry_after(self) -> int:
        """Seconds to name in a refusal."""
        return max(1, math.ceil(1.0 / self._rate)) if self._rate else 1
