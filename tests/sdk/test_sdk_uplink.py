"""How long a process waits before it calls again."""

from kubeai.elastic.threads import StderrLog
from kubeai.elastic.uplink import CallRetry
from kubeai.elastic.wire import Unreachable


def test_a_confirmed_report_forgets_the_absence_before_it() -> None:
    """A second failover costs a report no more than the first one."""
    retry, away = CallRetry(StderrLog()), Unreachable("nobody listens")
    for _ in range(50):
        for _ in range(10):
            assert retry.after(away) <= 1.0
        retry.was_reached()
        assert retry.after(away) <= 0.1
