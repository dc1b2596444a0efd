"""PromQL that counts every event once, also the first one of a series.

`increase()` alone sees nothing of the first event of a series that begins with it, as those do whose labels nobody
knows beforehand: of two reclaims in a new zone it would show one.
"""

from collections.abc import Sequence


def total(metric: str, by: Sequence[str] = ()) -> str:
    """How much a counter has grown over the whole time that is shown, restarts and leaders that have gone included.

    A process that Prometheus sees for the first time counts whole.
    """
    grown = f"increase({metric}[$__range])"
    first = f"(min_over_time({metric}[$__range]) unless {metric} offset $__range)"
    return _sum(f"{grown} + {first} or {grown}", by)


def each(metric: str, by: Sequence[str] = ()) -> str:
    """How much a counter has grown since the point before, each event in just one of them."""
    return _sum(f"({metric} - {metric} offset $__interval) >= 0 or {metric}", by)


def rate(metric: str, by: Sequence[str] = ()) -> str:
    """Of what goes on all the time, a second."""
    return _sum(f"rate({metric}[$__rate_interval])", by)


def total_quantile(quantile: float, histogram: str, by: Sequence[str] = ()) -> str:
    """Of all that was observed in the time that is shown."""
    return _quantile(quantile, total(f"{histogram}_bucket", ("le", *by)))


def each_quantile(quantile: float, histogram: str, by: Sequence[str] = ()) -> str:
    """Of what was observed since the point before; no number where nothing was."""
    return _quantile(quantile, each(f"{histogram}_bucket", ("le", *by)))


def rate_quantile(quantile: float, histogram: str, by: Sequence[str] = ()) -> str:
    """Of what goes on all the time."""
    return _quantile(quantile, rate(f"{histogram}_bucket", ("le", *by)))


def _quantile(quantile: float, buckets: str) -> str:
    return f"histogram_quantile({quantile:g}, {buckets})"


def _sum(what: str, by: Sequence[str]) -> str:
    return f"sum by ({', '.join(by)}) ({what})" if by else f"sum({what})"
