"""Each worker of a job belongs to one account, whatever the job does."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.job import Capability, Phase, RequestKind, Result, SupervisedJob, UserRequest
from supervisor.domain.ledger import HELD, Account
from supervisor.observability.ledger.accounts import workers_by_account
from tests.supervisor.decide.decide_builders import (
    T0,
    first,
    hosts,
    observing,
    running_job,
    spec,
    suspended_job,
    waiting_job,
)

_PERSON = UserRequest(kind=RequestKind.SUSPEND, by="alice", at=T0)


def _decided(job: SupervisedJob, **changes: object) -> SupervisedJob:
    return replace(job, decision=replace(job.decision, **changes))  # type: ignore[arg-type]


def _of_a_controller(job: SupervisedJob) -> SupervisedJob:
    return replace(job, spec=replace(job.spec, capabilities=frozenset({Capability.MAKES_HOSTS})))


@pytest.mark.parametrize(
    ("job", "counted"),
    [
        (running_job(), {Account.UNMEASURED: 6}),
        (running_job(workers=4), {Account.UNMEASURED: 4, Account.MISSING: 2}),
        (
            _decided(running_job(), phase=Phase.SHRINKING, exclusions=hosts(2, 3)),
            {Account.UNMEASURED: 4, Account.LEAVING: 2},
        ),
        (
            _decided(observing(running_job(), hosts=hosts(1, 2, 4, 5, 6)), exclusions=hosts(2, 3)),
            {Account.UNMEASURED: 4, Account.LEAVING: 1, Account.MISSING: 1},
        ),
        (
            _of_a_controller(_decided(running_job(), hosts=first(5))),
            {Account.UNMEASURED: 5, Account.JOINING: 1},
        ),
        (_decided(running_job(), phase=Phase.STOPPING), {Account.STOPPING: 6}),
        (observing(running_job(), running=False), {Account.WAITING: 6}),
        (_of_a_controller(observing(running_job(), running=False)), {Account.STARTING: 6}),
        (suspended_job(), {Account.WAITING: 6}),
        (_of_a_controller(suspended_job(listed=first(2))), {Account.STOPPING: 2, Account.MISSING: 4}),
        (_decided(suspended_job(), phase=Phase.RESUMING, hosts=first(5)), {Account.STARTING: 5, Account.MISSING: 1}),
        (waiting_job(), {Account.WAITING: 6}),
        (observing(suspended_job(), request=_PERSON), {Account.PAUSED: 6}),
        (_decided(observing(waiting_job(), queue="It is held back."), phase=Phase.QUEUED), {Account.QUEUED: 6}),
        (observing(running_job(), running=False, result=Result.SUCCEEDED), {}),
        (replace(running_job(), spec=replace(spec(), refused=True)), {}),
    ],
)
def test_the_workers_of_a_job_by_account(job: SupervisedJob, counted: dict[Account, int]) -> None:
    assert workers_by_account(job) == counted


@st.composite
def jobs(draw: st.DrawFn) -> SupervisedJob:
    """A job in a state that need not be possible."""
    granted, listed = (draw(st.integers(0, 8).map(first)), draw(st.frozensets(st.sampled_from(sorted(first(8))))))
    job = observing(
        running_job(),
        running=draw(st.booleans()),
        hosts=listed,
        queue=draw(st.sampled_from(["", "It is held back."])),
        request=draw(st.sampled_from([None, _PERSON])),
    )
    job = _decided(
        job, phase=draw(st.sampled_from(Phase)), hosts=granted, exclusions=granted & draw(st.integers(0, 4).map(first))
    )
    return _of_a_controller(job) if draw(st.booleans()) else job


@given(job=jobs())
def test_the_accounts_add_up_to_what_the_job_asks_for_or_holds(job: SupervisedJob) -> None:
    """None is lost and none is counted twice; what is held never exceeds the hosts that there are."""
    counted = workers_by_account(job)
    held = sum(counted.get(account, 0) for account in HELD)
    assert held <= len(job.observed.hosts)
    assert sum(counted.values()) == max(held, job.spec.requested_workers)
    assert all(workers > 0 for workers in counted.values())
