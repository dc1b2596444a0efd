"""The status view is computed from plain values."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.decide.explanation import Lack, Missing, MissingHost
from supervisor.decide.ranks import Ranks
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, Source
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, SupervisedJob
from supervisor.domain.notice import SIMULATED, NoticeClass, NoticeState, ReclaimNotice, Subject, SubjectKind
from supervisor.ingest.agent_registry import AgentState, SourceState
from supervisor.observability.groups import DecidedGroup, GroupOutcome
from supervisor.observability.status_view import START, JobFactsSnapshot, StatusSnapshot, page, status_view
from supervisor.observability.views import HostView, JobView, LeaderView, StatusView
from supervisor.refusals import Code, Wire
from tests.supervisor.decide.agreement_builders import answering, rank_states
from tests.supervisor.decide.decide_builders import (
    METADATA,
    POLICY,
    T0,
    first,
    hosts,
    notice,
    noticed,
    observing,
    running_job,
    waiting_job,
)

NOW = T0 + 100


def agents(*numbers: int) -> dict[Host, AgentState]:
    return {
        host: AgentState(node=host, uid=f"uid-{host}", session=1, connected=True, sources={METADATA: SourceState.CLEAR})
        for host in sorted(hosts(*numbers))
    }


def job_seen(job: SupervisedJob, *notices: ReclaimNotice, **changes: Any) -> JobFactsSnapshot:
    """A job on nodes, all of whose hosts have a stream."""
    fields: dict[str, Any] = {"noticed": noticed(*notices), "placements": None, "streams": first(6), "since": NOW - 30}
    return JobFactsSnapshot(job=job, **{**fields, **changes})


def seen(*jobs: JobFactsSnapshot, notices: tuple[ReclaimNotice, ...] = (), **changes: Any) -> StatusView:
    """The view at `NOW`, with agents on all of n1 to n6."""
    fields: dict[str, Any] = {
        "leader": LeaderView(name="pod-0", acts=True, serving_seconds=9.0),
        "unconfirmed": (),
        "groups": (),
        "agents": agents(1, 2, 3, 4, 5, 6),
        "silent": {},
        "refused": {},
    }
    return status_view(StatusSnapshot(now=NOW, policy=POLICY, jobs=jobs, notices=notices, **{**fields, **changes}))


def only_job(shown: StatusView) -> JobView:
    (job,) = shown.jobs
    return job


def by_host(shown: StatusView) -> Mapping[str, HostView]:
    return {state.host: state for state in only_job(shown).host_states}


def test_a_job_counts_down_to_the_first_of_its_hosts() -> None:
    """Notices that have ended do not count, nor does a host that is none of the job's."""
    gone = notice(4, left=101.0, state=NoticeState.GONE)
    shown = seen(job_seen(running_job(), notice(1, left=160.0), notice(2, left=130.0), gone, notice(9, left=105.0)))
    assert only_job(shown).seconds_left == 30.0
    assert by_host(shown)["n2"].notice == "metadata/n2/uid-2"
    assert by_host(shown)["n4"].seconds_left is None
    assert by_host(shown)["n3"].notice is None


def test_a_notice_without_a_time_counts_down_to_the_assumed_one() -> None:
    untimed = notice(1, left=None)
    shown = seen(job_seen(running_job(), untimed), notices=(untimed,))
    assert by_host(shown)["n1"].seconds_left == POLICY.default_lead_seconds - 100
    assert shown.notices[0].seconds_left is None


def test_a_notice_shows_its_class_and_whether_it_is_acted_on() -> None:
    near = replace(notice(1, left=300.0), notice_class=NoticeClass.SCHEDULED, cancellable=True)
    far = replace(notice(2, left=86400.0), notice_class=NoticeClass.SCHEDULED)
    hint = replace(notice(3, left=None), notice_class=NoticeClass.HINT)
    ended_one = replace(notice(4, state=NoticeState.WITHDRAWN), ended_at=NOW)
    shown = seen(notices=(near, far, hint, ended_one)).notices
    assert {each.subject: (each.notice_class, each.acted_on, each.cancellable) for each in shown} == {
        "n1": (NoticeClass.SCHEDULED, True, True),
        "n2": (NoticeClass.SCHEDULED, False, False),
        "n3": (NoticeClass.HINT, False, False),
        "n4": (NoticeClass.SUDDEN, False, False),
    }


def test_nothing_is_below_zero_but_a_margin() -> None:
    late = notice(1, left=50.0)
    shown = seen(job_seen(running_job(), late), notices=(late,))
    assert (only_job(shown).seconds_left, shown.notices[0].seconds_left) == (0.0, 0.0)


def test_an_excluded_host_is_no_worker() -> None:
    job = running_job()
    job = replace(job, decision=replace(job.decision, exclusions=hosts(2)))
    excluded = by_host(seen(job_seen(job)))["n2"]
    assert (excluded.excluded, excluded.worker) == (True, False)
    idle = by_host(seen(job_seen(observing(job, running=False))))
    assert not any(state.worker for state in idle.values())


def test_the_launchers_host_is_shown_beside_the_workers() -> None:
    job = running_job()
    job = replace(job, spec=replace(job.spec, launcher_host=Host("boss")))
    launcher = by_host(seen(job_seen(job)))["boss"]
    assert (launcher.launcher, launcher.worker) == (True, False)


def test_coverage_counts_workers_that_a_reclaim_would_not_reach() -> None:
    unknown = replace(agents(3)[Host("n3")], connected=False)
    around = {**agents(1, 2, 4, 5), Host("n3"): unknown}
    shown = seen(job_seen(running_job(), streams=hosts(1, 2, 3)), agents=around, silent={Host("n3"): NOW - 7})
    assert (shown.coverage.workers, shown.coverage.without_agent, shown.coverage.without_stream) == (6, 2, 3)
    assert (shown.coverage.agents_connected, shown.coverage.agents_unknown) == (4, 1)
    assert [state.host for state in by_host(shown).values() if state.uncovered] == ["n3", "n4", "n5", "n6"]
    assert {agent.node: agent.silent_seconds for agent in shown.agents if not agent.connected} == {"n3": 7.0}


def test_pods_are_where_they_are_placed() -> None:
    """The agent is the node's, a notice on the pod or the node concerns the job."""
    placements = {host: Placement(f"pod-{host}", Host(f"node-{host}"), name=f"{host}-x") for host in first(6)}
    on_node = replace(notice(1), subject=Subject(SubjectKind.NODE, "node-n1", "uid"))
    on_pod = replace(notice(2), subject=Subject(SubjectKind.POD, "n2", "pod-n2"))
    other = replace(notice(3), subject=Subject(SubjectKind.POD, "n3", "pod-of-another"))
    around = {Host("node-n1"): replace(agents(1)[Host("n1")], node=Host("node-n1"))}
    shown = seen(job_seen(running_job(), placements=placements), notices=(on_node, on_pod, other), agents=around)
    assert (by_host(shown)["n1"].node, by_host(shown)["n1"].pod, by_host(shown)["n1"].agent) == (
        "node-n1",
        "n1-x",
        True,
    )
    assert not by_host(shown)["n2"].agent
    assert [each.jobs for each in shown.notices] == [["job"], ["job"], []]


def test_a_notice_that_has_ended_concerns_nobody() -> None:
    ended = replace(notice(1, state=NoticeState.WITHDRAWN), ended_at=NOW - 5)
    (shown,) = seen(job_seen(running_job()), notices=(ended,)).notices
    assert (shown.jobs, shown.ended_seconds, shown.age_seconds) == ([], 5.0, 100.0)


def test_a_drill_is_marked_wherever_it_is_shown() -> None:
    """On the notice and on the job; a real one is on neither."""
    drill = replace(notice(1), source=SIMULATED)
    shown = seen(job_seen(running_job(), drill), notices=(drill, notice(2)))
    assert [each.simulated for each in shown.notices] == [True, False]
    assert only_job(shown).simulated
    assert not only_job(seen(job_seen(running_job(), notice(1)))).simulated


def test_what_is_not_durable_is_shown_apart() -> None:
    shown = seen(job_seen(running_job()), unconfirmed=(notice(1),))
    assert ([each.subject for each in shown.unconfirmed], shown.notices) == (["n1"], [])


def test_an_agreement_says_who_has_not_answered() -> None:
    """Nor read its flag; a job without one shows none."""
    states = tuple(replace(state, unread_seconds=31.0 * (state.rank == 1)) for state in rank_states(2))
    held = Agreement(epoch=3, purpose=Purpose.STOP, run=1, step=42, since=T0 - 2, began=T0 - 3)
    job = replace(running_job(), decision=replace(running_job().decision, agreement=held))
    heard = answering(states[:1], held, AnswerKind.ACCEPTED, at=0.0)
    shown = only_job(seen(job_seen(job, ranks=lambda: Ranks((*heard, states[1]))))).agreement
    assert shown is not None
    assert (shown.purpose, shown.epoch, shown.step, shown.committed) == (Purpose.STOP, 3, 42, False)
    assert (shown.waits_for, shown.unread_seconds) == ("rank 1 (flag not read for 31 s)", 31.0)
    assert shown.age_seconds == NOW - T0 + 2
    assert only_job(seen(job_seen(running_job()))).agreement is None


def test_a_job_shows_the_slowest_of_what_its_ranks_have_measured() -> None:
    """Null if none has measured it yet."""
    one, other = rank_states(2)
    ranks = Ranks((replace(one, step_seconds=0.2, checkpoint_seconds=3.0), replace(other, step_seconds=0.3)))
    shown = only_job(seen(job_seen(running_job(), ranks=lambda: ranks)))
    assert (shown.step_seconds, shown.checkpoint_seconds) == (0.3, 3.0)
    shown = only_job(seen(job_seen(running_job())))
    assert (shown.step_seconds, shown.checkpoint_seconds) == (None, None)


def test_an_acknowledgement_has_an_age() -> None:
    answer = Acknowledgement(run=1, generation=5, kind=AcknowledgementKind.SAVED, step=41, at=NOW - 4)
    shown = only_job(seen(job_seen(observing(running_job(), acknowledgement=answer)))).acknowledgement
    assert shown is not None
    assert (shown.step, shown.age_seconds) == (41, 4.0)


GROUP = DecidedGroup(
    job=running_job().name,
    uid="job",
    outcome=GroupOutcome.STOPPED,
    at=T0 + 12,
    run=1,
    generation=6,
    reason="Too few.",
    sources=(METADATA,),
    subjects=tuple(sorted(hosts(1, 2))),
    noticed_at=T0 + 10,
    deadline=T0 + 70,
)
ANSWER = Acknowledgement(run=1, generation=6, kind=AcknowledgementKind.LEFT, step=40, at=T0 + 73)


def test_a_group_says_what_it_cost() -> None:
    """Seconds until the decision, the margin, which may be negative, and the suspension so far."""
    (shown,) = seen(groups=(replace(GROUP, acknowledgement=ANSWER, suspended_at=T0 + 74),)).groups
    assert (shown.age_seconds, shown.decided_after_seconds, shown.margin_seconds) == (88.0, 2.0, -3.0)
    assert (shown.suspended, shown.suspended_seconds, shown.step) == (True, 26.0, 40)


def test_a_suspension_that_is_over_does_not_grow() -> None:
    (shown,) = seen(groups=(replace(GROUP, suspended_at=T0 + 74, resumed_at=T0 + 84),)).groups
    assert (shown.suspended, shown.suspended_seconds, shown.margin_seconds) == (False, 10.0, None)


def test_what_was_refused_is_sorted() -> None:
    counts = {(Wire.HTTP, Code.MALFORMED): 2, (Wire.GRPC, Code.BAD_TOKEN): 1}
    assert [(each.wire, each.code, each.count) for each in seen(refused=counts).refused] == [
        (Wire.GRPC, Code.BAD_TOKEN, 1),
        (Wire.HTTP, Code.MALFORMED, 2),
    ]


def ended(number: int, state: NoticeState) -> ReclaimNotice:
    return replace(notice(number, state=state), ended_at=NOW - 50)


def test_an_agent_whose_node_is_gone_is_not_unknown() -> None:
    """By a notice on its machine that has ended so; silence that it does not explain stays unknown."""
    around = {host: replace(agent, connected=False) for host, agent in agents(1, 2, 3, 4, 5, 6).items()}
    around = {host: replace(agent, uid=host.replace("n", "uid-")) for host, agent in around.items()}
    gone = [ended(number, NoticeState.GONE) for number in (1, 2, 3, 6)]
    withdrawn = ended(4, NoticeState.WITHDRAWN)
    of_a_node = replace(gone[3], source=Source("node-condition"), subject=replace(gone[3].subject, uid="object"))
    earlier = replace(gone[1], subject=replace(gone[1].subject, uid="another machine"))
    silent = {Host(f"n{number}"): NOW - 55.0 for number in range(1, 7)} | {Host("n3"): NOW + 50.0}
    shown = seen(notices=(gone[0], earlier, gone[2], withdrawn, of_a_node), agents=around, silent=silent)
    assert [agent.node for agent in shown.agents if agent.reclaimed] == ["n1", "n6"]
    assert (shown.coverage.agents_unknown, shown.coverage.agents_reclaimed) == (4, 2)


def test_a_connected_agent_is_never_taken_for_one_of_a_node_that_is_gone() -> None:
    gone = ended(1, NoticeState.GONE)
    around = {Host("n1"): replace(agents(1)[Host("n1")], uid="uid-1")}
    shown = seen(notices=(gone,), agents=around)
    assert (shown.coverage.agents_connected, shown.coverage.agents_unknown) == (1, 0)
    assert not shown.agents[0].reclaimed


def test_a_stop_is_late_if_it_was_answered_after_the_end_or_never() -> None:
    group = DecidedGroup(
        job=running_job().name,
        uid="uid",
        outcome=GroupOutcome.STOPPED,
        at=NOW,
        run=1,
        generation=1,
        reason="",
        sources=(),
        subjects=(),
        noticed_at=None,
        deadline=NOW + 10,
    )
    answer = Acknowledgement(run=1, generation=1, kind=AcknowledgementKind.SAVED, step=1, at=NOW + 5)
    groups = (
        group,
        replace(group, acknowledgement=answer, suspended_at=NOW + 11),
        replace(group, acknowledgement=replace(answer, at=NOW + 12), suspended_at=NOW + 12),
        replace(group, suspended_at=NOW + 12),
        replace(group, suspended_at=NOW + 12, deadline=None),
    )
    assert [each.late for each in seen(groups=groups).groups] == [False, False, True, True, False]


def test_a_job_on_two_pages_has_each_missing_host_once() -> None:
    lacks = Missing(
        tuple(MissingHost(host, Lack.NO_AGENT, "no agent is connected") for host in sorted(first(4))), "Why."
    )
    snapshot = StatusSnapshot(
        now=NOW,
        policy=POLICY,
        leader=LeaderView(name="", acts=True, serving_seconds=9.0, version="1"),
        jobs=(job_seen(waiting_job(listed=first(4)), missing=lambda: lacks),),
        notices=(),
        unconfirmed=(),
        groups=(),
        agents={},
        silent={},
        refused={},
    )
    start = page(snapshot, START, 3)
    assert start.last is not None
    views = [only_job(status_view(snapshot, part)) for part in (start, page(snapshot, start.last, 3))]
    assert [[one.host for one in view.missing_hosts] for view in views] == [["n1", "n2", "n3"], ["n4"]]
    assert {view.waits_for for view in views} == {"Why."}
