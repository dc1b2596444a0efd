"""Resuming though nothing is known to be there: when, for how long, and what it costs the job that tries."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.decide.situation import JobFacts
from supervisor.domain.job import Phase, SupervisedJob
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    decide,
    first,
    hosts,
    notice,
    noticed,
    obeyed,
    observing,
    seeing,
    spec,
    suspended_job,
)
from tests.testkit.properties import examples

PAUSE, BOUND = POLICY.probe_seconds, POLICY.resume_timeout_seconds
TRY = JobFacts(granted=first(6), probe=True)
HELD_UP = JobFacts(held_up=True)


def _trying(job: SupervisedJob | None = None, at: float = PAUSE) -> SupervisedJob:
    return decide(job or suspended_job(), TRY, at).job


def _failed(job: SupervisedJob, at: float) -> SupervisedJob:
    """A try that nothing came of, and the job's pods are gone again."""
    return obeyed(decide(observing(job, applied=job.decision.generation), seeing(), at).job)


def test_a_job_tries_when_it_has_waited_long_enough() -> None:
    """It says that it only tries, and its pods may be pending for as long as any resume may take."""
    early, planned = decide(suspended_job(), TRY, PAUSE - 1)
    assert (early.decision.phase, planned.wake_at) == (Phase.SUSPENDED, T0 + PAUSE)
    job, planned = decide(early, TRY, PAUSE)
    assert (job.decision.phase, job.decision.hosts, job.decision.probing) == (Phase.RESUMING, first(6), True)
    assert planned.wake_at == T0 + PAUSE + BOUND
    assert job.decision.reason == (
        "Trying run 2 on 6 hosts without known room: some capacity only appears for pending pods."
    )


def test_a_try_that_succeeds_is_a_resume() -> None:
    job = decide(obeyed(_trying()), seeing(), PAUSE + 60).job
    assert (job.decision.phase, job.decision.probing) == (Phase.RUNNING, False)
    assert (job.decision.waiting_since, job.decision.failed_resumes) == (None, 0)


def test_a_try_that_fails_suspends_the_job_again() -> None:
    job = decide(_trying(), seeing(), PAUSE + BOUND).job
    assert (job.decision.phase, job.decision.waiting_since) == (Phase.SUSPENDED, T0)
    assert job.decision.reason == "No capacity appeared for run 2; waiting before the next attempt."
    assert _failed(_trying(), PAUSE + BOUND).decision.failed_resumes == 1


def test_tries_become_rarer() -> None:
    """Each waits since the beginning for twice as long as the one before, and in the end a fixed time after it."""
    job = suspended_job()
    for pauses in (1, 2, 4, 8, 16, 32, 48, 64):
        early, planned = decide(job, TRY, PAUSE * pauses - 1)
        assert (early.decision.phase, planned.wake_at) == (Phase.SUSPENDED, T0 + PAUSE * pauses)
        job = _failed(_trying(early, PAUSE * pauses), PAUSE * pauses + BOUND)


def test_real_capacity_does_not_wait_for_the_next_try() -> None:
    job = suspended_job()
    for pauses in (1, 2, 4, 8):
        job = _failed(_trying(job, PAUSE * pauses), PAUSE * pauses + BOUND)
    after = PAUSE * 8 + BOUND + POLICY.resume_backoff_seconds
    assert decide(job, seeing({}, first(6)), after - 1).job.decision.phase is Phase.SUSPENDED
    job = decide(job, seeing({}, first(6)), after).job
    assert (job.decision.phase, job.decision.probing) == (Phase.RESUMING, False)


def test_a_try_does_not_count_as_capacity() -> None:
    """Capacity that comes between minimum and requested size has its moment for more, from when it came."""
    job = decide(suspended_job(), TRY, 10).job
    assert job.decision.capacity_since is None
    assert decide(job, seeing({}, first(3)), 20).plan.wake_at == T0 + 20 + POLICY.resume_delay_seconds


def test_trying_does_not_prolong_the_maximum_waiting_time() -> None:
    job = _failed(_trying(suspended_job(spec(max_wait=PAUSE + 60))), PAUSE + BOUND)
    assert job.decision.phase is Phase.SUSPENDED
    assert decide(job, TRY, PAUSE + BOUND).job.decision.phase is Phase.TIMED_OUT


def test_a_try_that_must_stop_waits_anew() -> None:
    """A notice on one of its hosts ends it as it ends any run."""
    job = decide(obeyed(_trying(suspended_job(spec(6, 6)))), seeing(noticed(notice(1))), PAUSE + 1).job
    assert (job.decision.phase, job.decision.waiting_since) == (Phase.STOPPING, None)


@pytest.mark.parametrize("at", [1, PAUSE, PAUSE * 100])
def test_a_job_that_is_held_up_says_so_and_waits(at: float) -> None:
    """In words without names: it is decided once, however many nodes go one after the other."""
    job, planned = decide(suspended_job(), HELD_UP, at)
    assert (job.decision.phase, job.decision.hosts, planned.wake_at) == (Phase.SUSPENDED, hosts(), None)
    assert job.decision.reason == "Waiting: the job's pods could be scheduled on a node that will be reclaimed."
    assert decide(job, HELD_UP, at + 1).job == job


def test_what_held_a_job_up_is_not_said_any_longer_than_it_is_so() -> None:
    job = decide(suspended_job(), HELD_UP, 1).job
    assert decide(job, seeing(), 2).job.decision.reason == "Waiting for nodes with room for the job's pods."
    assert decide(suspended_job(), seeing(), 2).job.decision.reason == suspended_job().decision.reason


def test_a_job_that_is_held_up_may_time_out() -> None:
    job = replace(suspended_job(spec(max_wait=60)))
    assert decide(job, HELD_UP, 60).job.decision.phase is Phase.TIMED_OUT


_EVENTS = st.tuples(
    st.sampled_from(["nothing", "room for all", "room for some", "try", "held up", "obeys", "runs", "ends"]),
    st.sampled_from([0.0, 0.5, 5.0, POLICY.resume_timeout_seconds, POLICY.probe_seconds]),
)
_VIEWS = {
    "room for all": JobFacts(granted=first(6)),
    "room for some": JobFacts(granted=first(3)),
    "try": TRY,
    "held up": HELD_UP,
}


@examples(100)
@given(st.lists(_EVENTS, max_size=25))
def test_whatever_comes_tries_are_bounded_and_keep_the_jobs_place(events: list[tuple[str, float]]) -> None:
    """Decided once and for all at every instant, and never begun by a job that is held up."""
    job, at, since = suspended_job(), 0.0, T0
    for event, seconds in events:
        at += seconds
        before, facts = _after(job, event), _VIEWS.get(event, JobFacts())
        job, planned = decide(before, facts, at)
        assert decide(job, facts, at).job == job
        assert planned.wake_at is None or planned.wake_at > T0 + at
        if job.decision.probing:
            assert job.decision.waiting_since == since
            assert job.decision.resume_until is not None
            assert T0 + at < job.decision.resume_until <= T0 + at + POLICY.resume_timeout_seconds
            assert before.decision.probing or (event == "try" and T0 + at >= since + POLICY.probe_seconds)
        if event == "held up" and job.decision.phase is Phase.RESUMING:
            assert before.decision.phase is Phase.RESUMING
        since = since if job.decision.probing else job.decision.waiting_since or T0 + at


def _after(job: SupervisedJob, event: str) -> SupervisedJob:
    match event:
        case "obeys":
            return observing(job, applied=job.decision.generation)
        case "runs" if job.decision.phase is Phase.RESUMING:
            return obeyed(job)
        case "ends":
            return observing(job, running=False, exit_code=1, applied=job.decision.generation)
    return job
