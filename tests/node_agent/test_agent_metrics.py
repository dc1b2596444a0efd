"""The agent's metrics as Prometheus scrapes them."""

import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.metrics import AgentMetrics
from node_agent.notices import AnnouncementState, NoticeReport, NoticeSubject, NoticeSubjectKind, SourceName
from node_agent.outbox import NoticeOutbox
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from simulator.cloud.dialects import termination_time
from tests.node_agent.agent_process import AgentProcess, agent
from tests.node_agent.fake_metadata import TERMINATION, Reply, metadata
from tests.node_agent.fake_supervisor import fake_supervisor
from tests.testkit.waiting import until

Value = Callable[..., float | None]


async def scrape(running: AgentProcess) -> Value:
    await until(lambda: running.event("metrics.listening"))
    line = running.event("metrics.listening")
    assert line is not None
    async with aiohttp.ClientSession() as http, http.get(f"http://{line['address']}/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))

    def value(name: str, **labels: str) -> float | None:
        samples = [each for family in families for each in family.samples if each.name == f"node_agent_{name}"]
        return next((each.value for each in samples if each.labels == labels), None)

    return value


async def test_polls_reports_and_the_stream_are_measured(tmp_path: Path) -> None:
    """From the metadata's answer to the supervisor's acknowledgement; failures are counted and age the last answer."""
    (tmp_path / "token").write_text("secret")
    async with fake_supervisor() as supervisor, metadata() as cloud:
        environ = {
            "NODE_AGENT_NODE_NAME": "n1",
            "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
            "NODE_AGENT_TOKEN_FILE": str(tmp_path / "token"),
            "NODE_AGENT_SOURCES": "aliyun",
            "NODE_AGENT_METADATA_URL": cloud.url,
            "NODE_AGENT_METRICS_ADDRESS": "127.0.0.1:0",
            "NODE_AGENT_POLL_SECONDS": "0.05",
        }
        async with agent(environ) as running:
            await until(lambda: running.event("supervisor.welcomed"))
            cloud.replies[TERMINATION] = Reply(200, termination_time(time.time() + 300.0).encode())
            await until(
                lambda: any(each.announcement == pb.ANNOUNCEMENT_ACTIVE for each in supervisor.streams[0].notices)
            )
            value = await scrape(running)
            assert value("build_info", version="0.1.0") == 1
            assert (value("connected"), value("connections_total")) == (1, 1)
            assert (value("reports_total", announcement="active") or 0) >= 1
            assert (value("polls_total", source="aliyun", result="noticed") or 0) >= 1
            assert (value("poll_seconds_count", source="aliyun") or 0) >= 2
            assert 0 <= (value("poll_age_seconds", source="aliyun") or 0) < 30
            cloud.replies[TERMINATION] = Reply(500)
            before = (await scrape(running))("polls_total", source="aliyun", result="noticed")
            failed = 0.0
            while failed < 3:
                value = await scrape(running)
                failed = value("polls_total", source="aliyun", result="unknown") or 0.0
            assert value("polls_total", source="aliyun", result="noticed") in {before, (before or 0) + 1}
            await running.stop()


def report(number: int, revision: int = 1) -> NoticeReport:
    about = NoticeSubject(NoticeSubjectKind.POD, f"pod-{number}", f"uid-{number}")
    return NoticeReport(SourceName("pods"), about, revision, AnnouncementState.ACTIVE)


def test_a_report_is_measured_until_it_is_acknowledged() -> None:
    """Once, by its latest revision; nothing is kept of what is settled, and repeated acknowledgements are none."""
    metrics = AgentMetrics("0", Clock(), Bulkhead(Clock()))
    outbox = NoticeOutbox(2000, metrics.on_report, metrics.on_acknowledged)
    for number in range(1000):
        outbox.put(report(number))
        outbox.put(report(number, 2))
        outbox.acknowledge(report(number).id, 1)
        outbox.acknowledge(report(number).id, 2)
        outbox.acknowledge(report(number).id, 2)
    assert metrics.registry.get_sample_value("node_agent_reports_total", {"announcement": "active"}) == 2000
    assert metrics.registry.get_sample_value("node_agent_acknowledgement_seconds_count") == 1000
    assert not metrics._reported_at  # Nothing else shows that it does not grow.
