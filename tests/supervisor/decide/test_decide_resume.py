"""Jobs wait, start, suspend, resume and time out."""

from dataclasses import replace

import pytest

from supervisor.decide.directives import order_for
from supervisor.decide.plan import first_decision
from supervisor.decide.reasons import at_present
from supervisor.domain.ids import Host
from supervisor.domain.job import Observed, Phase, Result, SupervisedJob
from supervisor.domain.order import EndJob, OrderKind, SetHostList, StartRun, SuspendRun
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


def test_a_job_starts_at_once_at_full_size() -> None:
    job, planned = decide(waiting_job(), seeing({}, first(6)))
    assert (job.decision.phase, job.decision.run, job.decision.hosts) == (Phase.RUNNING, 1, first(6))
    assert planned.actions == (SetHostList(first(6), hosts()), StartRun(1))
    assert job.decision.reason == "Starting run 1 on 6 of 6 requested hosts."


def test_the_reason_of_a_run_that_has_started_is_about_the_present() -> None:
    """Without another decision, which would be sent to the launcher and to each process."""
    job = decide(waiting_job(), seeing({}, first(6))).job
    assert at_present(job) == job.decision.reason
    started = observing(obeyed(job), run=1, running=True)
    assert decide(started, seeing(), 5).job.decision == started.decision
    assert at_present(started) == "Run 1 is running on 6 hosts."


def test_a_resume_at_full_size_is_a_new_run() -> None:
    """A suspended job resumes from its checkpoint under the next number, and runs when its launcher says so."""
    job, planned = decide(suspended_job(), seeing({}, first(6)))
    assert (job.decision.phase, job.decision.run) == (Phase.RESUMING, 2)
    assert planned.wake_at == T0 + POLICY.resume_timeout_seconds
    job = decide(obeyed(job), seeing(), 1).job
    assert (job.decision.phase, job.decision.resume_until) == (Phase.RUNNING, None)


@pytest.mark.parametrize("count", [3, 5])
def test_a_smaller_start_lets_more_arrive_first(count: int) -> None:
    """Between minimum and requested size a resume waits a moment, and then takes what is there."""
    job, planned = decide(suspended_job(), seeing({}, first(count)))
    assert (job.decision.phase, planned.wake_at) == (Phase.SUSPENDED, T0 + 2)
    assert decide(job, seeing({}, first(count)), 1.9).job.decision.phase is Phase.SUSPENDED
    assert decide(job, seeing({}, first(6)), 1).job.decision.hosts == first(6)
    assert decide(job, seeing({}, first(count)), 2).job.decision.hosts == first(count)


def test_capacity_that_comes_and_goes_starts_the_moment_anew() -> None:
    job = decide(suspended_job(), seeing({}, first(3))).job
    job = decide(job, seeing(), 1).job
    job = decide(job, seeing({}, first(3)), 1.5).job
    assert decide(job, seeing({}, first(3)), 3.4).job.decision.phase is Phase.SUSPENDED
    assert decide(job, seeing({}, first(3)), 3.5).job.decision.phase is Phase.RESUMING


def test_hosts_are_kept_until_the_command_has_ended() -> None:
    """A suspended job lets go of its hosts when nothing runs on them any more."""
    job = answered(decide(running_job(spec(6, 6)), seeing(noticed(notice(6)))).job)
    job = decide(job, seeing(noticed(notice(6))), 1).job
    assert (job.decision.phase, job.decision.hosts) == (Phase.SUSPENDED, first(6))
    job = decide(obeyed(job), seeing(noticed(notice(6))), 2).job
    assert (job.decision.hosts, job.decision.exclusions) == (hosts(), hosts())
    assert job.decision.waiting_since == T0 + 1


def test_hosts_are_kept_until_no_start_can_be_under_way() -> None:
    """A run that was ordered just before a STOP may start unseen: the launcher has to confirm that it waits."""
    job = decide(waiting_job(spec(6, 6)), seeing({}, first(6))).job
    job, planned = decide(job, seeing(noticed(notice(6))), 0.1)
    assert (job.decision.phase, job.decision.hosts) == (Phase.SUSPENDED, first(6))
    assert planned.actions == (SuspendRun(1),)
    started = decide(observing(job, applied=2, run=1, running=True), seeing(), 0.2).job
    assert (started.decision.phase, started.decision.hosts) == (Phase.SUSPENDED, first(6))
    confirmed, planned = decide(obeyed(job), seeing(), 0.3)
    assert (confirmed.decision.hosts, planned.actions) == (hosts(), ())


def test_a_job_with_something_running_does_not_resume() -> None:
    job = observing(suspended_job(), running=True, exit_code=None)
    job, planned = decide(job, seeing({}, first(6)), 100)
    assert (job.decision.phase, planned.actions) == (Phase.SUSPENDED, (SuspendRun(1),))


def test_a_launcher_whose_host_is_noticed_starts_nothing() -> None:
    """A run would be stopped as soon as it had begun."""
    job = suspended_job(replace(spec(), launcher_host=Host("n9")))
    assert decide(job, seeing(noticed(notice(9)), first(6)), 10).job.decision.phase is Phase.SUSPENDED
    assert decide(job, seeing({}, first(6)), 10).job.decision.phase is Phase.RESUMING


def _failed_resume(job: SupervisedJob, at: float) -> SupervisedJob:
    job = decide(job, seeing({}, first(6)), at).job
    assert job.decision.phase is Phase.RESUMING
    job = observing(job, applied=job.decision.generation)
    at += POLICY.resume_timeout_seconds
    assert decide(job, seeing(), at - 0.1).job.decision.phase is Phase.RESUMING
    return decide(job, seeing(), at).job


def test_a_resume_is_bounded() -> None:
    """A run that does not start is given up, its launcher told so, and its hosts let go once that is confirmed."""
    job = _failed_resume(suspended_job(), 0)
    assert (job.decision.phase, job.decision.hosts) == (Phase.SUSPENDED, first(6))
    assert order_for(job).kind is OrderKind.WAIT
    assert decide(obeyed(job), seeing(), 121).job.decision.hosts == hosts()


def test_failing_resumes_back_off() -> None:
    """Each try waits twice as long as the one before, up to 32 times as long; a run that starts ends that."""
    job, at = suspended_job(), 0.0
    for pause in (5, 10, 20, 40, 80, 160, 160):
        job = obeyed(_failed_resume(job, at))
        at += POLICY.resume_timeout_seconds + pause
        early, planned = decide(job, seeing({}, first(6)), at - 1)
        assert early.decision.phase is Phase.SUSPENDED
        assert planned.wake_at == T0 + at
    job = obeyed(decide(job, seeing({}, first(6)), at).job)
    assert decide(job, seeing(), at).job.decision.failed_resumes == 0


def test_a_late_start_is_ended() -> None:
    """A launcher that starts a run that was given up meanwhile is told to end it."""
    job = observing(_failed_resume(suspended_job(), 0), run=2, running=True, exit_code=None)
    job, planned = decide(job, seeing(), 121)
    assert (job.decision.phase, planned.actions) == (Phase.SUSPENDED, (SuspendRun(2),))
    assert decide(obeyed(job), seeing({}, first(6)), 300).job.decision.run == 3


def test_a_notice_during_a_resume_stops_it() -> None:
    job = obeyed(decide(suspended_job(spec(6, 6)), seeing({}, first(6))).job)
    assert decide(job, seeing(noticed(notice(1))), 1).job.decision.phase is Phase.STOPPING


@pytest.mark.parametrize(
    "job", [waiting_job(spec(max_wait=600)), suspended_job(spec(max_wait=600))], ids=["waiting", "suspended"]
)
def test_waiting_too_long_times_out(job: SupervisedJob) -> None:
    """At the start as well as after a suspension; the launcher ends the job."""
    waiting, planned = decide(job, seeing(), 599.9)
    assert (waiting.decision.phase, planned.wake_at) == (job.decision.phase, T0 + 600)
    ended, planned = decide(waiting, seeing(), 600)
    assert (ended.decision.phase, planned.actions) == (Phase.TIMED_OUT, (EndJob(Result.TIMED_OUT),))
    assert ended.decision.reason == "No capacity for 3 hosts within the maximum waiting time of 600 s."
    assert order_for(ended).kind is OrderKind.END
    late = decide(ended, seeing({}, first(6)), 700).job
    assert late.decision == ended.decision


def test_a_job_may_wait_for_ever() -> None:
    """Without a maximum waiting time nothing is to be done until capacity comes."""
    job, planned = decide(waiting_job(), seeing(), 1e6)
    assert (job.decision.phase, planned.wake_at) == (Phase.WAITING, None)


def test_a_timed_out_job_stays_timed_out() -> None:
    job = decide(waiting_job(spec(max_wait=600)), seeing(), 600).job
    over, planned = decide(observing(job, result=Result.TIMED_OUT), seeing(), 601)
    assert (over.decision.phase, over.decision.reason) == (Phase.TIMED_OUT, job.decision.reason)
    assert planned.actions == ()


@pytest.mark.parametrize("result", [Result.SUCCEEDED, Result.FAILED, Result.TERMINATED])
def test_a_finished_job_is_never_touched(result: Result) -> None:
    job = observing(running_job(), running=False, exit_code=0, result=result)
    finished, planned = decide(job, seeing())
    assert (finished.decision.phase, finished.decision.hosts, planned.actions) == (Phase.FINISHED, hosts(), ())
    for facts in (seeing(noticed(notice(1), notice(2), notice(3), notice(4))), seeing({}, first(6))):
        again, planned = decide(finished, facts, 1000)
        assert (again.decision, planned.actions, planned.wake_at) == (finished.decision, (), None)


def test_a_job_that_is_over_keeps_its_hosts_until_its_command_has_ended() -> None:
    """A launcher that was terminated says so before the last process is gone."""
    job = decide(observing(running_job(), result=Result.TERMINATED), seeing()).job
    assert (job.decision.phase, job.decision.hosts) == (Phase.FINISHED, first(6))
    job = decide(observing(job, running=False), seeing(), 1).job
    assert (job.decision.phase, job.decision.hosts) == (Phase.FINISHED, hosts())


def test_a_running_job_is_taken_over() -> None:
    """A run that goes on when the store was lost is not stopped, and later orders are newer than earlier ones."""
    observed = Observed(
        launcher="launcher", instance="instance", registered_at=T0, hosts=first(6), run=4, running=True, applied=57
    )
    decision = first_decision(spec(), observed, T0)
    assert (decision.phase, decision.run, decision.hosts) == (Phase.RUNNING, 4, first(6))
    assert decision.generation > observed.applied
    job = replace(running_job(), observed=observed, decision=decision)
    job, planned = decide(job, seeing(missing_since=T0), 100)
    assert (job.decision.phase, planned.actions) == (Phase.RUNNING, (SetHostList(first(6), hosts()),))


def test_a_new_launcher_waits() -> None:
    """A job that has just been registered has nothing yet, and waits from then on."""
    observed = Observed(launcher="launcher", instance="instance", registered_at=T0, hosts=first(6))
    decision = first_decision(spec(), observed, T0)
    assert (decision.phase, decision.hosts, decision.waiting_since) == (Phase.WAITING, hosts(), T0)


def test_a_failed_run_stays_ordered() -> None:
    """A run that failed by itself is the launcher's to restart, after its back-off; no new number hurries it."""
    job = observing(running_job(), running=False, exit_code=1)
    job, planned = decide(job, seeing())
    order = order_for(job)
    assert (order.kind, order.run, order.stopping) == (OrderKind.RUN, 1, False)
    assert job.decision.reason == "Run 1 failed with code 1; its launcher starts it again or gives up."
    assert StartRun(2) not in planned.actions


def test_a_restarted_run_is_taken_over() -> None:
    """The number under which the launcher has started it again is the job's run from then on."""
    job = decide(observing(running_job(), running=False, exit_code=1), seeing()).job
    job = decide(observing(job, run=2, running=True, exit_code=None, restarts=1), seeing(), 5).job
    assert (job.decision.phase, job.decision.run) == (Phase.RUNNING, 2)
    assert job.decision.reason == "Run 2 is running on 6 hosts."


def test_a_launcher_that_began_anew_is_given_the_run() -> None:
    """A launcher that has started nothing is told to start the job's run."""
    job = observing(running_job(), run=0, running=False)
    assert decide(job, seeing()).plan.actions == (StartRun(1),)


def test_orders_name_the_run_that_stops() -> None:
    job = decide(running_job(spec(6, 6)), seeing(noticed(notice(6)))).job
    order = order_for(job)
    assert (order.kind, order.run, order.stopping, order.generation) == (
        OrderKind.RUN,
        1,
        True,
        job.decision.generation,
    )
    assert order.hosts == tuple(sorted(first(6)))


def _resumed(job: SupervisedJob, at: float) -> SupervisedJob:
    """A suspended job that is resumed and runs at that instant."""
    ready = decide(job, seeing({}, first(6)), at).job
    assert ready.decision.phase is Phase.RESUMING
    return decide(obeyed(ready), seeing(), at).job


def _lost(job: SupervisedJob, at: float) -> tuple[SupervisedJob, float]:
    """The job after all of its hosts were lost without a notice, and when it was suspended because of that."""
    job = decide(observing(job, hosts=frozenset()), seeing(), at).job
    end = at + POLICY.lost_grace_seconds
    job = decide(job, seeing(), end).job
    assert job.decision.phase is Phase.STOPPING
    job = decide(observing(job, running=False, exit_code=1), seeing(), end).job
    return observing(job, hosts=first(6), applied=job.decision.generation), end


def test_a_run_that_is_lost_right_after_its_resume_is_followed_by_a_pause() -> None:
    """It grows each time, and the job wakes when it is over."""
    job, at = suspended_job(), 0.0
    for pause in (5, 10, 20, 40, 80, 160, 160):
        job, at = _lost(_resumed(job, at), at + 1)
        assert job.decision.reason.startswith("Hosts were lost without a notice; 0 hosts remain (minimum 3). Run ")
        assert f"was lost soon after it began: pausing {pause} s before the next one." in job.decision.reason
        waiting, planned = decide(job, seeing({}, first(6)), at)
        assert (waiting.decision.phase, planned.wake_at) == (Phase.SUSPENDED, T0 + at + pause)
        assert decide(waiting, seeing({}, first(6)), at + pause - 0.1).job.decision.phase is Phase.SUSPENDED
        at += pause


def test_a_run_that_lasted_is_resumed_at_once() -> None:
    """And the next short one is the first again."""
    short, at = _lost(_resumed(suspended_job(), 0), 1)
    job = _resumed(short, at + 5)
    job, at = _lost(job, at + 5 + POLICY.resume_timeout_seconds)
    assert "soon after it began" not in job.decision.reason
    assert (job.decision.short_runs, job.decision.not_before) == (0, None)
    job, at = _lost(_resumed(job, at), at + 1)
    assert "pausing 5 s" in job.decision.reason


def test_a_run_that_a_notice_ends_soon_is_followed_by_no_pause() -> None:
    """The next run has other hosts."""
    job = _resumed(suspended_job(), 0)
    job = decide(job, seeing(noticed(*(notice(number) for number in (1, 2, 3, 4)))), 1.5).job
    assert job.decision.phase is Phase.STOPPING
    job = decide(observing(job, running=False, exit_code=0), seeing(), 2).job
    job = observing(job, applied=job.decision.generation)
    assert decide(job, seeing({}, first(6)), 2).job.decision.phase is Phase.RESUMING


def test_hosts_that_are_lost_while_a_run_is_being_started_are_a_short_run() -> None:
    job = decide(suspended_job(), seeing({}, first(6))).job
    job = decide(observing(job, hosts=frozenset()), seeing(), 1).job
    job = decide(job, seeing(), 1 + POLICY.lost_grace_seconds).job
    assert (job.decision.phase, job.decision.short_runs) == (Phase.SUSPENDED, 1)
