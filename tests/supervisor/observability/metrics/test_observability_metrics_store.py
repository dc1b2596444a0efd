"""The first change that does not become durable shows in the metrics."""

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.observability.hooks import OPERATIONS
from supervisor.observability.metrics.wiring import Metrics
from supervisor.refusals import Refusals

_FAILURES = "job_supervisor_store_failures_total"


def test_failures_begin_at_zero() -> None:
    """Else a series would begin with its first one, and nobody would see it grow."""
    metrics = Metrics("0.0.0", Refusals(), Bulkhead(Clock()), Clock())
    hooks = metrics.for_leader(lambda: True)
    assert [metrics.registry.get_sample_value(_FAILURES, {"operation": each}) for each in OPERATIONS] == [0, 0, 0]
    hooks.on_store_write("decide", 0.1, durable=False)
    assert metrics.registry.get_sample_value(_FAILURES, {"operation": "decide"}) == 1
