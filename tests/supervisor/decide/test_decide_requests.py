"""A person suspends, resumes and stops a job: saved first, kept as long as asked, and taken back at any moment."""

from dataclasses import replace

import pytest

from supervisor.decide.directives import order_for
from supervisor.decide.explanation import NOTHING, NodesAtPresent, missing, prospects
from supervisor.decide.grant import grants
from supervisor.decide.ranks import Ranks
from supervisor.decide.registration import (
    ClusterJobError,
    JobEndsError,
    JobIsOverError,
    LauncherFacts,
    Registration,
    UnknownJobError,
    register,
    with_request,
)
from supervisor.domain.agreement import AnswerKind
from supervisor.domain.ids import JobName
from supervisor.domain.job import ELASTIC, Phase, RequestKind, Result, SupervisedJob, UserRequest
from supervisor.domain.order import EndJob, OrderKind, SetHostList, SuspendRun
from tests.supervisor.decide.agreement_builders import SIZE, answering, present, rank_states, stopping_for
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    first,
    hosts,
    notice,
    noticed,
    obeyed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
    waiting_job,
)

SUSPEND = UserRequest(kind=RequestKind.SUSPEND, by="ann", reason="power cut", at=T0)
STOP = UserRequest(kind=RequestKind.STOP, by="bob", at=T0)


def _asked(job: SupervisedJob, request: UserRequest | None = SUSPEND) -> SupervisedJob:
    return with_request(job, request)


def _held(request: UserRequest = SUSPEND) -> SupervisedJob:
    """A job that ran, has saved and whose launcher waits, at the request of a person."""
    stopping = decide(_asked(running_job(), request), seeing()).job
    return decide(obeyed(decide(answered(stopping), seeing(), 1).job), seeing(), 2).job


def test_a_running_job_is_saved_before_it_is_suspended() -> None:
    """Rank 0 is told first, in a time that ends; the reason says who asked, why, and what was saved."""
    job, planned = decide(_asked(running_job()), seeing())
    assert job.decision.phase is Phase.STOPPING
    assert job.decision.reason == "ann has suspended the job: power cut."
    assert job.decision.stop is not None
    assert not job.decision.stop.everyone
    assert planned.wake_at is not None
    silent = decide(job, seeing(), POLICY.stop_timeout_seconds).job
    assert (
        silent.decision.reason == "ann has suspended the job: power cut. Rank 0 did not answer in time; "
        "it is not known from which checkpoint the job will resume."
    )
    saved = decide(answered(job), seeing(), 1).job
    assert (saved.decision.phase, order_for(saved).kind) == (Phase.SUSPENDED, OrderKind.WAIT)
    assert saved.decision.reason == "ann has suspended the job: power cut. Rank 0 has saved a checkpoint of step 7."


def test_a_suspended_job_takes_no_hosts_and_never_times_out() -> None:
    """However many are free, and however long it may wait: it waits for a person, and no other job for it."""
    job = replace(_held(), spec=spec(max_wait=60))
    assert (job.decision.hosts, job.decision.waiting_since) == (frozenset(), None)
    assert job.decision.reason.endswith("Rank 0 has saved a checkpoint of step 7.")
    later, planned = decide(job, seeing(granted=first(6)), 1e6)
    assert (later.decision, planned.actions, planned.wake_at) == (job.decision, (), None)
    other = waiting_job(name="other", since=T0 + 5)
    assert grants([job, other], first(6)) == {other.name: first(6)}
    assert missing(job, NodesAtPresent(clear=first(6), noticed={}, unknown=lambda _host: None, holders={})) == NOTHING
    assert [each.what for each in prospects(job)] == ["it stays suspended until somebody resumes it"]


def test_a_resumed_job_goes_on_as_after_a_reclaim() -> None:
    """It waits from then on, says so, and starts its next run as soon as it has its hosts."""
    job = decide(_asked(replace(_held(), spec=spec(max_wait=60)), None), seeing(), 100).job
    assert job.decision.reason == "The suspension was lifted; waiting for capacity."
    assert job.decision.waiting_since == T0 + 100
    assert grants([job], first(6)) == {job.name: first(6)}
    started = decide(job, seeing(granted=first(6)), 101).job
    assert (started.decision.phase, started.decision.run) == (Phase.RESUMING, 2)


def test_a_stopped_job_saves_and_ends_for_good() -> None:
    """Its launcher is told to end once nothing of the run is left, and resuming comes too late then."""
    job = _held(STOP)
    assert (job.decision.phase, order_for(job).kind) == (Phase.FINISHED, OrderKind.END)
    assert job.decision.reason == "bob has stopped the job. Rank 0 has saved a checkpoint of step 7."
    assert decide(job, seeing(granted=first(6)), 3).plan.actions == (EndJob(Result.TERMINATED),)
    with pytest.raises(JobIsOverError):
        _asked(job, None)
    over = decide(observing(job, result=Result.TERMINATED), seeing(), 4)
    assert (over.job.decision.reason, over.plan.actions) == (job.decision.reason, ())
    succeeded = decide(observing(job, result=Result.SUCCEEDED), seeing(), 4).job
    assert succeeded.decision.reason == "The job has ended: succeeded."


@pytest.mark.parametrize(
    "job",
    [waiting_job(), suspended_job(), replace(suspended_job(), spec=spec(max_wait=60))],
    ids=["waiting", "suspended", "impatient"],
)
def test_a_job_that_has_no_run_is_held_or_ended_at_once(job: SupervisedJob) -> None:
    """Also if the supervisor had suspended it: then capacity does not resume it any more."""
    held = decide(_asked(job), seeing(granted=first(6)), 10).job
    assert (held.decision.phase, held.decision.waiting_since) == (Phase.SUSPENDED, None)
    assert held.decision.reason == "ann has suspended the job: power cut."
    assert decide(_asked(job, STOP), seeing(granted=first(6)), 10).job.decision.phase is Phase.FINISHED


def test_a_job_that_is_being_stopped_for_a_reclaim_is_held_afterwards() -> None:
    job = decide(running_job(spec(6, 6)), seeing(noticed(notice(1)))).job
    assert job.decision.phase is Phase.STOPPING
    job = decide(_asked(job), seeing(noticed(notice(1))), 1).job
    assert job.decision.reason.startswith("n1 will be reclaimed")
    job = decide(obeyed(decide(answered(job), seeing(), 2).job), seeing(granted=first(6)), 3).job
    assert (job.decision.phase, job.decision.reason) == (Phase.SUSPENDED, "ann has suspended the job: power cut.")


def test_a_shrinking_or_resuming_job_is_stopped_too() -> None:
    shrinking = decide(running_job(), seeing(noticed(notice(6))), POLICY.window_seconds).job
    assert shrinking.decision.phase is Phase.SHRINKING
    assert decide(_asked(shrinking), seeing(noticed(notice(6))), 3).job.decision.phase is Phase.STOPPING
    resuming = decide(suspended_job(), seeing(granted=first(6))).job
    assert resuming.decision.phase is Phase.RESUMING
    held = decide(_asked(resuming), seeing(), 1).job
    assert (held.decision.phase, order_for(held).kind) == (Phase.SUSPENDED, OrderKind.WAIT)


def test_a_request_that_is_taken_back_meanwhile_costs_one_stop() -> None:
    """A STOP that was told is not taken back: the job is suspended and resumes."""
    job = decide(_asked(running_job()), seeing()).job
    job = decide(_asked(job, None), seeing(), 1).job
    assert job.decision.phase is Phase.STOPPING
    job = decide(obeyed(decide(answered(job), seeing(), 2).job), seeing(granted=first(6)), 3).job
    assert job.decision.phase is Phase.RESUMING


def test_a_first_run_that_a_controller_is_starting_is_suspended_first() -> None:
    """Only a suspension of its object keeps the controller from starting the job."""
    asked = replace(spec(), capabilities=ELASTIC)
    job, planned = decide(_asked(waiting_job(asked)), seeing())
    assert (job.decision.phase, planned.actions) == (Phase.SUSPENDED, (SuspendRun(0),))
    held, planned = decide(observing(job, applied=job.decision.generation), seeing(granted=first(6)), 1)
    assert (held.decision.phase, held.decision.hosts, planned.actions) == (Phase.SUSPENDED, frozenset(), ())
    ended = decide(_asked(held, STOP), seeing(), 2)
    assert ended.plan.actions == (EndJob(Result.TERMINATED),)


def test_a_repeated_request_changes_nothing_and_a_stop_counts_more() -> None:
    job = _held()
    assert _asked(job, replace(SUSPEND, at=T0 + 50)) == job
    other = _asked(job, replace(SUSPEND, by="eve", reason="", at=T0 + 50))
    assert decide(other, seeing(), 50).job.decision.reason == "eve has suspended the job."
    assert other.observed.request == replace(SUSPEND, by="eve", reason="")
    with pytest.raises(JobEndsError, match="at the request of bob"):
        _asked(_asked(running_job(), STOP))
    assert _asked(_asked(running_job(), STOP), None).observed.request is None


def test_nothing_can_be_asked_of_a_job_that_is_unknown_over_or_a_clusters() -> None:
    with pytest.raises(UnknownJobError):
        with_request(None, SUSPEND)
    for ended in (
        observing(running_job(), result=Result.SUCCEEDED),
        decide(suspended_job(spec(max_wait=1)), seeing(), 2).job,
    ):
        with pytest.raises(JobIsOverError):
            _asked(ended)
    with pytest.raises(ClusterJobError, match="annotations"):
        _asked(running_job(name=JobName("training/mpijob.resnet")))


@pytest.mark.parametrize(("request_", "kept"), [(SUSPEND, SUSPEND), (STOP, None), (None, None)])
def test_a_suspension_outlives_its_launcher(request_: UserRequest | None, kept: UserRequest | None) -> None:
    """A service manager starts a launcher again; a job that was to end is another one when somebody starts it anew."""
    known = _asked(running_job(), request_)
    fresh = LauncherFacts(revision=1, hosts=hosts(1, 2, 3), run=0, running=False)
    hello = Registration(
        name=known.name, uid="new", launcher="launcher", instance="other", spec=known.spec, report=fresh
    )
    again = register(known, hello, live=False, now=T0 + 60)
    assert (again.uid, again.observed.request) == ("new", kept)
    if kept is not None:
        assert SetHostList not in map(type, decide(again, seeing(granted=first(6)), 60).plan.actions)
    over = register(observing(known, result=Result.FAILED), hello, live=False, now=T0 + 60)
    assert over.observed.request is None


_TRAINING = tuple(replace(state, checkpoint_seconds=20.0) for state in rank_states())
"""Ranks that agree, and of which it is known how long a checkpoint takes."""


def test_ranks_that_agree_stop_at_one_step_at_once() -> None:
    """A reclaim that leaves time for training would wait; a person does not. The reason keeps who asked and why."""
    job = _asked(running_job(spec(SIZE, SIZE), SIZE))
    job = decide(job, stopping_for(_TRAINING)).job
    assert job.decision.reason == "ann has suspended the job: power cut. All ranks are to stop at one step."
    job = decide(job, stopping_for(answering(_TRAINING, present(job), AnswerKind.DECLINED, at=0.1)), 0.1).job
    assert present(job).step is not None
    job = decide(job, stopping_for(answering(_TRAINING, present(job), AnswerKind.ACCEPTED, at=0.2)), 0.2).job
    assert job.decision.phase is Phase.STOPPING
    assert job.decision.stop is not None
    saved = tuple(replace(state, acknowledged=job.decision.stop.generation) for state in _TRAINING)
    job = decide(answered(job, step=103), stopping_for(saved, acknowledged=range(SIZE)), 1).job
    job = decide(obeyed(job), seeing(), 2).job
    assert (job.decision.phase, job.decision.agreement) == (Phase.SUSPENDED, None)
    assert job.decision.reason.startswith("ann has suspended the job: power cut. All ranks save")
    assert job.decision.reason.endswith("All ranks have saved a checkpoint of step 103.")


def test_a_request_that_is_taken_back_before_the_commit_costs_nothing() -> None:
    """The ranks were only asked for a step, and train on."""
    quiet = replace(seeing(), ranks=Ranks(_TRAINING))
    job = decide(_asked(running_job(spec(SIZE, SIZE), SIZE)), quiet).job
    assert job.decision.agreement is not None
    job = decide(_asked(job, None), quiet, 0.1).job
    assert (job.decision.phase, job.decision.agreement) == (Phase.RUNNING, None)
    assert job.decision.reason == "Run 1 is running on 4 hosts."
