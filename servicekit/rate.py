"""Limits how often something is done."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """A rate limit: `burst` tokens at first, and `rate` more each second."""

    rate: float
    burst: float
    _taken: float = 0.0
    _at: float | None = None

    def take(self, now: float) -> float:
        """Takes a token and returns 0, or returns the seconds until the next token; `now` must be monotonic."""
        since = 0.0 if self._at is None else now - self._at
        self._taken, self._at = max(0.0, self._taken - since * self.rate), now
        left = self.burst - self._taken
        if left >= 1.0:
            self._taken += 1.0
            return 0.0
        return (1.0 - left) / self.rate


@dataclass(slots=True)
class TokenBuckets:
    """A rate limit for each key; of more than `most` keys, those that took nothing for the longest time begin anew."""

    rate: float
    burst: float
    most: int = 1000
    _buckets: dict[str, TokenBucket] = field(default_factory=dict)

    def take(self, key: str, now: float) -> float:
        """Takes a token of a key, as `TokenBucket.take` does."""
        bucket = self._buckets.pop(key, None) or TokenBucket(self.rate, self.burst)
        self._buckets[key] = bucket
        if len(self._buckets) > self.most:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(now)
