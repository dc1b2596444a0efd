"""PromQL of the dashboards.

`increase()` misses the first event of a series that begins with it. Series whose labels are not known beforehand do
that: of two reclaims in a new zone it would show one. So a series that is new in the time that is asked for counts with
its whole value.
"""

import re
from collections.abc import Sequence

POOL = ("cloud", "zone", "instance_type")
"""The labels of a capacity pool."""

POOL_LEGEND = "/".join(f"{{{{{label}}}}}" for label in POOL)


def total(metric: str, by: Sequence[str] = ()) -> str:
    """The increase of a counter over the whole time range, across restarts and former leaders.

    A process that Prometheus sees for the first time counts with its whole value.
    """
    grown = f"increase({metric}[$__range])"
    first = f"(min_over_time({metric}[$__range]) unless {metric} offset $__range)"
    return _sum(f"{grown} + {first} or {grown}", by)


def each(metric: str, by: Sequence[str] = ()) -> str:
    """The increase of a counter since the previous point. A panel needs a minimum interval of some scrapes."""
    return _sum(f"({metric} unless {metric} offset $__interval) or increase({metric}[$__rate_interval])", by)


def rate(metric: str, by: Sequence[str] = ()) -> str:
    """The rate per second of continuous activity."""
    return _sum(f"rate({metric}[$__rate_interval])", by)


def said(metric: str, by: Sequence[str] = ()) -> str:
    """The rate per second of what processes say once a minute."""
    return _sum(f"rate({metric}[10m])", by)


def time_share(part: str, whole: str) -> str:
    """The share of two gauges in the time range, weighted by time."""
    return f"{_sum(f'sum_over_time({part}[$__range])', ())} / ({_sum(f'sum_over_time({whole}[$__range])', ())} > 0)"


def total_quantile(quantile: float, histogram: str, by: Sequence[str] = ()) -> str:
    """The quantile of all observations in the time range."""
    return _quantile(quantile, total(f"{histogram}_bucket", ("le", *by)))


def each_quantile(quantile: float, histogram: str, by: Sequence[str] = ()) -> str:
    """The quantile of the observations since the previous point; no value if there were none."""
    return _quantile(quantile, each(f"{histogram}_bucket", ("le", *by)))


def rate_quantile(quantile: float, histogram: str, by: Sequence[str] = ()) -> str:
    """The quantile of continuous observations."""
    return _quantile(quantile, rate(f"{histogram}_bucket", ("le", *by)))


def _quantile(quantile: float, buckets: str) -> str:
    return f"histogram_quantile({quantile:g}, {buckets})"


def _sum(expression: str, by: Sequence[str]) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


_METRIC = re.compile(r"\b((?:job_supervisor|node_agent|state_keeper)_\w+)(?:{([^}]*)})?")
_CHOSEN = 'cluster=~"$cluster",namespace=~"$namespace"'


def of_the_chosen_installation(expr: str) -> str:
    """The same query for the installations that the variables `cluster` and `namespace` select."""
    return _METRIC.sub(lambda found: f"{found[1]}{{{','.join(filter(None, (_CHOSEN, found[2])))}}}", expr)
