"""The page of one job: what it shows, for whom, and where its addresses lead."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urljoin

from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Acknowledgement, AcknowledgementKind
from supervisor.observability.groups import DecidedGroup, GroupOutcome
from supervisor.observability.page.rendering import NAVIGATION, PageRenderer
from supervisor.observability.status_view import JobFactsSnapshot, JobPageSnapshot, StatusSnapshot
from supervisor.observability.views import LeaderView
from tests.supervisor.decide.decide_builders import POLICY, T0, first, notice, noticed, running_job
from tests.supervisor.observability.page.console_world import seen_in
from tests.supervisor.observability.page.page_world import NODES, VIEWING, PageAnswer, get, viewing
from tests.testkit.serving import Served, serving
from tests.testkit.waiting import until

NAME = "train.a-1"


async def page_of(served: Served, job: str) -> PageAnswer:
    return await get(served.peers, f"/status/jobs/{quote(job)}", token=served.peers.tokens.viewer())


async def shrunk(served: Served, job: str = "train") -> None:
    agents = await served.peers.agents(NODES)
    await served.peers.running(job, NODES, min_workers=2)
    await agents["n3"].notices("n3", left=60.0)
    await until(lambda: served.job(job).decision.exclusions)


async def test_it_shows_hosts_notices_and_what_happened(served: Served) -> None:
    await shrunk(served)
    seen = (await page_of(served, "train")).seen
    for text in (
        served.job("train").decision.reason,
        "job-supervisor explain train",
        "n3 n3 excluded connected not connected",
        "n1 n1 worker, not covered connected not connected",
        "node n3 active",
        "Shrinking",
        "Run 1 began.",
        "The last 50 entries since",
    ):
        assert text in seen


async def test_its_sentences_are_apart(served: Served) -> None:
    """The templates' line ends stand where a sentence begins after an `if`."""
    await shrunk(served)
    html = (await page_of(served, "train")).text
    run = " ".join(re.sub(r"<[^>]*>", "", html.partition('aria-labelledby="run"')[2]).split())
    assert "workers. The job asks for" in run
    assert not re.search(r"[a-z]\.[A-Z]", run.partition("Hosts")[0])


async def test_the_overview_leads_to_it(served: Served) -> None:
    await shrunk(served, NAME)
    overview = (await viewing(served)).text
    in_reclaims, in_jobs, in_decisions, *in_coverage = re.findall(r'href="(status/jobs/[^"]+)"', overview)
    assert {in_reclaims, in_decisions, *in_coverage} == {in_jobs}
    page = await get(served.peers, f"/{in_jobs}", token=served.peers.tokens.viewer())
    assert page.status == 200
    assert f"Job {NAME}" in page.seen
    assert f"job-supervisor explain {NAME}" in page.seen


async def test_a_job_that_is_not_known_is_said_to_be(served: Served) -> None:
    page = await page_of(served, "none")
    assert (page.status, "No such job" in page.seen) == (404, True)


async def test_nobody_sees_it_without_a_token(served: Served) -> None:
    """The form is the same for every name, so it does not tell which jobs there are."""
    await shrunk(served)
    known, unknown = await get(served.peers, "/status/jobs/train"), await get(served.peers, "/status/jobs/nope")
    assert (known.status, known.text) == (401, unknown.text)


async def test_its_assets_and_forms_are_found_however_deep_it_is(served: Served) -> None:
    """Also the login form in its place; addresses are relative, as the page may be below another server's path."""
    deep = ("/status/nodes/a/b", "/status/pools/a/b/c", "/status/pools/-/z/t", "/status/groups/1.0/team/job.x")
    for path in ("/status/jobs/none", "/status/jobs/team/trainingjob.bert", *deep, "/", "/status"):
        for token in (None, served.peers.tokens.viewer()):
            text = (await get(served.peers, path, token=token)).text
            for address in re.findall(r'(?:src|href|action)="([^"]+)"', text):
                found = urljoin(path, address)
                asset_or_form = r"/status/(login|logout|jobs/team/job.x|(history|report)(\?.*)?|[a-z.]+\?[0-9a-f]{12})"
                assert found.removeprefix("/") in NAVIGATION or re.fullmatch(asset_or_form, found), found


async def test_a_new_supervisor_shows_what_the_record_has(tmp_path: Path) -> None:
    """And without the record, which somebody has deleted, what is stored with the job."""
    async with serving(tmp_path) as served:
        await shrunk(served)
    async with serving(tmp_path) as served:

        async def shown() -> bool:
            return "Run 1 began." in (await page_of(served, "train")).seen

        await until(shown, "the page shows the first supervisor's time")
    (tmp_path / "record.sqlite").unlink()
    async with serving(tmp_path) as served:
        text = (await page_of(served, "train")).seen
        assert "Registered The job became known." in text
        assert "Run 1 began." not in text


def test_a_stop_says_how_long_before_the_deadline_it_was_saved() -> None:
    job = running_job()
    saved = Acknowledgement(run=1, generation=5, kind=AcknowledgementKind.SAVED, step=41, at=T0 + 48)
    stopped = DecidedGroup(
        job=job.name,
        uid=job.uid,
        outcome=GroupOutcome.STOPPED,
        at=T0,
        run=1,
        generation=5,
        reason="",
        sources=(),
        subjects=(),
        noticed_at=T0,
        deadline=T0 + 60,
        acknowledgement=saved,
    )
    status = JobFactsSnapshot(job=job, noticed={}, placements=None, streams=first(6), since=None)
    snapshot = StatusSnapshot(
        now=T0 + 100,
        policy=POLICY,
        leader=LeaderView(name="", serving_seconds=1.0),
        jobs=(status,),
        notices=(),
        unconfirmed=(),
        groups=(stopped, replace(stopped, outcome=GroupOutcome.SHRUNK)),
        agents={},
        silent={},
        refused={},
    )
    of_job = JobPageSnapshot(status=snapshot, history=(), stored=(), since=T0)
    text = seen_in(PageRenderer().job(of_job, "../", session=VIEWING))
    assert (
        "Recent decisions: stopped 1 min 40 s ago (checkpoint: saved at step 41, 12 s before the end), "
        "shrunk 1 min 40 s ago ." in text.replace("ago )", "ago)").replace(" (", " (")
    )


def test_a_cluster_job_shows_its_pods_nodes_and_many_hosts_are_cut() -> None:
    job = replace(running_job(workers=120), name=JobName("team/trainingjob.bert"))
    status = JobFactsSnapshot(job=job, noticed=noticed(notice(7)), placements=None, streams=first(120), since=None)
    snapshot = StatusSnapshot(
        now=T0,
        policy=POLICY,
        leader=LeaderView(name="", acts=True, serving_seconds=1.0),
        jobs=(status,),
        notices=(notice(7),),
        unconfirmed=(),
        groups=(),
        agents={},
        silent={},
        refused={},
    )
    shown = JobPageSnapshot(status=snapshot, history=(), stored=(), since=T0)
    html = PageRenderer().job(shown, "../../../", session=replace(VIEWING, browser=True))
    assert "And 20 more hosts." in html
    assert html.index("n7</th>") < html.index("n1</th>")
    placed = {Host("n1"): Placement("uid", Host("gpu/1"), name="bert-0")}
    status = replace(status, placements=placed)
    html = PageRenderer("", "https://grafana/").job(
        replace(shown, status=replace(snapshot, jobs=(status,))), "../../../", session=replace(VIEWING, browser=True)
    )
    assert 'href="../../../status/history?kind=pod&amp;name=team%2Fbert-0">n1</a>' in html
    assert 'href="../../../status/nodes/gpu/1">gpu/1</a>' in html
    jobs = "https://grafana/d/elastic-job-supervisor-jobs?var-job_namespace=team&amp;var-job_name=bert"
    assert f'<a href="{jobs}">Its dashboard</a>' in html
    assert 'action="../../../status/logout"' in html
