"""The pages of nodes and of all jobs: what they show, how they are searched, and where their links lead."""

from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from supervisor.decide.explanation import NOTHING, Missing
from supervisor.domain.capacity import Machine, Placement, PriceClass
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.notice import NoticeState, Subject, SubjectKind
from supervisor.ingest.agent_registry import AgentState
from supervisor.observability.page.history_form import MAX_LETTERS
from supervisor.observability.page.job_rows import JOBS, jobs_contents
from supervisor.observability.page.node_contents import NODES, NodesRow, node_contents, node_rows
from supervisor.observability.page.rendering import PageRenderer
from supervisor.observability.page.tables import TableForm, TablePage, listed
from supervisor.observability.status_view import JobFactsSnapshot, JobPageSnapshot, StatusSnapshot
from supervisor.observability.views import LeaderView
from tests.supervisor.decide.decide_builders import POLICY, T0, first, notice, noticed, running_job, suspended_job
from tests.supervisor.observability.page.console_world import (
    POOL,
    UGLY,
    links_of,
    page_of,
    reclaimed,
    rows_of,
    seen_in,
    until_seen,
)
from tests.supervisor.observability.page.page_world import VIEWING, get
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until
from tests.testkit.work import lines_run

_SPOT = Machine(cloud="aws", zone="a", instance_type="p4d", price_class=PriceClass.SPOT)


def _agent(name: str, *, connected: bool = True, machine: Machine = _SPOT) -> AgentState:
    return AgentState(node=Host(name), uid=f"uid-{name}", session=1, connected=connected, machine=machine)


def _seen(agents: list[AgentState], *jobs: JobFactsSnapshot, **changes: object) -> StatusSnapshot:
    by_node = {agent.node: agent for agent in agents}
    snapshot = StatusSnapshot(
        now=T0 + 10,
        policy=POLICY,
        leader=LeaderView(name="", serving_seconds=1.0),
        jobs=jobs,
        notices=(),
        unconfirmed=(),
        groups=(),
        agents=by_node,
        silent={agent.node: T0 for agent in agents if not agent.connected},
        machines={agent.node: agent.machine for agent in agents},
        refused={},
    )
    return replace(snapshot, **changes)  # type: ignore[arg-type]  # Names are its fields.


def _facts(name: str = "train", **changes: object) -> JobFactsSnapshot:
    facts = JobFactsSnapshot(job=running_job(name=name), noticed={}, placements=None, streams=first(6), since=None)
    return replace(facts, **changes)  # type: ignore[arg-type]  # Names are its fields.


def _listed(snapshot: StatusSnapshot, **given: str) -> list[str]:
    return [row.node for row in listed(node_rows(snapshot), TableForm.read(given, NODES), NODES).rows]


def test_nodes_are_found_by_state_words_and_order() -> None:
    gone = replace(notice(8, state=NoticeState.GONE), subject=Subject(SubjectKind.NODE, "n8", "uid-n8"), ended_at=T0)
    agents = [_agent("n1"), _agent("n2"), _agent("n7", connected=False), _agent("n8", connected=False)]
    agents.append(replace(_agent("n9", machine=replace(_SPOT, instance_type="p5")), uid="x"))
    seen = _seen(agents, _facts(), notices=(notice(2, left=60.0), notice(9, left=30.0), gone))
    assert {row.node: row.state for row in node_rows(seen) if row.state != "connected"} == {
        "n7": "silent for an unknown reason",
        "n8": "silent, because its node was reclaimed",
    }
    assert _listed(seen, state="silent") == ["n7", "n8"]
    assert _listed(seen, state="noticed", sort="left") == ["n9", "n2"]
    assert _listed(seen, sort="left", order="down") == ["n2", "n9", "n1", "n7", "n8"]
    assert _listed(seen, words="P4D train", sort="node", order="down") == ["n2", "n1"]


def test_a_node_of_two_jobs_and_two_hosts_has_each_job_once() -> None:
    placed = {Host(f"n{number}"): Placement(f"uid-{number}", Host("gpu-1")) for number in range(1, 7)}
    seen = _seen([_agent("gpu-1"), _agent("gpu-2")], _facts("b", placements=placed), _facts("a", placements=placed))
    assert {row.node: row.jobs for row in node_rows(seen)} == {"gpu-1": ["a", "b"], "gpu-2": []}


def test_ten_thousand_nodes_are_listed_within_bounds() -> None:
    """The page has a hundred of them, whatever is asked. Each of the others takes some 45 lines."""
    agents = [_agent(f"node-{number:05}") for number in range(10_000)]
    seen = _seen(agents, notices=tuple(notice(number) for number in range(2_000)))

    def found() -> TablePage[NodesRow]:
        return listed(node_rows(seen), TableForm.read({"words": "node", "page": "100"}, NODES), NODES)

    shown = found()
    assert (len(shown.rows), shown.found, shown.pages, shown.rows[-1].node) == (100, 10_000, 100, "node-09999")
    assert lines_run(found) < 100 * len(agents)
    text = _rendered("nodes.html", form=TableForm.empty(NODES), layout=NODES, table=shown, now=seen.now, trouble="")
    assert len(text) < 200_000


def _rendered(template: str, **values: object) -> str:
    return PageRenderer().render(template, root="../", session=VIEWING, **values)


def test_the_hosts_on_a_node_are_found_by_their_pods_too() -> None:
    """And the notices on these pods."""
    placed = {Host("n1"): Placement("uid-pod", Host("gpu-1"), name="team/worker-0")}
    of_pod = replace(notice(1), subject=Subject(SubjectKind.POD, "team/worker-0", "uid-pod"))
    other = replace(notice(2), subject=Subject(SubjectKind.POD, "team/worker-9", "uid-other"))
    seen = _seen([_agent("gpu-1")], _facts(placements=placed), notices=(of_pod, other))
    shown = node_contents(seen, Host("gpu-1"), None)
    assert [(each.job.job, each.host.host) for each in shown.hosts] == [("train", "n1")]
    assert [each.subject for each in shown.notices] == ["team/worker-0"]
    assert shown.pool == "aws/a/p4d"


def test_a_host_that_is_gone_is_shown_as_gone() -> None:
    """Its launcher lists it for a while; the page of its node and that of the job say since when it is gone."""
    subject = Subject(SubjectKind.NODE, "n2", "uid-n2")
    gone = replace(notice(2, state=NoticeState.GONE), subject=subject, ended_at=T0 - 50)
    facts = _facts(noticed={Host("n2"): gone})
    now = _seen([_agent("n1"), _agent("n2", connected=False)], facts, notices=(gone,))
    shown = node_contents(now, Host("n2"), None)
    assert shown.gone_seconds == 60.0
    text = seen_in(_rendered("node.html", shown=shown, unread=""))
    assert "Its machine is gone, for 1 min 00 s by now." in text
    assert "1 host of a job was on it." in text
    assert "train Running n2 gone" in text
    of_job = JobPageSnapshot(status=now, history=(), stored=(), since=T0)
    assert "n2 n2 gone not connected connected gone for 1 min 00 s" in seen_in(
        PageRenderer().job(of_job, "../", session=VIEWING)
    )
    back = _seen([_agent("n1"), replace(_agent("n2"), uid="another")], _facts(), notices=(gone,))
    assert node_contents(back, Host("n2"), None).gone_seconds is None
    newer = replace(
        gone, source=Source("operator"), state=NoticeState.ACTIVE, first_seen=gone.first_seen + 1, ended_at=None
    )
    again = _seen([_agent("n1"), _agent("n2", connected=False)], facts, notices=(newer, gone))
    assert node_contents(again, Host("n2"), None).gone_seconds is None


def test_a_node_whose_agent_has_not_connected_says_since_when() -> None:
    """It may be silent for longer than this supervisor serves."""
    shown = node_contents(_seen([], _facts()), Host("n2"), None)
    text = seen_in(_rendered("node.html", shown=shown, unread=""))
    assert "No agent of this node has connected since this supervisor began to serve, 1 s ago." in text


def test_jobs_are_found_by_namespace_phase_and_order() -> None:
    jobs = [
        _facts("b/mpijob.x", noticed=noticed(notice(3, left=100.0)), since=T0),
        _facts("a/mpijob.y", noticed=noticed(notice(3, left=50.0))),
        replace(_facts("a/mpijob.z", since=T0 - 5), job=suspended_job(name="a/mpijob.z")),
    ]
    seen = _seen([], *jobs)

    def names(**given: str) -> list[str]:
        return [job.job for job in jobs_contents(seen, TableForm.read(given, JOBS)).jobs]

    assert names() == ["a/mpijob.z", "a/mpijob.y", "b/mpijob.x"]
    assert names(namespace="a", sort="job") == ["a/mpijob.y", "a/mpijob.z"]
    assert names(phase="Running", sort="left") == ["a/mpijob.y", "b/mpijob.x"]
    assert names(sort="since") == ["b/mpijob.x", "a/mpijob.z", "a/mpijob.y"]
    assert names(words="suspended") == ["a/mpijob.z"]
    assert jobs_contents(seen, TableForm.empty(JOBS)).namespaces == ["a", "b"]


def test_more_jobs_than_a_page_has_are_on_the_next() -> None:
    """And only those of the page are looked at."""
    looked = list[JobName]()

    def facts(number: int) -> JobFactsSnapshot:
        name = JobName(f"job-{number:03}")

        def missing() -> Missing:
            looked.append(name)
            return NOTHING

        return _facts(name, missing=missing)

    seen = _seen([], *(facts(number) for number in range(250)))
    shown = jobs_contents(seen, TableForm.read({"page": "3"}, JOBS))
    assert [job.job for job in shown.jobs] == looked == [f"job-{number}" for number in range(200, 250)]


@pytest.mark.parametrize("path", ["/status/nodes", "/status/jobs", "/status/pools", "/status/drills"])
async def test_an_empty_supervisor_has_empty_pages(served: Served, path: str) -> None:
    page = await until_seen(served, path, "No drill is recorded." if path.endswith("drills") else "None of the")
    assert page.status == 200
    assert f'href="../{path.removeprefix("/")}" aria-current="page"' in page.text


@pytest.mark.parametrize("path", ["/status/nodes", "/status/jobs", "/status/pools"])
@pytest.mark.parametrize("query", ["sort=x", "page=x", "order=x", "words=" + "x" * (MAX_LETTERS + 1)])
async def test_an_address_that_asks_for_nothing_is_answered_with_the_form(
    served: Served, path: str, query: str
) -> None:
    page = await page_of(served, f"{path}?{query}")
    assert (page.status, 'role="alert"' in page.text, "With the words" in page.seen) == (400, True, True)


@pytest.mark.parametrize("path", ["/status/nodes", "/status/jobs", "/status/pools"])
async def test_what_is_asked_for_is_never_markup(served: Served, path: str) -> None:
    await served.peers.agents([UGLY])
    page = await page_of(served, f"{path}?words={quote(UGLY)}")
    assert page.status == 200
    assert "<script>1" not in page.text


async def test_all_nodes_lead_to_each_node_its_jobs_and_its_pool(served: Served) -> None:
    await reclaimed(served)
    await served.peers.agent("lost")
    page = await page_of(served, "/status/nodes?sort=left")
    assert rows_of(page)[0].startswith("n3 connected gn7 h spot train")
    for text, path, found in (
        ("n3", "/status/nodes/n3", "Node n3 Its agent is connected. 1 notice is active. 1 host of a job is on it."),
        ("train", "/status/jobs/train", "Job train"),
        ("gn7", f"/status/pools/{POOL}", f"Capacity pool {POOL}"),
    ):
        link, *_ = links_of(page, "/status/nodes", text)
        assert link == path
        assert found in (await page_of(served, link)).seen
    one, two = (links_of(page, "/status/nodes", text)[0] for text in ("Node", "Agent"))
    assert rows_of(await page_of(served, one))[0].startswith("lost")
    assert rows_of(await page_of(served, two))[0].startswith("lost")


async def test_a_node_shows_its_agent_notices_jobs_and_past(served: Served) -> None:
    await reclaimed(served)
    page = await until_seen(served, "/status/nodes/n3", "metadata none yet")
    for text in (
        "gn7 in h of aliyun, spot.",
        "metadata the node no notice",
        "node n3 active",
        "train Shrinking n3 excluded not connected",
        "Its notices of the last 30 days",
        "job train 1 Shrinking n3 will be reclaimed",
    ):
        assert text in page.seen
    assert "data-poll" in page.text


async def test_every_link_leads_to_a_page_that_is_there(served: Served) -> None:
    """From the overview on, as deep as there are pages: every name of a job, node, pool and decision among them."""
    await reclaimed(served)
    await until_seen(served, f"/status/pools/{POOL}", "train 1 Shrinking")
    waiting, seen = ["/"], set[str]()
    while waiting:
        path = waiting.pop()
        page = await page_of(served, path)
        assert page.status == 200, path
        seen.add(path)
        # Of the links that sort and page a table, one of each column is enough.
        found = {link for link in links_of(page, path) if "order=down" not in link and "before=" not in link}
        waiting += found - seen - set(waiting)
    kinds = {path.split("/")[2].partition("?")[0] for path in seen if path != "/"}
    assert kinds == {"jobs", "nodes", "pools", "groups", "drills", "history", "report"}
    assert {"/status/jobs/train", "/status/nodes/n1", "/status/nodes/n3", f"/status/pools/{POOL}"} <= seen


async def test_a_name_of_a_node_is_never_markup_and_its_link_leads_there(served: Served) -> None:
    name = 'a/b?c#"><i>&d'
    agent = await served.peers.agent(name)
    await agent.notices(name, left=60.0)
    await until(lambda: name in served.notices())
    link, *_ = links_of(await page_of(served, "/status/nodes"), "/status/nodes", name)
    page = await until_seen(served, link, f"node {name}")
    assert page.status == 200
    assert "<i>" not in page.text
    overview, *_ = links_of(await page_of(served, "/"), "/", f"node {name}")
    assert overview == link


async def test_a_node_that_nobody_knows_is_said_to_be(served: Served) -> None:
    page = await until_seen(served, f"/status/nodes/{quote(UGLY)}", "No such node")
    assert (page.status, "<script>1" in page.text) == (404, False)


async def test_a_record_that_cannot_be_read_is_said_to_be_and_the_rest_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path, record_url_file=tmp_path / "nothing") as served:
        await served.peers.agents(["n1"])
        for path, shown in (
            ("/status/nodes/n1", "Its agent is connected."),
            ("/status/pools", "None of the capacity pools"),
            ("/status/pools/a/b/c", "Capacity pool a/b/c"),
            ("/status/groups/1.5/train", "Decision about train"),
            ("/status/drills", "job-supervisor simulate"),
        ):
            page = await page_of(served, path)
            assert (page.status, "The record cannot be read now" in page.seen) == (503, True), path
            assert shown in page.seen


@pytest.mark.parametrize("path", ["jobs", "nodes", "nodes/n1", "pools", "pools/a/b/c", "groups/1.5/train", "drills"])
async def test_nobody_without_a_session_sees_it(served: Served, path: str) -> None:
    await served.peers.agents(["n1"])
    page = await get(served.peers, f"/status/{path}")
    assert (page.status, "Viewer token" in page.seen, "n1" in page.text) == (401, True, False)
