"""The supervisor's metrics as Prometheus scrapes them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from reclaim.v1 import reclaim_pb2 as wire
from structlog.testing import capture_logs

from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.metrics import guarded
from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState
from supervisor.domain.order import ProcessDirective
from supervisor.observability.hooks import MetricsHooks
from supervisor.observability.metrics.wiring import Metrics
from supervisor.observability.record import recorder
from supervisor.observability.record.database import file_url
from supervisor.refusals import Refusals
from tests.testkit.server_process import started
from tests.testkit.serving import PeerRefusal, Served, noticed, serving
from tests.testkit.waiting import until

SUDDEN = {"source": "metadata", "class": "sudden"}


class Scraped:
    def __init__(self, families: Collection[Metric]) -> None:
        self.families = families

    def value(self, name: str, **labels: str) -> float | None:
        full = f"job_supervisor_{name}"
        found = [each for family in self.families for each in family.samples if each.name == full]
        return next((each.value for each in found if each.labels == labels), None)

    def exemplars(self, name: str) -> list[dict[str, str]]:
        full = f"job_supervisor_{name}"
        samples = [each for family in self.families if family.name == full for each in family.samples]
        return [each.exemplar.labels for each in samples if each.exemplar is not None]


async def scrape(address: Address | str) -> Scraped:
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics", headers=headers) as answer:
        assert answer.status == 200
        text = await answer.text()
        # It has no annotations.
        return Scraped(list(text_string_to_metric_families(text)))  # type: ignore[no-untyped-call]


Scrape = Callable[[], Any]


@asynccontextmanager
async def measured(directory: Path, **changes: Any) -> AsyncIterator[tuple[Served, Scrape]]:
    """A supervisor that nobody has spoken to yet, and how to ask what it measures."""
    clock, refusals = Clock(), Refusals()
    metrics = Metrics("1.2.3", refusals, Bulkhead(Clock()), clock)
    hooks = metrics.for_leader(lambda: True)
    async with (
        metrics.server(Address("127.0.0.1", 0)).serving() as address,
        serving(directory, hooks=hooks, refusals=refusals, **changes) as served,
    ):
        yield served, lambda: scrape(address)


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[tuple[Served, Scrape]]:
    async with measured(tmp_path) as scene:
        yield scene


async def test_agents_that_share_a_uid_are_counted_while_they_are_connected(scene: tuple[Served, Scrape]) -> None:
    served, ask = scene
    await served.peers.agents(["n3", "n4"])
    agents = [await served.peers.agent(node, node_uid="one-uid") for node in ("n1", "n2")]
    assert (await ask()).value("agents_sharing_uid") == 2
    await agents[0].say(goodbye=wire.Goodbye())
    await served.agent_is("n1", connected=False)
    assert (await ask()).value("agents_sharing_uid") == 0


async def test_the_walk_of_one_notice_is_measured(scene: tuple[Served, Scrape]) -> None:
    """From the agent's word to the suspension: every count and every duration is there, and leads to its notice."""
    served, ask = scene
    agents = await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", 0)
    before = await ask()
    assert before.value("jobs", phase="Running") == 1
    assert (before.value("workers"), before.value("uncovered_workers", missing="stream")) == (2, 1)
    assert before.value("unacknowledged_stop_seconds_left") is None
    await agents["n2"].notices("n2")
    stop = await process.lines.matching(directive="STOP")
    meanwhile = await ask()
    assert 0 < meanwhile.value("unacknowledged_stop_seconds_left") <= 60
    assert meanwhile.value("active_notices", **SUDDEN) == 1
    assert await process.reports("saved", stop) == PeerRefusal(200, None)
    wait = await launcher.lines.matching(order="wait")
    await launcher.reports(run=1, running=False, exit_code=-15, applied=wait["generation"])
    await until(lambda: served.job("job").decision.phase is Phase.SUSPENDED and not served.job("job").decision.hosts)
    after = await ask()
    assert {
        name: after.value(f"{name}_total", **labels)
        for name, labels in {
            "notices": {"source": "metadata", "outcome": "received"},
            "reclaims": {"source": "metadata", "cloud": "unknown", "zone": "unknown", "instance_type": "unknown"},
            "groups": {"outcome": "stopped"},
            "acknowledgements": {"kind": "saved"},
            "suspensions": {},
            "late_stops": {},
        }.items()
    } == {"notices": 1, "reclaims": 1, "groups": 1, "acknowledgements": 1, "suspensions": 1, "late_stops": 0}
    for name, labels in {
        "notice_lead_seconds": SUDDEN,
        "notice_to_decision_seconds": {"decision": "stop"},
        "decision_to_directive_seconds": {"directive": "STOP"},
        "notice_to_directive_seconds": {"directive": "STOP"},
        "acknowledgement_seconds": {},
        "acknowledgement_margin_seconds": {},
        "store_seconds": {"operation": "decide"},
    }.items():
        assert after.value(f"{name}_count", **labels), name
    assert after.exemplars("notice_to_directive_seconds") == [{"notice_id": "metadata/n2/uid-n2", "job": "job"}]
    assert after.value("notice_to_directive_seconds_sum", directive="STOP") < 30
    assert (after.value("jobs", phase="Suspended"), after.value("workers")) == (1, 0)
    assert after.value("unacknowledged_stop_seconds_left") is None
    assert after.value("released_worker_seconds_total") > 0


async def test_who_is_there_is_looked_up(scene: tuple[Served, Scrape]) -> None:
    """Agents, their sources and all streams, now; what was refused, by wire and reason."""
    served, ask = scene
    agents = await served.peers.agents(["n1", "n2"])
    await served.peers.running("job", ["n1", "n2"])
    agents["n2"].call.cancel()
    await served.agent_is("n2", connected=False)
    assert (await served.peers.post("/v1/launchers/stream", "nonsense", {})).status == 401
    found = await ask()
    assert [found.value("agents", state=state) for state in ("connected", "unknown")] == [1, 1]
    states = [found.value("agent_sources", source="metadata", state=state) for state in ("clear", "unknown", "noticed")]
    assert states == [1, 1, 0]
    assert [found.value("streams", peer=peer) for peer in ("agent", "launcher", "process")] == [1, 1, 0]
    assert found.value("uncovered_workers", missing="agent") == 1
    assert found.value("refused_total", wire="http", code="bad_token") == 1
    assert (found.value("build_info", version="1.2.3"), found.value("leader")) == (1, 1)


async def test_worker_seconds_are_summed_up_by_account(scene: tuple[Served, Scrape]) -> None:
    """Those of runs belong to `running`, and another counter has what a process says of them. Both only grow."""
    served, ask = scene
    await served.peers.agents(["n1", "n2"])
    _, order = await served.peers.running("job", ["n1", "n2"], max_workers=3, requested_workers=3)
    process = await served.peers.process(order["token"], "n1", 0)
    running = await process.lines.matching(directive="RUN")
    spent = {"seconds": 0.001, "first": 0, "highest": 1, "made": 1}
    assert (await process.reports("saved", running, spent=spent)).status == 200
    found = await ask()

    def of(name: str, account: str) -> float:
        return float(found.value(f"{name}_total", job_namespace="", account=account))

    held = of("worker_seconds", "running")
    assert held == pytest.approx(2 * of("worker_seconds", "missing"), rel=0.2)
    assert of("worker_seconds", "waiting") >= 0.0
    assert 0.0 < of("told_worker_seconds", "training") <= held
    assert of("told_worker_seconds", "repeating") == 0.0
    found = await ask()
    assert of("worker_seconds", "running") > held


async def test_a_record_whose_database_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(recorder, "_MAX_PAUSE", 0.02)
    url = tmp_path / "url"
    async with measured(tmp_path, record_url_file=url) as (_, scraped):

        async def fails() -> bool:
            return bool((await scraped()).value("record_failing") == 1)

        async def works() -> bool:
            return bool((await scraped()).value("record_failing") == 0)

        await until(fails, "it has no URL")
        url.write_text(file_url(tmp_path / "other.sqlite"))
        await until(works, "it has one")


async def test_an_agent_of_a_node_that_was_reclaimed_is_not_unknown(scene: tuple[Served, Scrape]) -> None:
    """Its silence is explained by the notice on its machine; another's is not."""
    served, ask = scene
    agents = await served.peers.agents(["n1", "n2"])
    await agents["n1"].notices("n1", left=0.2)
    for name, agent in agents.items():
        agent.call.cancel()
        await served.agent_is(name, connected=False)
    await until(lambda: served.notices()["n1"].state is NoticeState.GONE)
    found = await ask()
    states = [found.value("agents", state=state) for state in ("connected", "unknown", "reclaimed")]
    assert states == [0, 1, 1]


async def test_a_report_that_comes_to_nothing_is_counted(scene: tuple[Served, Scrape]) -> None:
    """Two that are older than what is known; what is not understood at all is among the refused messages alone."""
    served, ask = scene
    agent = await served.peers.agent("n1")
    await agent.notices("n1", revision=5)
    for revision in (4, 3):
        await agent.say(notice=noticed("n1", revision))
        await agent.acknowledged(revision)
    await agent.say(notice=noticed("n1", 6, uid="uid-n2"))
    await agent.ended()
    found = await ask()
    assert found.value("notices_total", source="metadata", outcome="refused") == 2
    assert found.value("refused_total", wire="grpc", code="malformed") == 1


async def test_a_shorter_list_is_one_group(scene: tuple[Served, Scrape]) -> None:
    """A job that goes on with fewer hosts has been shrunk once, and counts the hosts."""
    served, ask = scene
    agents = await served.peers.agents(["n1", "n2", "n3"])
    launcher, _ = await served.peers.running("job", ["n1", "n2", "n3"], min_workers=1)
    await asyncio.gather(*(agents[node].notices(node) for node in ("n1", "n2")))
    order = await launcher.lines.matching(exclusions=["n1", "n2"])
    await launcher.reports(applied=order["generation"])
    await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
    found = await ask()
    assert [found.value("groups_total", outcome=outcome) for outcome in ("shrunk", "stopped")] == [1, 0]
    assert (found.value("exclusions_total"), found.value("excluded_hosts"), found.value("workers")) == (2, 2, 1)
    assert 0.1 <= found.value("notice_to_decision_seconds_sum", decision="shrink") < 30


async def test_a_job_that_a_person_suspends_is_told_from_one_that_waits(scene: tuple[Served, Scrape]) -> None:
    """Alerts on jobs that wait for long leave it out."""
    served, ask = scene
    await served.peers.agents(["n1"])
    for name in ("held", "waiting"):
        await served.peers.launcher(name, ["n2"])
    token = served.peers.tokens.operator("ann")
    await served.peers.post("/v1/jobs/suspend", token, {"job": "held"})
    await until(lambda: served.job("held").decision.phase is Phase.SUSPENDED)
    found = await ask()
    assert (found.value("held_jobs"), found.value("jobs", phase="Suspended")) == (1, 1)
    assert found.value("jobs", phase="Waiting") == 1


async def test_steps_are_lost_where_the_next_run_begins_earlier(scene: tuple[Served, Scrape]) -> None:
    """Rank 0 acknowledged step 7, and says after the resume that it is at step 5; what it says later counts no more."""
    served, ask = scene
    agents = await served.peers.agents(["n1", "n2"])
    launcher, order = await served.peers.running("job", ["n1", "n2"])
    process = await served.peers.process(order["token"], "n1", 0)
    await agents["n2"].notices("n2")
    stop = await process.lines.matching(directive="STOP")
    assert await process.reports("saved", stop) == PeerRefusal(200, None)
    wait = await launcher.lines.matching(order="wait")
    await launcher.reports(run=1, running=False, exit_code=-15, applied=wait["generation"])
    await agents["n2"].say(notice=noticed("n2", 2, withdrawn=True))
    resumed = await launcher.lines.matching(order="run", run=2)
    await launcher.reports(run=2, running=True, exit_code=None, applied=resumed["generation"])
    again = await served.peers.process(resumed["token"], "n1", 0)
    present = await again.lines.matching(type="directive")
    for step in (5, 3):
        assert await again.reports("saved", present, step=step) == PeerRefusal(200, None)
    await until(lambda: served.job("job").decision.phase is Phase.RUNNING)
    found = await ask()
    assert found.value("steps_lost_total") == 2
    assert [found.value(f"{name}_total") for name in ("suspensions", "resumes")] == [1, 1]
    assert found.value("suspended_seconds_count") == 1


class Failing(MetricsHooks):
    name = "failing"

    def __init__(self) -> None:
        self.bulkhead = Bulkhead(Clock())

    def attach(self, _live: object) -> "list[Failing]":
        return [self]

    def on_change(self, _change: object) -> NoReturn:
        raise RuntimeError("cannot count")

    @guarded
    def on_directives_sent(self, _job: JobName, _directives: Collection[ProcessDirective]) -> None:
        raise RuntimeError("cannot count")


async def test_a_line_whose_measures_fail_works(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path, hooks=Failing()) as served:
            agents = await served.peers.agents(["n1", "n2"])
            _, order = await served.peers.running("job", ["n1", "n2"])
            process = await served.peers.process(order["token"], "n1", 0)
            for node in ("n2", "n1"):
                await agents[node].notices(node)
            stop = await process.lines.matching(directive="STOP")
            assert await process.reports("saved", stop) == PeerRefusal(200, None)
            await until(lambda: served.job("job").decision.phase is Phase.SUSPENDED)
    failures = [line["where"] for line in logs if line["event"] == "internal.fault"]
    assert sorted(failures) == ["journal", "metrics"]


@pytest.mark.parametrize("taken", [False, True])
async def test_the_process_serves_them(tmp_path: Path, *, taken: bool) -> None:
    """Where the setting says; where somebody else has that address, the line works without."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        if not taken:
            port.close()
        async with started(tmp_path, metrics_address=address) as running:
            agent = await running.peers.agent("n1")
            await agent.notices("n1")
            if not taken:
                found = await scrape(address)
                assert found.value("notices_total", source="metadata", outcome="received") == 1
            running.process.terminate()
            assert await running.ended() == 0
            assert running.process.stderr is not None
            said = running.process.stderr.read()
    assert (b"dependency.failing" in said, b"metrics.listening" in said) == (taken, not taken)
    assert b"Traceback" not in said


async def test_nodes_are_counted_by_their_machine(scene: tuple[Served, Scrape]) -> None:
    """What an agent does not say is empty."""
    served, ask = scene
    spot = wire.Machine(cloud="aws", zone="a", instance_type="p4d", price_class=wire.PRICE_CLASS_SPOT)
    for node in ("n1", "n2"):
        await served.peers.agent(node, machine=spot)
    await served.peers.agent("n3")
    found = await ask()
    assert found.value("nodes", cloud="aws", zone="a", instance_type="p4d", price_class="spot") == 2
    assert found.value("nodes", cloud="", zone="", instance_type="", price_class="unknown") == 1
