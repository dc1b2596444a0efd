"""Jobs that a hub of many clusters has made: given up instead of timed out, and resumed from a known checkpoint."""

from dataclasses import replace

import pytest

from supervisor.decide.explanation import prospects
from supervisor.decide.grant import waits
from supervisor.decide.plan import actions
from supervisor.domain.job import (
    ELASTIC,
    AcknowledgementKind,
    Capability,
    HubMarks,
    Phase,
    RequestKind,
    Spec,
    SupervisedJob,
    UserRequest,
)
from supervisor.domain.order import Action, SuspendRun, WriteHubMarks
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    first,
    notice,
    noticed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
    waiting_job,
)

WAIT = 600.0
LIMIT = POLICY.move_timeout_seconds
ROOM = seeing(granted=first(6))
SHUT = UserRequest(kind=RequestKind.SUSPEND, by="ann", at=T0)


def asked(*, moves: bool = True) -> Spec:
    capabilities = (ELASTIC | {Capability.MOVES}) if moves else ELASTIC
    return replace(spec(max_wait=WAIT), capabilities=capabilities)


def of_hub(job: SupervisedJob, **marks: object) -> SupervisedJob:
    return observing(job, hub=HubMarks(**marks))  # type: ignore[arg-type]  # Names are its fields.


def given_up() -> SupervisedJob:
    """A job that was given up at `WAIT`, as its object says."""
    job = decide(of_hub(suspended_job(asked())), seeing(), at=WAIT).job
    return of_hub(job, given_up=True, checkpoint="none")


def marked(todo: tuple[Action, ...]) -> HubMarks | None:
    return next((action.marks for action in todo if isinstance(action, WriteHubMarks)), None)


def test_a_suspended_job_is_given_up_after_its_wait() -> None:
    """Not sooner, and although there is room just then: it would time out otherwise."""
    job = of_hub(suspended_job(asked()))
    early, planned = decide(job, seeing(), at=WAIT - 1)
    assert (early.decision.given_up_since, planned.actions, planned.wake_at) == (None, (), T0 + WAIT)
    job, planned = decide(job, ROOM, at=WAIT)
    assert (job.decision.phase, job.decision.given_up_since) == (Phase.SUSPENDED, T0 + WAIT)
    assert marked(planned.actions) == HubMarks(given_up=True, checkpoint="none")
    assert job.decision.reason.startswith("No capacity for 3 hosts within the maximum waiting time of 600 s: its hub ")


def test_without_the_request_it_times_out() -> None:
    job, _ = decide(of_hub(suspended_job(asked(moves=False))), seeing(), at=WAIT)
    assert (job.decision.phase, job.decision.given_up_since) == (Phase.TIMED_OUT, None)


def test_pods_that_wait_are_deleted_before_the_job_is_given_up() -> None:
    """The object says nothing to the hub until the suspension is in place."""
    job, planned = decide(of_hub(waiting_job(asked())), seeing(), at=WAIT)
    assert (job.decision.phase, job.decision.given_up_since) == (Phase.SUSPENDED, None)
    assert planned.actions == (SuspendRun(0),)
    assert job.decision.reason.endswith("suspending the job, to have it moved to another cluster.")
    job, planned = decide(job, ROOM, at=WAIT + 50)
    assert planned.actions == (SuspendRun(0),)
    job = observing(job, applied=job.decision.generation)
    job, planned = decide(job, ROOM, at=WAIT + 60)
    assert job.decision.given_up_since == T0 + WAIT + 60
    assert planned.actions == (WriteHubMarks(HubMarks(given_up=True, checkpoint="none")),)


def test_a_run_that_begins_in_time_is_not_given_up() -> None:
    started = observing(of_hub(waiting_job(asked())), running=True, run=1)
    job, _ = decide(started, seeing(), at=WAIT)
    assert (job.decision.phase, job.decision.given_up_since) == (Phase.RUNNING, None)


@pytest.mark.parametrize("at", [WAIT + 1, WAIT + LIMIT - 1])
def test_a_job_that_is_given_up_gets_no_capacity_here(at: float) -> None:
    job, planned = decide(given_up(), ROOM, at=at)
    assert (job, planned.actions) == (given_up(), ())
    assert planned.wake_at == T0 + WAIT + LIMIT
    assert not waits(job)
    assert [each.what for each in prospects(job)] == [
        "its hub is to move it to another cluster; if the hub does not, it waits here again"
    ]


def test_a_job_that_nobody_has_taken_waits_here_again() -> None:
    """Its object says that first; it is resumed half a minute later, and times out anew."""
    taken_back, planned = decide(given_up(), ROOM, at=WAIT + LIMIT)
    decision = taken_back.decision
    assert (decision.given_up_since, decision.waiting_since) == (None, T0 + WAIT + LIMIT)
    assert planned.actions == (WriteHubMarks(HubMarks(checkpoint="none")),)
    assert "The hub has not moved the job to another cluster within 600 s" in decision.reason
    offered, _ = decide(taken_back, ROOM, at=WAIT + LIMIT + 60)
    assert offered.decision.phase is Phase.SUSPENDED
    seen = of_hub(taken_back, checkpoint="none")
    early, planned = decide(seen, ROOM, at=WAIT + LIMIT + 20)
    assert (early.decision.phase, planned.wake_at) == (Phase.SUSPENDED, T0 + WAIT + LIMIT + 30)
    resumed, _ = decide(early, ROOM, at=WAIT + LIMIT + 30)
    assert resumed.decision.phase is Phase.RESUMING
    again, _ = decide(seen, seeing(), at=2 * WAIT + LIMIT)
    assert again.decision.given_up_since == T0 + 2 * WAIT + LIMIT


@pytest.mark.parametrize("changes", [{"request": SHUT}, {"queue": "A queue holds it."}])
def test_a_job_that_waits_for_somebody_else_is_not_offered_to_the_hub(changes: dict[str, object]) -> None:
    job, planned = decide(observing(given_up(), **changes), ROOM, at=WAIT + 5)
    assert job.decision.given_up_since is None
    assert marked(planned.actions) == HubMarks(checkpoint="none")


def test_a_mark_that_nobody_decided_is_taken_off() -> None:
    """As after the loss of what was stored, or if a person wrote it."""
    job = of_hub(running_job(asked()), given_up=True, checkpoint="4")
    assert marked(actions(job)) == HubMarks(checkpoint="4")


def test_a_suspension_notes_the_last_checkpoint() -> None:
    """For another leader, which has not heard of it, and for the hub."""
    job = of_hub(running_job(asked()))
    doomed = seeing(noticed(*map(notice, (1, 2, 3, 4))))
    job, _ = decide(job, doomed, at=POLICY.window_seconds)
    job, planned = decide(answered(job, step=7), replace(doomed, saved_step=7), at=3)
    assert (job.decision.phase, job.decision.resumes_from) == (Phase.SUSPENDED, 7)
    assert marked(planned.actions) == HubMarks(checkpoint="7")
    job, planned = decide(of_hub(job, checkpoint="7"), doomed, at=4)
    assert (job.decision.resumes_from, marked(planned.actions)) == (7, None)


def test_a_save_that_failed_leaves_the_checkpoint_before_it() -> None:
    job = of_hub(running_job(asked()))
    doomed = replace(seeing(noticed(*map(notice, (1, 2, 3, 4)))), saved_step=3)
    job, _ = decide(job, doomed, at=POLICY.window_seconds)
    failed = answered(job, AcknowledgementKind.FAILED, step=7, error="a full disk", has_left=True, resumes_from=3)
    job, planned = decide(failed, doomed, at=3)
    assert marked(planned.actions) == HubMarks(checkpoint="3")


@pytest.mark.parametrize(
    ("marks", "resumes_from", "wanted"),
    [
        (HubMarks(), None, None),
        (HubMarks(moved=True), None, "none"),
        (HubMarks(moved=True), 1200, "1200"),
        (HubMarks(moved=True, checkpoint="1200"), 1200, None),
        (HubMarks(checkpoint="1200"), None, None),
        (HubMarks(checkpoint="1200"), 0, "0"),
    ],
)
def test_the_object_says_the_checkpoint_as_soon_as_the_hub_waits_for_it(
    marks: HubMarks, resumes_from: int | None, wanted: str | None
) -> None:
    job = waiting_job(asked())
    job = observing(replace(job, decision=replace(job.decision, resumes_from=resumes_from)), hub=marks)
    after = marked(decide(job, seeing()).plan.actions)
    assert after == (None if wanted is None else replace(marks, checkpoint=wanted))


def test_a_job_of_no_hub_tells_nobody() -> None:
    job, planned = decide(suspended_job(asked()), replace(seeing(), saved_step=3), at=1)
    assert (job.decision.resumes_from, marked(planned.actions)) == (3, None)


def test_a_queue_keeps_the_checkpoint_of_a_job() -> None:
    job = replace(suspended_job(asked()), decision=replace(suspended_job().decision, resumes_from=9))
    job, _ = decide(observing(job, queue="A queue holds it."), seeing(), at=1)
    assert (job.decision.phase, job.decision.resumes_from) == (Phase.QUEUED, 9)


def test_what_comes_next_tells_of_the_move_and_of_the_checkpoint() -> None:
    job = of_hub(suspended_job(asked()))
    job = replace(job, decision=replace(job.decision, resumes_from=1200))
    assert [each.what for each in prospects(job)][1:] == [
        "its hub is to move it to another cluster unless it has started by then",
        "its next run starts from the checkpoint of step 1200",
    ]
