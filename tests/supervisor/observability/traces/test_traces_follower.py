"""What a trace tells of a group, from decisions of the real `plan`."""

from dataclasses import replace

import pytest

from supervisor.decide.urgency import NodeIdentities
from supervisor.domain.capacity import Placement
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import AcknowledgementKind, Phase, RequestKind, UserRequest
from supervisor.domain.notice import (
    NODE_CONDITION,
    POD_CONDITION,
    SIMULATED,
    NoticeClass,
    NoticeState,
    ReclaimNotice,
    Subject,
    SubjectKind,
)
from supervisor.domain.order import ProcessDirectiveKind
from supervisor.observability.groups import GroupOutcome
from supervisor.observability.journal import JobForgotten, NoticeChanged
from supervisor.observability.traces import follower
from supervisor.observability.traces.follower import MAX_SPANS, trace_of
from tests.supervisor.decide.decide_builders import (
    T0,
    answered,
    hosts,
    notice,
    obeyed,
    observing,
    running_job,
    spec,
    suspended_job,
)
from tests.supervisor.observability.traces.traces_world import TracedLife

P = "job_supervisor."


def stopped(source: str | None = None) -> TracedLife:
    """Six hosts of which four are needed; the notices of three are stored half a second after they came."""
    life = TracedLife(running_job(spec(4), name="team/pytorchjob.train"))
    notices = [notice(number, left=60.0 + number) for number in (1, 2, 3)]
    if source is not None:
        notices = [replace(each, source=SIMULATED) for each in notices]
    life.announced(*notices, at=0.5)
    life.decided(2.0)
    return life


def suspended(life: TracedLife, at: float = 5.0) -> None:
    life.becomes(answered(life.job, step=41, at=T0 + at - 1), at - 1)
    life.decided(at)
    life.becomes(obeyed(life.job), at + 1)


def resumed(life: TracedLife, at: float) -> None:
    resuming = replace(life.job.decision, phase=Phase.RESUMING, run=2, hosts=hosts(4, 5, 6, 7), reason="Resuming.")
    life.becomes(replace(life.job, decision=resuming), at - 5)
    running = replace(resuming, phase=Phase.RUNNING, reason="Run 2 is running on 4 hosts.")
    life.becomes(observing(replace(life.job, decision=running), run=2, running=True), at)


def test_a_stop_is_told_from_its_notices_to_its_resume() -> None:
    life = stopped()
    stop = life.job.decision.stop
    assert stop is not None
    life.told(ProcessDirectiveKind.STOP, stop.generation, 2.1)
    suspended(life)
    resumed(life, 65.0)
    assert life.story() == [
        ("notice", 0.0, 0.5),
        ("notice", 0.0, 0.5),
        ("notice", 0.0, 0.5),
        ("decide", 0.5, 2.0),
        ("directive", 2.0, 2.1),
        ("acknowledge", 2.0, 4.0),
        ("stopping", 2.0, 5.0),
        ("order", 5.0, 6.0),
        ("suspended", 5.0, 60.0),
        ("resuming", 60.0, 65.0),
        ("reclaim", 0.0, 65.0),
    ]
    assert len({span.trace for span in life.spans}) == 1
    assert [span.name for span in life.spans if span.root] == ["reclaim"]
    assert not any(span.error for span in life.spans)
    marks = {"k8s.namespace.name": "team", f"{P}job": "train", f"{P}kind": "pytorchjob", f"{P}drill": False}
    assert all(marks.items() <= span.attributes.items() for span in life.spans)
    first = life.spans[0].attributes
    assert (first[f"{P}notice_id"], first[f"{P}source"]) == ("metadata/n1/uid-1", "metadata")
    assert life.only("directive").attributes[f"{P}directive"] == "STOP"
    answer = life.only("acknowledge").attributes
    assert (answer[f"{P}acknowledgement"], answer[f"{P}step"], answer[f"{P}rank"]) == ("saved", 41, 0)
    assert answer[f"{P}seconds_before_deadline"] == 57.0
    root = life.only("reclaim").attributes
    assert (root[f"{P}outcome"], root[f"{P}subjects"], root[f"{P}sources"]) == (
        "stopped",
        ("n1", "n2", "n3"),
        ("metadata",),
    )
    assert (root[f"{P}step"], root[f"{P}run"], root[f"{P}ended"]) == (41, 1, "Run 2 is running on 4 hosts.")
    assert root[f"{P}notice_ids"] == ("metadata/n1/uid-1", "metadata/n2/uid-2", "metadata/n3/uid-3")
    assert f"{P}taken_over" not in root


def test_a_smaller_size_is_told_until_the_launcher_has_it() -> None:
    life = TracedLife(running_job(spec(3)))
    life.announced(notice(1), at=0.25)
    life.decided(0.25)
    life.decided(2.0)
    assert life.job.decision.phase is Phase.SHRINKING
    life.told(ProcessDirectiveKind.LEAVE, life.job.decision.excluded_at, 2.1)
    life.becomes(obeyed(life.job), 2.5)
    life.decided(2.6)
    assert life.story() == [
        ("notice", 0.0, 0.25),
        ("decide", 0.25, 2.0),
        ("directive", 2.0, 2.1),
        ("order", 2.0, 2.5),
        ("shrinking", 2.0, 2.6),
        ("reclaim", 0.0, 2.6),
    ]
    root = life.only("reclaim").attributes
    assert (root[f"{P}outcome"], root[f"{P}job"], root[f"{P}kind"]) == ("shrunk", "job", "standalone")
    assert "k8s.namespace.name" not in root


def test_a_directive_may_precede_the_report_of_its_decision() -> None:
    """One of another decision is none of this one's, and one that is sent again is told once."""
    life = TracedLife(running_job(spec(4)))
    generation = life.job.decision.generation + 1
    life.told(ProcessDirectiveKind.CHECKPOINT, generation - 1, 1.0)
    life.told(ProcessDirectiveKind.STOP, generation, 2.0)
    life.announced(*(notice(number, left=60.0) for number in (1, 2, 3)))
    life.decided(2.0)
    stop = life.job.decision.stop
    assert stop is not None
    assert stop.generation == generation
    life.told(ProcessDirectiveKind.STOP, generation, 9.0)
    assert life.only("directive").ends == T0 + 2.0


def test_a_drill_is_marked_in_each_span() -> None:
    life = stopped(SIMULATED)
    suspended(life)
    resumed(life, 65.0)
    assert all(span.attributes[f"{P}drill"] is True for span in life.spans)
    assert life.spans[-1].name == "drill"


def test_a_loss_without_a_notice_is_no_reclaim() -> None:
    life = TracedLife(observing(running_job(spec(4)), hosts=hosts(1, 2, 3)))
    life.decided(0.0)
    life.decided(60.0)
    life.hears(JobForgotten(life.job, T0 + 70))
    assert life.story() == [("decide", 0.0, 60.0), ("stopping", 60.0, 70.0), ("loss", 0.0, 70.0)]


def test_what_a_person_asked_for_is_named_so() -> None:
    asked = UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="", at=T0)
    life = TracedLife(observing(running_job(), request=asked))
    life.decided(1.0)
    life.hears(JobForgotten(life.job, T0 + 2))
    assert life.spans[-1].name == "person"


def test_a_withdrawn_notice_ends_its_trace_in_words() -> None:
    """Nothing was decided because of it, so it has a trace of its own."""
    life = TracedLife(running_job(spec(3)))
    known = notice(1)
    life.announced(known, at=0.5)
    withdrawn = replace(known, state=NoticeState.WITHDRAWN, ended_at=T0 + 30)
    life.hears(NoticeChanged(known, withdrawn, T0 + 30.1))
    (span,) = life.spans
    assert (span.name, span.root, span.begins, span.ends) == ("notice", True, T0, T0 + 30)
    assert span.attributes[f"{P}outcome"] == "withdrawn"
    assert span.attributes[f"{P}reason"] == "Node n1 will not be reclaimed after all, says metadata."
    again = replace(known, episode=2, first_seen=T0 + 90)
    life.hears(NoticeChanged(withdrawn, again, T0 + 90))
    life.hears(NoticeChanged(again, replace(again, state=NoticeState.EXPIRED, ended_at=T0 + 99), T0 + 99))
    assert life.spans[1].trace != span.trace
    assert life.spans[1].attributes[f"{P}outcome"] == "expired"


def test_a_notice_that_is_withdrawn_later_is_told_in_its_groups_trace() -> None:
    life = stopped()
    known = life.noticed[next(iter(hosts(1)))]
    withdrawn = replace(known, state=NoticeState.WITHDRAWN, ended_at=T0 + 3)
    life.hears(NoticeChanged(known, withdrawn, T0 + 3.1))
    suspended(life)
    resumed(life, 65.0)
    assert all(span.name != "notice" or not span.root for span in life.spans)
    (event,) = life.only("reclaim").events
    assert (event.name, event.at) == ("notice withdrawn", T0 + 3)
    assert event.attributes[f"{P}reason"] == "Node n1 will not be reclaimed after all, says metadata."


@pytest.mark.parametrize("moment", ["stopping", "suspended", "resuming"])
def test_the_next_leader_goes_on_with_the_trace(moment: str) -> None:
    """Each part of it is told once, and the root says that its beginning was another's."""
    life = stopped()
    if moment == "stopping":
        life.another_leads(3.0)
    suspended(life)
    if moment == "suspended":
        life.another_leads(30.0)
    resuming = replace(life.job.decision, phase=Phase.RESUMING, run=2, run_since=T0 + 60, waiting_since=None)
    life.becomes(replace(life.job, decision=resuming), 60.0)
    if moment == "resuming":
        life.another_leads(62.0)
    running = replace(resuming, phase=Phase.RUNNING)
    life.becomes(observing(replace(life.job, decision=running), run=2, running=True), 65.0)
    names = [span.name for span in life.spans]
    assert names == [*["notice"] * 3, "decide", "acknowledge", "stopping", "order", "suspended", "resuming", "reclaim"]
    assert len({span.trace for span in life.spans}) == 1
    assert (life.only("suspended").begins, life.only("resuming").begins) == (T0 + 5, T0 + 60)
    assert life.only("reclaim").attributes[f"{P}taken_over"] is True


def test_the_next_leader_goes_on_with_a_smaller_size() -> None:
    life = TracedLife(running_job(spec(3)))
    life.announced(notice(1))
    life.decided(0.0)
    life.decided(2.0)
    life.another_leads(2.2)
    life.becomes(obeyed(life.job), 2.5)
    life.decided(2.6)
    assert [span.name for span in life.spans] == ["notice", "decide", "order", "shrinking", "reclaim"]
    assert len({span.trace for span in life.spans}) == 1


def test_a_job_that_runs_has_no_trace_to_go_on_with() -> None:
    life = TracedLife(running_job())
    life.another_leads(1.0)
    life.hears(JobForgotten(life.job, T0 + 2))
    assert life.spans == []


def test_ids_do_not_depend_on_what_a_cluster_rounds() -> None:
    job = observing(running_job(), registered_at=T0 + 0.123456789)
    rounded = observing(job, registered_at=T0 + 0.123457)
    assert trace_of(job, GroupOutcome.STOPPED) == trace_of(rounded, GroupOutcome.STOPPED)
    others = [
        replace(job, uid="other"),
        replace(job, name=JobName("other")),
        observing(job, registered_at=T0 + 9),
        observing(job, run=2),
    ]
    assert len({trace_of(each, GroupOutcome.STOPPED) for each in [job, *others]}) == 5


def test_a_further_decision_ends_the_trace_and_is_linked_with_it() -> None:
    life = TracedLife(running_job(spec(4)))
    life.announced(notice(1))
    life.decided(0.0)
    life.decided(2.0)
    life.announced(*(notice(number, seen=T0 + 3, left=60.0) for number in (2, 3)), at=3.0)
    life.decided(3.0)
    assert life.job.decision.phase is Phase.STOPPING
    first = life.only("reclaim")
    assert (first.ends, first.attributes[f"{P}ended"]) == (T0 + 3, "A further decision about the job followed.")
    life.hears(JobForgotten(life.job, T0 + 9))
    second = life.spans[-1]
    assert (second.root, second.links) == (True, (first.trace,))
    assert second.trace != first.trace


def test_a_job_that_is_stopped_before_its_next_run_was_seen_stays_in_its_trace() -> None:
    life = stopped()
    suspended(life)
    resuming = replace(life.job.decision, phase=Phase.RESUMING, run=2, hosts=hosts(3, 4, 5, 6), exclusions=frozenset())
    life.becomes(replace(life.job, decision=resuming), 60.0)
    again = replace(resuming, phase=Phase.STOPPING, generation=20)
    life.becomes(replace(life.job, decision=again), 61.0)
    life.hears(JobForgotten(life.job, T0 + 70))
    assert [span.name for span in life.spans if span.root] == ["reclaim"]
    assert len({span.trace for span in life.spans}) == 1
    assert (life.only("reclaim").begins, life.only("reclaim").ends) == (T0, T0 + 70)


def test_a_save_that_failed_and_a_run_that_did_not_start_are_errors() -> None:
    life = stopped()
    life.becomes(answered(life.job, AcknowledgementKind.FAILED, step=None, error="a full disk", has_left=True), 3.0)
    life.decided(4.0)
    assert life.only("acknowledge").error == "Rank 0 could not save: a full disk."
    resuming = replace(life.job.decision, phase=Phase.RESUMING, run=2)
    life.becomes(replace(life.job, decision=resuming), 10.0)
    failed = replace(resuming, phase=Phase.SUSPENDED, failed_resumes=1, reason="Run 2 did not start in time.")
    life.becomes(replace(life.job, decision=failed), 130.0)
    assert life.only("resuming").error == "Run 2 did not start in time."
    over = replace(failed, phase=Phase.TIMED_OUT, reason="No capacity.")
    life.becomes(replace(life.job, decision=over), 200.0)
    assert life.only("reclaim").error == "No capacity."


def test_a_stop_without_a_checkpoint_is_an_error() -> None:
    life = stopped()
    life.decided(120.0)
    assert life.job.decision.phase is Phase.SUSPENDED
    reason = life.job.decision.reason
    resumed(life, 200.0)
    assert life.only("reclaim").error == reason


def test_a_job_that_is_forgotten_ends_its_trace() -> None:
    life = stopped()
    life.hears(JobForgotten(life.job, T0 + 20))
    assert life.only("reclaim").attributes[f"{P}ended"] == "The job was deleted, or is not supervised any more."
    assert life.only("stopping").ends == T0 + 20


def test_a_trace_has_a_bounded_number_of_spans() -> None:
    """A job may wait for months, and try to resume again and again."""
    life = stopped()
    suspended(life)
    for attempt in range(MAX_SPANS):
        decision = replace(life.job.decision, phase=Phase.RESUMING)
        life.becomes(replace(life.job, decision=decision), 100.0 + attempt)
        decision = replace(decision, phase=Phase.SUSPENDED, failed_resumes=attempt + 1)
        life.becomes(replace(life.job, decision=decision), 100.5 + attempt)
    resumed(life, 1000.0)
    assert len(life.spans) == MAX_SPANS + 1
    assert life.only("reclaim").attributes[f"{P}spans_left_out"] == 7 + 2 * MAX_SPANS + 2 - MAX_SPANS


def test_more_notices_than_are_followed_cost_their_own_traces_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "MAX_NOTICES", 2)
    life = stopped()
    assert life.story()[:4] == [
        ("notice", 0.0, 0.5),
        ("notice", 0.0, 0.5),
        ("notice", 0.0, 0.0),
        ("decide", 0.0, 2.0),
    ]


def test_a_job_that_was_suspended_before_is_taken_over_without_its_notices() -> None:
    life = TracedLife(suspended_job())
    life.another_leads(10.0)
    resumed(life, 65.0)
    assert life.story() == [("suspended", 0.0, 60.0), ("resuming", 60.0, 65.0), ("unknown", 0.0, 65.0)]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("It is suspended.", "unknown"),
        ("n1 will be reclaimed, says metadata. It is suspended.", "reclaim"),
        ("Drill: n1 will be reclaimed, says simulated. It is suspended.", "drill"),
    ],
)
def test_the_cause_of_a_trace_that_is_taken_over_is_what_is_stored_of_it(reason: str, cause: str) -> None:
    job = suspended_job()
    life = TracedLife(replace(job, decision=replace(job.decision, reason=reason)))
    life.another_leads(10.0)
    life.hears(JobForgotten(life.job, T0 + 20))
    assert life.only(cause).attributes[f"{P}drill"] is (cause == "drill")


ASKED = UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="n1 will be reclaimed, says bob.", at=T0)


@pytest.mark.parametrize("moment", ["stopping", "suspended", "resuming"])
def test_a_job_that_a_person_had_suspended_is_no_reclaim_to_the_next_leader(moment: str) -> None:
    """Nor if a notice about one of its hosts came later, or if the person has taken the request back."""
    life = TracedLife(observing(running_job(), request=ASKED))
    life.decided(1.0)
    if moment != "stopping":
        suspended(life)
        life.decided(7.0)
    if moment == "resuming":
        life.becomes(observing(life.job, request=None), 8.0)
        life.decided(8.0)
        resuming = replace(life.job.decision, phase=Phase.RESUMING, run=2, run_since=T0 + 9, hosts=hosts(1, 2, 3))
        life.becomes(replace(life.job, decision=resuming), 9.0)
    life.announced(notice(1, seen=T0 + 10), at=10.0)
    life.another_leads(11.0)
    life.spans.clear()
    life.hears(JobForgotten(life.job, T0 + 20))
    assert life.spans[-1].name == ("unknown" if moment == "resuming" else "person")


def test_a_person_who_asked_for_it_later_is_not_the_cause() -> None:
    life = stopped()
    suspended(life)
    life.becomes(observing(life.job, request=ASKED), 9.0)
    life.decided(9.0)
    life.another_leads(10.0)
    life.hears(JobForgotten(life.job, T0 + 20))
    assert life.only("unknown").trace == life.spans[0].trace


def of_the_node(number: int, at: float, notice_class: NoticeClass = NoticeClass.SUDDEN) -> ReclaimNotice:
    """The notice of the node's condition about a host that the metadata reports, too; of less urgency."""
    reported = notice(number, seen=T0 + at, left=None)
    subject = replace(reported.subject, uid="of the Node object")
    return replace(reported, source=NODE_CONDITION, subject=subject, notice_class=notice_class)


def ended(life: TracedLife, each: ReclaimNotice, at: float) -> None:
    life.hears(NoticeChanged(each, replace(each, state=NoticeState.GONE, ended_at=T0 + at), T0 + at))


def test_two_sources_that_report_one_host_are_one_trace() -> None:
    """Whether the second one reports it before the decision, while the trace is open, or after its end."""
    life = TracedLife(running_job(spec(3)))
    life.announced(notice(1), at=0.25)
    earlier, meanwhile, late = of_the_node(1, 0.5), of_the_node(1, 2.25), of_the_node(1, 3.0)
    meanwhile, late = (
        replace(meanwhile, source=Source("aws")),
        replace(late, subject=replace(late.subject, uid="another")),
    )
    life.hears(NoticeChanged(None, earlier, T0 + 0.75))
    life.decided(0.25)
    life.decided(2.0)
    life.hears(NoticeChanged(None, meanwhile, T0 + 2.25))
    life.becomes(obeyed(life.job), 2.5)
    life.decided(2.6)
    life.hears(NoticeChanged(None, late, T0 + 3.5))
    for each in (earlier, *life.noticed.values(), meanwhile, late):
        ended(life, each, 60.0)
    assert life.story() == [
        ("notice", 0.0, 0.25),
        ("notice", 0.5, 0.75),
        ("decide", 0.25, 2.0),
        ("notice", 2.25, 2.25),
        ("order", 2.0, 2.5),
        ("shrinking", 2.0, 2.6),
        ("reclaim", 0.0, 2.6),
        ("notice", 3.0, 3.5),
    ]
    assert len({span.trace for span in life.spans}) == 1
    root = life.only("reclaim")
    assert root.attributes[f"{P}sources"] == ("aws", "metadata", "node-condition")
    assert len(root.attributes[f"{P}notice_ids"]) == 3  # type: ignore[arg-type]  # It is a sequence.
    again = replace(earlier, episode=2, first_seen=T0 + 90)
    life.hears(NoticeChanged(earlier, again, T0 + 90))
    ended(life, again, 99.0)
    assert life.spans[-1].trace != root.trace
    assert life.traces.size == 0


def test_the_notices_of_a_pod_and_of_its_node_are_one_trace_and_not_those_of_other_pods_there() -> None:
    placements = {host: Placement(f"pod of {host}", Host(f"node of {host}")) for host in hosts(1, 2, 3, 4, 5, 6)}
    life = TracedLife(running_job(spec(3)), placements)
    node = replace(notice(1), subject=Subject(SubjectKind.NODE, "node of n1", "uid"))
    pod, other = (
        replace(of_the_node(1, 1.0), source=POD_CONDITION, subject=Subject(SubjectKind.POD, f"team/{uid}", uid))
        for uid in ("pod of n1", "another pod on the node of n1")
    )
    life.noticed = {next(iter(hosts(1))): node}
    life.hears(NoticeChanged(None, node, T0))
    life.decided(0.0)
    life.decided(2.0)
    for each in (pod, other):
        life.hears(NoticeChanged(None, each, T0 + 2.25))
        ended(life, each, 60.0)
    assert [span.name for span in life.spans] == ["notice", "decide", "notice", "notice"]
    assert [span.root for span in life.spans] == [False, False, False, True]
    assert life.spans[2].trace == life.spans[0].trace


def test_a_hint_about_a_host_that_is_decided_about_stays_a_trace_of_its_own() -> None:
    """Nothing is decided because of it."""
    life = TracedLife(running_job(spec(3)))
    hints = [of_the_node(1, 0.0, NoticeClass.HINT), replace(of_the_node(1, 3.0, NoticeClass.HINT), source=Source("x"))]
    life.hears(NoticeChanged(None, hints[0], T0))
    life.announced(notice(1))
    life.decided(0.0)
    life.decided(2.0)
    life.hears(NoticeChanged(None, hints[1], T0 + 3.0))
    for each in hints:
        ended(life, each, 60.0)
    assert [span.root for span in life.spans] == [False, False, True, True]


@pytest.mark.parametrize("first", [True, False], ids=["before the decision", "after it"])
def test_a_notice_that_no_decision_heeds_stays_a_trace_of_its_own(*, first: bool) -> None:
    """Such as one of the node's condition that its metadata denies, or one about an earlier machine of that name."""
    life = TracedLife(running_job(spec(3)), {host: Placement(f"pod of {host}", host) for host in hosts(1, 2, 3, 4)})
    pod = replace(notice(1), source=POD_CONDITION, subject=Subject(SubjectKind.POD, "team/n1", "pod of n1"))
    denied = of_the_node(1, 0.5)
    earlier = replace(denied, source=Source("aws"), subject=replace(denied.subject, uid="an earlier machine"))
    life.identities = NodeIdentities(machines={Host("n1"): "uid-1"}, clear=hosts(1))
    life.noticed = {Host("n1"): pod}
    told = [NoticeChanged(None, each, T0 + 0.75) for each in (denied, earlier)]
    life.hears(NoticeChanged(None, pod, T0))
    for change in told if first else ():
        life.hears(change)
    life.decided(0.25)
    life.decided(2.0)
    for change in () if first else told:
        life.hears(change)
    for each in (denied, earlier):
        ended(life, each, 60.0)
    assert [(span.name, span.root) for span in life.spans] == [
        ("notice", False),
        ("decide", False),
        ("notice", True),
        ("notice", True),
    ]


def test_the_next_leader_knows_of_all_sources() -> None:
    life = stopped()
    other = of_the_node(1, 1.0)
    life.hears(NoticeChanged(None, other, T0 + 1))
    life.another_leads(3.0, other)
    ended(life, other, 4.0)
    life.hears(JobForgotten(life.job, T0 + 20))
    assert life.only("reclaim").attributes[f"{P}sources"] == ("metadata", "node-condition")
    assert not any(span.root and span.name == "notice" for span in life.spans)


def test_an_answer_of_an_earlier_run_is_not_taken_over() -> None:
    life = stopped()
    suspended(life)
    resumed(life, 65.0)
    life.noticed = {}
    life.announced(*(notice(number, seen=T0 + 70, left=60.0) for number in (4, 5)), at=70.0)
    life.decided(72.0)
    assert life.job.decision.phase is Phase.STOPPING
    life.spans.clear()
    life.another_leads(73.0)
    life.hears(JobForgotten(life.job, T0 + 80))
    assert f"{P}step" not in life.only("reclaim").attributes
