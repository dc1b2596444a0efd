"""The status page formats values and limits their length."""

import dataclasses
import re

import jinja2
import pytest
from msgspec.structs import replace

from supervisor.domain.capacity import Machine, PriceClass
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import AcknowledgementKind, Phase
from supervisor.domain.notice import OPERATOR, SIMULATED, NoticeClass, NoticeState, Subject, SubjectKind
from supervisor.domain.worker_time import hours
from supervisor.ingest.agent_registry import AgentState
from supervisor.observability.groups import DecidedGroup, GroupCause, GroupOutcome
from supervisor.observability.page import rendering
from supervisor.observability.page.contents import MAX_ROWS, contents, job_contents, overview
from supervisor.observability.page.rendering import (
    NAVIGATION,
    PageRenderer,
    announced,
    checkpoint,
    countdown,
    names,
    span,
    why,
)
from supervisor.observability.status_view import JobFactsSnapshot, JobPageSnapshot, StatusSnapshot, status_view
from supervisor.observability.views import AcknowledgementView, GroupView, LeaderView, ProspectView, StatusView
from tests.supervisor.decide.decide_builders import POLICY, T0, first, hosts, notice, noticed, running_job
from tests.supervisor.observability.page.page_world import VIEWING


def seen(*numbers: int, jobs: int = 1, streams: int = 6) -> StatusSnapshot:
    """So many jobs on n1 to n6, whose nodes have no agents, with notices on some."""
    notices = [notice(number, left=100.0 - number) for number in numbers]
    return StatusSnapshot(
        now=T0,
        policy=POLICY,
        leader=LeaderView(name="", acts=True, serving_seconds=1.0),
        jobs=tuple(
            JobFactsSnapshot(
                job=running_job(name=f"job-{number:03}"),
                noticed=noticed(*notices),
                placements=None,
                streams=first(streams),
                since=None,
            )
            for number in range(jobs)
        ),
        notices=tuple(notices),
        unconfirmed=(),
        groups=(),
        agents={},
        silent={},
        refused={},
    )


def shown(*numbers: int, jobs: int = 1) -> StatusView:
    return status_view(seen(*numbers, jobs=jobs))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min 00 s"),
        (3599.0, "59 min 59 s"),
        (3600.0, "1 h 00 min"),
        (86_399.0, "23 h 59 min"),
        (90_000.0, "1 d 01 h"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 h"),
        (0.4, "1 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (359.0, "6 min"),
        (360.0, "0.1 h"),
        (3_600_000.0, "1,000.0 h"),
    ],
)
def test_hours_that_are_few_have_a_finer_unit(seconds: float, text: str) -> None:
    """So that nothing alone is shown as nothing."""
    assert hours(seconds) == text


def test_what_has_run_out_is_now() -> None:
    assert (countdown(0.0), countdown(0.4), countdown(-4.9)) == ("now", "0 s", "now")
    assert (countdown(0.4, "drained"), countdown(0.0, "drained"), countdown(-9.0, "drained")) == (
        "0 s",
        *["drained"] * 2,
    )


def test_what_is_overdue_says_since_when() -> None:
    assert (countdown(-5.0), countdown(-720.0)) == ("was due 5 s ago", "was due 12 min 00 s ago")
    late = page(dataclasses.replace(seen(1), now=T0 + 99.0 + 720.0))
    assert late.count('<span data-left="-720.0">was due 12 min 00 s ago</span>') == 2  # The reclaim and the job.
    timeless = dataclasses.replace(notice(1, left=None), notice_class=NoticeClass.SUDDEN)
    job = dataclasses.replace(seen(1).jobs[0], noticed=noticed(timeless))
    assumed = page(dataclasses.replace(seen(), notices=(timeless,), jobs=(job,), now=T0 + 90_000.0))
    assert "was due" not in assumed  # Nobody has said when.


def test_long_lists_are_cut() -> None:
    assert names([f"n{number}" for number in range(12)]).endswith("n9 and 2 more")
    assert names(["n1", "n2"]) == "n1, n2"


GROUP = GroupView(
    job=running_job().name,
    outcome=GroupOutcome.STOPPED,
    age_seconds=1.0,
    reason="",
    sources=[],
    subjects=[],
    simulated=False,
    decided_after_seconds=None,
    acknowledged=AcknowledgementKind.SAVED,
    step=41,
    steps_lost=None,
    margin_seconds=12.5,
    late=False,
    suspended=False,
    suspended_seconds=None,
)


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (GROUP, "saved at step 41, 12 s before the end"),
        (replace(GROUP, margin_seconds=-3.0), "saved at step 41, 3 s too late"),
        (
            replace(GROUP, margin_seconds=None, step=None, acknowledged=AcknowledgementKind.LEFT),
            "rank 0 has left, without saying that it saved",
        ),
        (
            replace(GROUP, margin_seconds=None, acknowledged=AcknowledgementKind.FAILED, error="a full disk"),
            "not saved at step 41: a full disk",
        ),
        (replace(GROUP, steps_lost=1), "saved at step 41, 12 s before the end; 1 step lost"),
        (replace(GROUP, steps_lost=0, margin_seconds=None), "saved at step 41; 0 steps lost"),
        (replace(GROUP, acknowledged=None), "not acknowledged"),
        (replace(GROUP, outcome=GroupOutcome.SHRUNK), "not needed"),
    ],
)
def test_a_checkpoint_is_told_with_its_margin(group: GroupView, text: str) -> None:
    assert checkpoint(group) == text


def test_the_most_urgent_reclaim_is_first() -> None:
    assert [each.subject for each in contents(shown(1, 3, 2)).reclaims] == ["n3", "n2", "n1"]


def test_what_there_is_no_room_for_is_counted() -> None:
    """A page stays readable with a thousand jobs, and says what it leaves out."""
    page = contents(shown(jobs=MAX_ROWS + 20))
    assert (len(page.jobs), page.more_jobs) == (MAX_ROWS, 20)
    assert (len(page.uncovered), page.more_uncovered) == (MAX_ROWS, (MAX_ROWS + 20) * 6 - MAX_ROWS)


def test_jobs_in_trouble_are_first() -> None:
    now = shown(jobs=3)
    stopping = replace(now.jobs[2], phase=Phase.STOPPING)
    jobs = contents(replace(now, jobs=[now.jobs[1], now.jobs[0], stopping])).jobs
    assert [job.job for job in jobs] == ["job-002", "job-000", "job-001"]


def test_the_sentence_counts_what_people_look_for() -> None:
    assert contents(shown(1)).summary == "6 workers are not covered. 1 reclaim under way, 1 job Running."
    later = status_view(dataclasses.replace(seen(1), now=T0 + 7))
    assert contents(later).summary == contents(shown(1)).summary
    empty = contents(shown(jobs=0))
    assert (empty.summary, empty.problems) == ("Nothing is being reclaimed, every worker is covered.", [])


UNSAVED = AcknowledgementView(
    run=shown().jobs[0].run, generation=1, kind=AcknowledgementKind.FAILED, step=41, age_seconds=3.0, error="full"
)


def covered(*numbers: int) -> StatusView:
    """One job, all of whose workers would be reached, with notices on some."""
    now = shown(*numbers)
    job = now.jobs[0]
    return replace(now, jobs=[replace(job, host_states=[replace(host, agent=True) for host in job.host_states])])


def test_only_real_trouble_is_red() -> None:
    """A reclaim that everybody hears of, a drill and a job that waits are what spot capacity is like."""
    usual = covered(1)
    suspended = replace(usual, jobs=[replace(usual.jobs[0], phase=Phase.SUSPENDED)])
    saved = replace(suspended, groups=[replace(GROUP, suspended=True)])
    for fine in (usual, suspended, saved, replace(saved, groups=[replace(GROUP, late=True)])):
        assert not contents(fine).problems
        assert contents(fine).summary.startswith("1 reclaim under way, 1 job ")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (shown(), "6 workers are not covered. Nothing is being reclaimed, 1 job Running."),
        (
            replace(covered(), leader=LeaderView(name="pod-0", acts=False, serving_seconds=1.0)),
            (
                "It is not certain that a supervisor leads. "
                "Nothing is being reclaimed, 1 job Running, every worker is covered."
            ),
        ),
        (
            replace(covered(), unconfirmed=shown(1).notices),
            "1 notice cannot be stored. 1 reclaim under way, 1 job Running, every worker is covered.",
        ),
        (
            replace(covered(), groups=[replace(GROUP, late=True, suspended=True)]),
            "1 job was not saved in time. Nothing is being reclaimed, 1 job Running, every worker is covered.",
        ),
        (
            replace(covered(), jobs=[replace(covered().jobs[0], phase=Phase.SUSPENDED, acknowledgement=UNSAVED)]),
            "1 job could not be saved. Nothing is being reclaimed, 1 job Suspended, every worker is covered.",
        ),
        (
            replace(covered(), jobs=[replace(covered().jobs[0], phase=Phase.STOPPING, seconds_left=0.0)]),
            "1 job was not saved in time. Nothing is being reclaimed, 1 job Stopping, every worker is covered.",
        ),
    ],
)
def test_real_trouble_is_said_first_and_is_red(bad: StatusView, said: str) -> None:
    assert (bool(contents(bad).problems), contents(bad).summary) == (True, said)


def test_a_suspended_job_says_what_it_waits_for() -> None:
    job = replace(
        shown().jobs[0], phase=Phase.SUSPENDED, reason="Stopped.", prospects=[ProspectView("it resumes", None)]
    )
    assert why(job) == "Stopped. Next: it resumes."
    assert why(replace(job, phase=Phase.RUNNING)) == "Stopped."


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.SHRINKING])
def test_a_run_says_which_hosts_it_does_without(phase: Phase) -> None:
    job = replace(shown().jobs[0], phase=phase, reason="It goes on.", shortfall="3 of 6 requested hosts are in use.")
    assert why(job) == "It goes on. 3 of 6 requested hosts are in use."


def test_a_drill_is_marked() -> None:
    now = seen(1)
    drill = dataclasses.replace(notice(1), source=SIMULATED)
    job = dataclasses.replace(now.jobs[0], noticed=dict.fromkeys(hosts(1), drill))
    html = PageRenderer().page(dataclasses.replace(now, notices=(drill,), jobs=(job,)), session=VIEWING)
    assert html.count('<span class="mark warn">drill</span>') == 2


def test_a_phase_that_began_before_the_supervisor_has_lasted_at_least_as_long() -> None:
    leader = LeaderView(name="", serving_seconds=180.0)
    now = dataclasses.replace(seen(), leader=leader)
    assert '>at least <span data-ago="180.0">3 min 00 s</span></td>' in page(now)
    job = dataclasses.replace(now.jobs[0], since=T0 - 5)
    assert "at least" not in page(dataclasses.replace(now, jobs=(job,)))
    of_job = PageRenderer().job(JobPageSnapshot(status=now, history=(), stored=(), since=T0), "../", session=VIEWING)
    assert 'in this phase for at least <span data-ago="180.0">' in of_job


def test_what_is_not_durable_yet_is_marked() -> None:
    now = dataclasses.replace(seen(), unconfirmed=(notice(2),))
    assert "not durable yet" in PageRenderer().page(now, session=VIEWING)


def test_a_lease_that_is_not_certain_is_said() -> None:
    leader = LeaderView(name="supervisor-1", acts=False, serving_seconds=1.0)
    html = PageRenderer().page(dataclasses.replace(seen(), leader=leader), session=VIEWING)
    assert "supervisor-1 leads" in html
    assert "makes no decisions" in html


def page(snapshot: StatusSnapshot, docs_url: str = "") -> str:
    return PageRenderer(docs_url).page(snapshot, session=VIEWING)


def test_it_says_when_and_by_which_version() -> None:
    leader = LeaderView(name="", acts=True, serving_seconds=1.0, version="1.2.3")
    assert "As of <time>1970-01-02 03:46:40 UTC</time>, version 1.2.3." in page(
        dataclasses.replace(seen(), leader=leader, now=1e5)
    )


def test_namespaces_have_a_column_where_there_are_some() -> None:
    cluster = seen()
    job = dataclasses.replace(
        cluster.jobs[0], job=dataclasses.replace(cluster.jobs[0].job, name=JobName("team/trainingjob.bert"))
    )
    assert ">Namespace</th>" not in page(cluster)
    shown_there = page(dataclasses.replace(cluster, jobs=(job,)))
    assert '<td role="cell" data-label="Namespace">team</td>' in shown_there
    assert ">trainingjob.bert<" in shown_there


def test_problems_lead_to_their_runbooks_if_somebody_serves_them() -> None:
    link = '<a href="https://docs.example/docs/runbooks/JobSupervisorWorkersUncovered.md">6 workers are not covered</a>'
    assert link in page(seen(), "https://docs.example/")
    assert re.findall(r'<a href="([^"]*)"', page(seen(jobs=0))) == [each or "./" for each in NAVIGATION]


def test_what_reclaims_cost_is_summed_up() -> None:
    """Only of those of which it is known, and without drills, drains and requests."""
    job = running_job()
    stopped = DecidedGroup(
        job=job.name,
        uid=job.uid,
        outcome=GroupOutcome.STOPPED,
        at=T0,
        run=1,
        generation=1,
        reason="",
        sources=(),
        subjects=(),
        noticed_at=None,
        deadline=None,
        suspended_at=T0,
        resumed_at=T0 + 1800,
        steps_lost=3,
        workers=4,
    )
    other = dataclasses.replace(
        stopped, outcome=GroupOutcome.SHRUNK, suspended_at=None, resumed_at=None, steps_lost=None
    )
    text = page(dataclasses.replace(seen(), groups=(stopped, other), gpus={job.name: 8.0}, now=T0 + 3600))
    assert text_of(text, "value").endswith(
        "Of the last 2 decisions about reclaims that this supervisor knows of, 1 was a stop. 3 steps were lost in the "
        "stop of which that is known. Jobs were suspended for 30 min 00 s in total. "
        "Meanwhile they left up to 16.0 h of GPUs to others."
    )
    assert "of GPUs" not in page(dataclasses.replace(seen(), groups=(stopped,), now=T0 + 3600))
    assert "What reclaims cost" not in page(seen())
    for cause in (GroupCause.DRILL, GroupCause.DRAIN, GroupCause.PERSON, GroupCause.QUEUE, GroupCause.LAUNCHER):
        asked = dataclasses.replace(stopped, cause=cause)
        assert "What reclaims cost" not in page(dataclasses.replace(seen(), groups=(asked,)))


@pytest.mark.parametrize(
    ("cause", "sources", "said"),
    [
        (GroupCause.RECLAIM, ["aliyun", "event"], "aliyun, event"),
        (GroupCause.LOSS, [], "nobody"),
        (GroupCause.PERSON, [], "a person's request"),
    ],
)
def test_a_decision_says_who_caused_it(cause: GroupCause, sources: list[str], said: str) -> None:
    assert announced(replace(GROUP, cause=cause, sources=[Source(each) for each in sources])) == said


def test_numbers_agree_with_their_verbs() -> None:
    agents = {
        Host(name): AgentState(node=Host(name), uid=f"uid-{name}", session=1, connected=name == "here", sources={})
        for name in ("here", "lost")
    }
    text = text_of(page(dataclasses.replace(seen(), agents=agents)), "coverage")
    assert "1 agent is connected, 1 is silent for an unknown reason." in text


def test_a_drain_is_shown_by_its_person_and_as_done_once_its_time_is_over() -> None:
    drain = dataclasses.replace(notice(1, left=10.0), source=OPERATOR, message="ann: new kernel")
    assert "drained by ann: new kernel" in page(dataclasses.replace(seen(), notices=(drain,)))
    over = page(dataclasses.replace(seen(), notices=(drain,), now=T0 + 20))
    assert 'data-over="drained">drained</span></td>' in over


def text_of(html: str, section: str) -> str:
    """The text of a section as a browser shows it."""
    part = html.partition(f'aria-labelledby="{section}"')[2].partition("</section>")[0].partition(">")[2]
    return " ".join(re.sub(r"<[^>]*>", "", part).split())


def test_an_agent_of_a_reclaimed_node_is_no_silent_one() -> None:
    """Only the others are listed, those of which it is not known why."""
    agents = {
        Host(name): AgentState(node=Host(name), uid=f"uid-{name}", session=1, connected=False, sources={})
        for name in ("gone", "lost")
    }
    gone = Subject(SubjectKind.NODE, "gone", "uid-gone")
    ended = dataclasses.replace(notice(1, state=NoticeState.GONE), subject=gone, ended_at=T0 + 1)
    silent = {Host("gone"): T0, Host("lost"): T0}
    view = status_view(dataclasses.replace(seen(), notices=(ended,), agents=agents, silent=silent, now=T0 + 9))
    assert [(agent.node, agent.silent_seconds) for agent in contents(view).silent] == [("lost", 9.0)]
    assert view.coverage.agents_reclaimed == 1


def test_a_notice_that_is_ahead_is_no_reclaim_under_way() -> None:
    """It is shown with its class."""
    hint = dataclasses.replace(notice(1, left=None), notice_class=NoticeClass.HINT)
    now = dataclasses.replace(seen(), notices=(hint,))
    view = status_view(now)
    assert contents(view).summary.endswith("Nothing is being reclaimed, 1 job Running.")
    assert [each.notice_class for each in contents(view).reclaims] == [NoticeClass.HINT]
    assert '<span class="mark">hint</span>' in PageRenderer().content(now)


def test_connected_nodes_are_counted_by_their_machine() -> None:
    spot = Machine(cloud="aws", zone="a", instance_type="p4d", price_class=PriceClass.SPOT)
    agents = {
        host: AgentState(node=host, uid=host, session=1, connected=host != "n3", machine=spot) for host in first(3)
    }
    now = dataclasses.replace(seen(), agents=agents)
    (kind,) = overview(now).machines
    assert (kind.nodes, kind.cloud, kind.zone, kind.instance_type, kind.price_class) == (2, "aws", "a", "p4d", "spot")
    assert "p4d" in PageRenderer().content(now)


def test_of_the_agents_only_those_are_read_that_somebody_has_to_look_after() -> None:
    """The overview and a job's page are loaded again and again, also with 10,000 nodes."""
    agents = {
        Host(name): AgentState(node=Host(name), uid="uid", session=1, connected=name != "lost")
        for name in ("n1", "n2", "twin", "lost")
    }
    now = dataclasses.replace(seen(), agents=agents, sharing={Host("twin"): [Host("n9")]})
    found = overview(now)
    assert [agent.node for agent in found.view.agents] == ["twin", "lost"]
    assert (found.view.coverage.agents_connected, [agent.node for agent in found.silent]) == (3, ["lost"])
    of_job = job_contents(JobPageSnapshot(status=now, history=(), stored=(), since=T0))
    assert of_job.view.agents == []
    assert [host.host for host in of_job.hosts if host.agent] == ["n1", "n2"]


async def test_the_first_viewer_of_a_page_waits_for_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_COMPILED", rendering._CompiledTemplates())
    renderer = PageRenderer()
    await renderer.compile()
    assert "<main" in renderer.page(seen(), session=VIEWING)

    def compiles(*_: object, **__: object) -> None:
        raise AssertionError("a template is compiled")

    monkeypatch.setattr(jinja2.Environment, "compile", compiles)
    assert "<main" in renderer.page(seen(), session=VIEWING)
    assert "<main" in PageRenderer().page(seen(), session=VIEWING)


def test_machines_of_which_nothing_is_known_are_not_listed() -> None:
    agents = {host: AgentState(node=host, uid=host, session=1, connected=True) for host in first(3)}
    assert overview(dataclasses.replace(seen(), agents=agents)).machines == []
