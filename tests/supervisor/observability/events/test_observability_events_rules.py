"""Rules that turn a change into Events, on which objects, or into none."""

import re
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.cluster.events import REPORTER, ClusterEvents, read_event
from supervisor.domain.job import (
    Acknowledgement,
    AcknowledgementKind,
    CheckpointRequest,
    Decision,
    Growth,
    Phase,
    Result,
    Stop,
    SupervisedJob,
)
from supervisor.domain.notice import SIMULATED, NoticeClass, NoticeState
from supervisor.observability.events.rules import (
    EVENT_REASONS,
    OF_JOBS,
    OF_NOTICES,
    EventDraft,
    EventSeverity,
    ObjectReference,
    drafts,
)
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged
from supervisor.settings import Settings
from tests.supervisor.cluster.cluster_scene import cluster_scene
from tests.supervisor.decide.decide_builders import T0, hosts, notice, running_job
from tests.supervisor.observability.events.observability_events import JOB, NOTICE, TRAINING_JOB, Known, pod, recording


def said(change: Change, known: Known | None = None) -> list[EventDraft]:
    return list(drafts(change, known or Known()))


def decided(job: SupervisedJob, **changes: object) -> SupervisedJob:
    decision: Decision = replace(job.decision, generation=job.decision.generation + 1, **changes)  # type: ignore[arg-type]  # Names are its fields.
    return replace(job, decision=decision)


def told(found: Sequence[EventDraft]) -> list[tuple[ObjectReference, str, str]]:
    return [(each.regarding, each.reason.name, each.note) for each in found]


def test_a_notice_is_said_on_its_pods_and_on_its_resource() -> None:
    active = replace(notice(1, left=30.4), message="Spot")
    found = said(NoticeChanged(None, active, T0), Known([pod(1), pod(2)]))
    sentence = 'Node n1 will be reclaimed at 2023-11-14T22:13:50Z, says metadata: "Spot"'
    resource = replace(NOTICE, uid=f"resource of {active.id}")
    assert told(found) == [(each, "ReclaimNoticed", sentence) for each in (pod(1), pod(2), resource)]
    assert [each.related for each in found] == [resource, resource, None]
    assert {each.reason.type for each in found} == {EventSeverity.WARNING}


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (NoticeState.WITHDRAWN, "Node n1 will not be reclaimed after all, says metadata."),
        (NoticeState.GONE, "Node n1 is gone, as metadata had announced."),
        (NoticeState.EXPIRED, "Node n1 is still there, though metadata had announced its end."),
    ],
)
def test_the_end_of_a_notice_is_said(state: NoticeState, sentence: str) -> None:
    """To all who were told of the beginning; one that is over when it becomes known is not news."""
    active, ended = notice(1), replace(notice(1), state=state, ended_at=T0)
    found = said(NoticeChanged(active, ended, T0), Known([pod(1)]))
    assert [(each.regarding.kind, each.note) for each in found] == [("Pod", sentence), ("ReclaimNotice", sentence)]
    assert {each.reason for each in found} == {OF_NOTICES[state]}
    assert said(NoticeChanged(None, ended, T0), Known([pod(1)])) == []


def test_a_drill_says_that_it_is_one() -> None:
    drill = replace(notice(1, left=30.0), source=SIMULATED)
    (begun,) = said(NoticeChanged(None, drill, T0))
    assert begun.note == "Drill: Node n1 will be reclaimed at 2023-11-14T22:13:50Z, says simulated."
    for state in (NoticeState.WITHDRAWN, NoticeState.GONE, NoticeState.EXPIRED):
        (over,) = said(NoticeChanged(drill, replace(drill, state=state, ended_at=T0), T0))
        assert over.note == "Drill: Node n1 stays; it is over."


def test_an_event_says_how_certain_the_end_is() -> None:
    scheduled = replace(notice(1, left=30.0), notice_class=NoticeClass.SCHEDULED)
    hint = replace(notice(1, left=None), notice_class=NoticeClass.HINT)
    notes = [said(NoticeChanged(None, each, T0))[0].note for each in (scheduled, hint)]
    assert notes == [
        "Node n1 is scheduled to be reclaimed at 2023-11-14T22:13:50Z, says metadata.",
        "Node n1 may be reclaimed, says metadata.",
    ]
    (over,) = said(NoticeChanged(hint, replace(hint, state=NoticeState.EXPIRED, ended_at=T0), T0))
    assert over.note == "Node n1 is not watched any more; metadata had announced no end."


def test_another_class_is_news() -> None:
    hint = replace(notice(1, left=None), notice_class=NoticeClass.HINT)
    (found,) = said(NoticeChanged(hint, notice(1, left=None), T0))
    assert found.note == "Node n1 will be reclaimed, says metadata."


def test_a_checkpoint_of_a_run_that_continues_is_news() -> None:
    before = running_job()
    asked = CheckpointRequest(run=1, generation=6, since=T0)
    after = decided(before, checkpoint=asked, reason="n1 may be reclaimed later.")
    assert {each.note for each in said(JobChanged(before, after, T0))} == {"n1 may be reclaimed later."}
    assert said(JobChanged(after, decided(after, reason="It runs."), T0)) == []


def test_a_deadline_that_drifts_is_no_news_and_another_episode_is() -> None:
    active = notice(1, left=None)
    assert said(NoticeChanged(active, replace(active, deadline=T0 + 9, revision=2), T0)) == []
    ended = replace(active, state=NoticeState.WITHDRAWN, ended_at=T0)
    found = said(NoticeChanged(ended, replace(active, episode=2), T0))
    assert [each.note for each in found] == ["Node n1 will be reclaimed, says metadata."]
    assert said(NoticeChanged(active, replace(active, episode=2), T0)) != []


def test_a_group_is_said_once_on_the_job_and_on_every_pod_that_is_left_out() -> None:
    """Each with the decision's own sentence; a repetition of the same decision says nothing."""
    before = running_job()
    after = decided(before, phase=Phase.SHRINKING, exclusions=hosts(2, 3), reason="n2, n3 will be reclaimed.")
    found = said(JobChanged(before, after, T0))
    assert told(found) == [
        (JOB, "Shrinking", after.decision.reason),
        (TRAINING_JOB, "Shrinking", after.decision.reason),
        (pod(2), "Excluded", after.decision.reason),
        (pod(3), "Excluded", after.decision.reason),
    ]
    assert [each.related for each in found] == [None, JOB, JOB, JOB]
    assert said(JobChanged(after, after, T0)) == []


def test_one_more_group_while_the_phase_stays_is_news() -> None:
    """Only its own pods are told; and a host that comes back is news as well."""
    before = decided(running_job(), phase=Phase.SHRINKING, exclusions=hosts(2), reason="n2 will be reclaimed.")
    after = decided(before, exclusions=hosts(2, 4), reason="n4 will be reclaimed.")
    assert [each.regarding for each in said(JobChanged(before, after, T0))] == [JOB, TRAINING_JOB, pod(4)]
    back = decided(after, exclusions=hosts(2), reason="n4 will not be reclaimed after all.")
    assert [each.note for each in said(JobChanged(after, back, T0))] == [back.decision.reason] * 2


def test_what_a_host_reports_and_what_is_only_put_otherwise_is_no_news() -> None:
    """As is the moment in which the rest of a group is waited for."""
    before = running_job()
    seen = replace(before, observed=replace(before.observed, revision=9))
    assert said(JobChanged(before, seen, T0)) == []
    assert said(JobChanged(before, decided(before, reason="A group is collected.", window_until=T0), T0)) == []
    assert said(JobForgotten(before, T0)) == []


def test_what_is_ignored_of_a_jobs_requests_is_said_once() -> None:
    """On the job, for those who look at it with kubectl, when it becomes known or when it is changed."""
    fine = running_job()
    wrong = replace(fine, spec=replace(fine.spec, ignored=("A is ignored.", "B is ignored.")))
    more = replace(wrong, spec=replace(wrong.spec, ignored=(*wrong.spec.ignored, "C is ignored.")))
    found = said(JobChanged(fine, wrong, T0))
    assert told(found) == [(each, "RequestIgnored", "A is ignored. B is ignored.") for each in (JOB, TRAINING_JOB)]
    assert {each.reason.type for each in found} == {EventSeverity.WARNING}
    assert told(said(JobChanged(None, wrong, T0)))[-1][1:] == ("RequestIgnored", "A is ignored. B is ignored.")
    assert {each.note for each in said(JobChanged(wrong, more, T0))} == {"C is ignored."}
    assert said(JobChanged(more, replace(more, observed=replace(more.observed, revision=9)), T0)) == []
    assert said(JobChanged(more, fine, T0)) == []


def test_a_job_that_is_let_go_is_told() -> None:
    """Not one that is gone, that is taken up anew, that has ended, or that was shown but not supervised."""
    job, lets_go = running_job(), Known(lets_go=True)
    (found,) = said(JobForgotten(job, T0), lets_go)
    assert (found.regarding, found.related, found.reason.name) == (TRAINING_JOB, None, "Released")
    assert said(JobForgotten(job, T0)) == []
    ended = replace(job, observed=replace(job.observed, result=Result.SUCCEEDED))
    assert said(JobForgotten(ended, T0), lets_go) == []
    refused = replace(job, spec=replace(job.spec, refused=True))
    assert said(JobForgotten(refused, T0), lets_go) == []


def test_a_suspended_job_that_lets_go_of_its_hosts_is_no_news() -> None:
    excluded = decided(running_job(), phase=Phase.SUSPENDED, exclusions=hosts(2), reason="n2 will be reclaimed.")
    after = decided(excluded, exclusions=frozenset(), hosts=frozenset(), reason="No room.")
    assert said(JobChanged(excluded, after, T0)) == []


def test_a_suspension_without_a_checkpoint_is_a_warning() -> None:
    stop = Stop(run=1, generation=2, since=T0)
    before = decided(running_job(), phase=Phase.STOPPING, stop=stop)
    failed = Acknowledgement(run=1, generation=2, kind=AcknowledgementKind.FAILED, at=T0, error="full", has_left=True)
    for answer, kind in (
        (failed, EventSeverity.WARNING),
        (replace(failed, kind=AcknowledgementKind.SAVED), EventSeverity.NORMAL),
    ):
        after = decided(before, phase=Phase.SUSPENDED, stop=None, reason="Over.")
        after = replace(after, observed=replace(after.observed, acknowledgement=answer))
        assert {(each.reason.name, each.reason.type) for each in said(JobChanged(before, after, T0))} == {
            ("Suspended", kind)
        }


def test_a_job_that_is_given_up_to_its_hub_is_news_once() -> None:
    """Its phase stays. That it waits here again is only put otherwise."""
    before = decided(running_job(), phase=Phase.SUSPENDED, reason="No room.")
    after = decided(before, given_up_since=T0, reason="Its hub is to move it.")
    found = said(JobChanged(before, after, T0))
    assert told(found) == [(each, "GivenUp", "Its hub is to move it.") for each in (JOB, TRAINING_JOB)]
    assert {each.reason.type for each in found} == {EventSeverity.WARNING}
    assert said(JobChanged(after, decided(after, reason="Still."), T0)) == []
    assert said(JobChanged(after, decided(after, given_up_since=None), T0)) == []


def test_asking_for_more_workers_is_news_and_its_end_is_the_operators() -> None:
    before = running_job()
    after = decided(before, reason="More.", growth=Growth(workers=8, number=1, until=T0 + 60))
    assert [each.note for each in said(JobChanged(before, after, T0))] == ["More.", "More."]


def test_a_job_without_a_resource_is_not_talked_about() -> None:
    before = running_job()
    after = decided(before, phase=Phase.SHRINKING, exclusions=hosts(2), reason="n2 will be reclaimed.")
    found = said(JobChanged(before, after, T0), Known(jobs=()))
    assert [(each.regarding, each.related) for each in found] == [(pod(2), None)]


def test_every_phase_and_every_state_has_its_word() -> None:
    assert set(OF_JOBS) == set(Phase)
    assert set(OF_NOTICES) == set(NoticeState)
    assert all(
        re.fullmatch(r"([A-Z][a-z]+)+", text) for reason in EVENT_REASONS for text in (reason.name, reason.action)
    )
    assert len({reason.name for reason in EVENT_REASONS}) == len(EVENT_REASONS)


async def test_our_own_events_announce_no_reclaim() -> None:
    """None has a reason that is followed; and one that had would not count, whatever the settings say."""
    assert not {reason.name for reason in EVENT_REASONS} & Settings().event_leads.keys()
    event = {
        "metadata": {"name": "e", "namespace": "ns", "uid": "e", "resourceVersion": "5"},
        "involvedObject": {"kind": "Pod", "namespace": "ns", "name": "p", "uid": "uid-p"},
        "reason": "ReclaimNoticed",
    }
    async with cluster_scene() as scene, recording() as away:
        events = ClusterEvents(away.recorder._server, {"ReclaimNoticed": 60.0}, Clock(), Bulkhead(Clock()))
        one = scene.pod("p", "n1")
        for reporter, reasons in ((REPORTER, []), ("kubelet", ["ReclaimNoticed"])):
            shown = {**event, "reportingComponent": reporter, "metadata": {**event["metadata"], "name": reporter}}  # type: ignore[dict-item]
            events._moved(None, read_event(msgspec.json.encode(shown)))
            assert [each.reason for each, _ in events.about_pod(one)] == reasons
