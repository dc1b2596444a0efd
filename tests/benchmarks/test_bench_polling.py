"""Loops that ask the metadata and send SIGTERM, beside the supervisor: with real processes."""

from benchmarks.clients.baseline import POLL_SECONDS
from benchmarks.scenarios import polling


async def test_each_noticed_node_ends_its_own_process() -> None:
    """Within about an interval, and not all at once: each asks at moments of its own."""
    row = await polling.row(nodes=10, over=0.5)
    values = {figure.label: figure.value for figure in row.figures}
    assert 0 < values["published → received p50"] < values["published → received max"] < POLL_SECONDS + 8
