"""STOP: when, to whom, and what ends it."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor.decide.directives import order_for
from supervisor.decide.policy import Policy
from supervisor.decide.ranks import Ranks, RankState
from supervisor.decide.situation import RETURN_SECONDS, JobFacts, Member, Members, RankZero
from supervisor.domain.ids import Host
from supervisor.domain.job import AcknowledgementKind, Phase, Result, Stop, SupervisedJob
from supervisor.domain.order import OrderKind, SuspendRun
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
)


def _stop(job: SupervisedJob) -> Stop:
    assert job.decision.stop is not None
    return job.decision.stop


def _stopping(workers: int = 4, *, left: float = 300.0) -> SupervisedJob:
    """A job of at least 3 of 4 hosts, of which n3 and n4 go."""
    job = running_job(spec(3, 4), workers)
    return decide(job, seeing(noticed(notice(3, left=left), notice(4, left=left)))).job


def test_stop_on_the_notice_that_makes_it_certain() -> None:
    """The second notice leaves too few: STOP at once, although the group's window is open."""
    job = decide(running_job(spec(3, 4), 4), seeing(noticed(notice(4)))).job
    assert job.decision.phase is Phase.RUNNING
    job = decide(job, seeing(noticed(notice(4), notice(3, seen=T0 + 0.1))), 0.1).job
    assert job.decision.phase is Phase.STOPPING
    assert job.decision.stop == Stop(run=1, generation=job.decision.generation, since=T0 + 0.1)
    assert job.decision.reason == "n3, n4 will be reclaimed, says metadata; 2 hosts would remain (minimum 3): stopping."


def test_exactly_the_minimum_is_enough() -> None:
    assert decide(running_job(spec(3, 4), 4), seeing(noticed(notice(4)))).job.decision.phase is Phase.RUNNING


def test_more_notices_change_nothing() -> None:
    """Once a STOP is certain, neither more notices nor fewer change the decision."""
    job = _stopping()
    for notices in (noticed(notice(1), notice(2), notice(3), notice(4)), noticed(notice(3)), {}):
        assert decide(job, seeing(notices), 1).job.decision == job.decision


def test_a_withdrawn_notice_does_not_take_a_stop_back() -> None:
    """A process that saw STOP never trains again, so the job is suspended although all is well."""
    job = answered(_stopping())
    assert decide(job, seeing(), 1).job.decision.phase is Phase.SUSPENDED


def test_a_doomed_launcher_means_stop() -> None:
    """The launcher's own host ends the run, however many workers are left; the reason says so."""
    job = running_job(replace(spec(1, 4), launcher_host=Host("n9")), 4)
    decision = decide(job, seeing(noticed(notice(9)))).job.decision
    assert decision.phase is Phase.STOPPING
    assert decision.reason == "The launcher's host n9 will be reclaimed, says metadata: stopping."


def test_a_job_whose_launcher_was_asked_to_end_it_is_stopped_first() -> None:
    """Rank 0 saves as before a reclaim; then the job waits for its launcher's word and does not start again."""
    job = decide(observing(running_job(spec(3, 4), 4), ending=True), seeing()).job
    assert job.decision.phase is Phase.STOPPING
    assert job.decision.reason == "The launcher was asked to end the job: stopping."
    assert not _stop(job).everyone
    suspended = decide(answered(job), seeing(), 1).job
    assert suspended.decision.phase is Phase.SUSPENDED
    assert order_for(suspended).kind is OrderKind.WAIT
    ended = decide(obeyed(suspended), seeing(granted=first(4)), 2).job
    assert (ended.decision.phase, ended.decision.hosts) == (Phase.SUSPENDED, frozenset())
    over = decide(observing(ended, result=Result.TERMINATED), seeing(granted=first(4)), 3).job
    assert over.decision.phase is Phase.FINISHED


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.RESUMING])
def test_a_run_that_has_not_started_when_the_job_is_ended_is_given_up(phase: Phase) -> None:
    """Its hosts are let go as soon as the launcher has confirmed that it waits."""
    job = observing(running_job(spec(3, 4), 4), run=0, running=False, applied=4, ending=True)
    job = decide(replace(job, decision=replace(job.decision, phase=phase)), seeing()).job
    assert (job.decision.phase, job.decision.hosts) == (Phase.SUSPENDED, first(4))
    assert decide(obeyed(job), seeing(granted=first(4)), 1).job.decision.hosts == frozenset()


def test_the_list_is_frozen_while_stopping() -> None:
    """Neither a withdrawal, nor the operator, nor capacity changes the host list while rank 0 saves."""
    job = running_job(spec(3, 5), 5)
    job = obeyed(decide(job, seeing(noticed(notice(5))), 2).job)
    job = decide(job, seeing(noticed(notice(5), notice(4), notice(3))), 3).job
    assert (job.decision.phase, job.decision.exclusions) == (Phase.STOPPING, hosts(5))
    changed = decide(observing(job, hosts=hosts(1, 2)), seeing({}, hosts(6)), 4).job
    assert (changed.decision.hosts, changed.decision.exclusions) == (first(5), hosts(5))


def test_the_stop_is_for_rank_zero_alone_until_the_deadline_is_near() -> None:
    """The others hear of it a margin before the first host is gone."""
    job, facts = _stopping(left=300), seeing(noticed(notice(3), notice(4)))
    assert not _stop(job).everyone
    before, planned = decide(job, facts, 294.9)
    assert not _stop(before).everyone
    assert planned.wake_at == T0 + 295
    assert _stop(decide(job, facts, 295).job).everyone


def test_everybody_is_told_when_nobody_is_rank_zero() -> None:
    """A job without a known rank 0 for the grace period cannot be stopped through it."""
    job = _stopping()
    facts = seeing(noticed(notice(3), notice(4)), missing_since=T0 - 100)
    waiting, planned = decide(job, facts, 4.9)
    assert not _stop(waiting).everyone
    assert planned.wake_at == T0 + POLICY.rank_zero_grace_seconds
    told = decide(job, facts, 5).job
    assert _stop(told).everyone
    back = decide(told, seeing(noticed(notice(3), notice(4))), 6).job
    assert _stop(back).everyone


def test_all_are_told_at_once_when_no_process_knows_its_rank() -> None:
    """Nobody will be rank 0. Processes that have only just connected may still learn their rank."""
    facts = seeing(noticed(notice(3), notice(4)), missing_since=T0 - 100)
    known = replace(facts, rank_zero=replace(facts.rank_zero, unranked_since=T0 - 60))
    told = decide(_stopping(), known, 0.1).job
    assert _stop(told).everyone
    assert told.decision.reason.endswith("No process is rank 0, as none knows its rank: all are told to save.")
    young = replace(facts, rank_zero=replace(facts.rank_zero, unranked_since=T0 - 1))
    assert not _stop(decide(_stopping(), young, 3.9).job).everyone
    assert _stop(decide(_stopping(), young, 4).job).everyone
    assert decide(answered(told), known, 1).job.decision.reason.endswith("All ranks have saved a checkpoint of step 7.")
    late = decide(told, known, 300).job.decision.reason
    assert "Not all processes have answered in time; it is not known" in late


def test_a_rank_zero_that_is_late_hears_before_the_others_do() -> None:
    """One that connects near the deadline, after a restart, has its head start: the others would leave it hanging."""
    job, facts = _stopping(left=4.0), noticed(notice(3, left=4.0), notice(4, left=4.0))
    missing = seeing(facts, missing_since=T0 - 100)
    assert not _stop(decide(job, missing, 1.9).job).everyone
    late = JobFacts(notices=facts, rank_zero=RankZero(connected=True, since=T0 + 1.5))
    assert not _stop(decide(job, late, 2.4).job).everyone
    assert _stop(decide(job, late, 2.5).job).everyone


def test_a_restarted_supervisor_gives_rank_zero_its_time() -> None:
    """Streams that are not back yet do not count as a missing rank 0 before the grace period is over."""
    job, facts = _stopping(), seeing(noticed(notice(3), notice(4)), missing_since=T0 + 50)
    assert not _stop(decide(job, facts, 54.9).job).everyone
    assert _stop(decide(job, facts, 55).job).everyone


@pytest.mark.parametrize("kind", [AcknowledgementKind.SAVED, AcknowledgementKind.KEPT, AcknowledgementKind.LEFT])
def test_the_acknowledgement_suspends_at_once(kind: AcknowledgementKind) -> None:
    """Saved, kept or left: the run is ended before a failed launcher makes anybody restart it."""
    job, planned = decide(answered(_stopping(), kind), seeing(noticed(notice(3), notice(4))), 0.5)
    assert job.decision.phase is Phase.SUSPENDED
    assert planned.actions == (SuspendRun(1),)
    assert order_for(job).kind is OrderKind.WAIT
    assert "Rank 0 has" in job.decision.reason


def test_a_state_that_is_kept_in_memory_is_not_said_to_be_saved() -> None:
    job, _ = decide(answered(_stopping(), AcknowledgementKind.KEPT), seeing(noticed(notice(3), notice(4))), 0.5)
    kept = "Rank 0 has left the state of step 7 in the memory of hosts that stay; no checkpoint of it is saved."
    assert kept in job.decision.reason


def _failed(job: SupervisedJob, **changes: Any) -> SupervisedJob:
    return answered(job, AcknowledgementKind.FAILED, step=987, error="a full disk", **changes)


def test_a_save_that_failed_leaves_the_rest_of_the_notice_for_another() -> None:
    """The process may try again until it exits, and until the deadline."""
    facts = seeing(noticed(notice(3), notice(4)))
    job = decide(_failed(_stopping()), facts, 0.5).job
    assert job.decision.phase is Phase.STOPPING
    saved = decide(answered(job, step=987), facts, 1).job.decision
    assert (saved.phase, saved.reason.rpartition(". ")[2]) == (
        Phase.SUSPENDED,
        "Rank 0 has saved a checkpoint of step 987.",
    )


@pytest.mark.parametrize(
    ("changes", "at"),
    [({"has_left": True}, 0.5), ({}, 3600), ({"has_left": True, "resumes_from": 0}, 0.5)],
    ids=["it has left", "time is up", "there is no checkpoint"],
)
def test_a_stop_in_which_a_save_failed_says_why_and_where_the_job_resumes(changes: dict[str, Any], at: float) -> None:
    changes = {"resumes_from": 900, **changes}
    job, planned = decide(_failed(_stopping(), **changes), seeing(noticed(notice(3), notice(4))), at)
    assert (job.decision.phase, planned.actions) == (Phase.SUSPENDED, (SuspendRun(1),))
    left = (
        "the job will resume from the checkpoint of step 900"
        if changes["resumes_from"]
        else "the job will start from step 0"
    )
    assert job.decision.reason.endswith(f"stopping. Rank 0 could not save: a full disk; {left}.")


def test_a_run_that_ends_after_a_failed_save_has_saved_nothing() -> None:
    job = observing(_failed(_stopping()), running=False, exit_code=1)
    reason = decide(job, seeing(noticed(notice(3), notice(4))), 1).job.decision.reason
    assert "Rank 0 could not save: a full disk; it is not known from which checkpoint the job will resume." in reason


def test_an_older_answer_suspends_nothing() -> None:
    """An answer to an earlier run or directive is not the answer to this STOP."""
    job = answered(_stopping())
    answer = job.observed.acknowledgement
    assert answer is not None
    for other in (replace(answer, run=0), replace(answer, generation=answer.generation - 1)):
        assert decide(observing(job, acknowledgement=other), seeing(), 1).job.decision.phase is Phase.STOPPING


def test_a_launcher_that_fails_while_stopping_was_stopped() -> None:
    """Its end with a code is the end that the STOP asked for."""
    job = observing(_stopping(), running=False, exit_code=255)
    decision = decide(job, seeing(noticed(notice(3), notice(4))), 1).job.decision
    assert decision.phase is Phase.SUSPENDED
    assert decision.reason.endswith("The run ended with code 255.")


def test_a_run_that_the_launcher_restarted_is_stopped_as_well() -> None:
    """A restart that crossed the STOP makes it a STOP for the new run."""
    job = decide(observing(_stopping(), run=2), seeing(noticed(notice(3), notice(4))), 1).job
    assert job.decision.phase is Phase.STOPPING
    assert _stop(job).run == job.decision.run == order_for(job).run == 2
    assert decide(answered(job), seeing(), 2).job.decision.phase is Phase.SUSPENDED


def test_without_an_answer_the_deadline_suspends() -> None:
    job, facts = _stopping(), seeing(noticed(notice(3), notice(4, left=320)))
    assert decide(job, facts, 299.9).job.decision.phase is Phase.STOPPING
    ended = decide(job, facts, 300).job.decision
    assert ended.phase is Phase.SUSPENDED
    assert "Rank 0 did not answer in time; it is not known" in ended.reason


def test_a_stop_ends_when_the_processes_of_all_elastic_agents_have_failed() -> None:
    """A host that goes during a save breaks the others, and takes its notice along; nobody could answer any more."""
    job = _stopping()
    agents = {
        host: Member(member=host, since=T0, processes=1, address="10.0.0.1", round=1, failed=True, waits=True)
        for host in first(3)
    }
    facts = replace(seeing(noticed(notice(3))), members=Members(agents), since=T0)
    alive = {**agents, Host("n1"): replace(agents[Host("n1")], failed=False, waits=False)}
    assert decide(job, replace(facts, members=Members(alive)), 20).job.decision.phase is Phase.STOPPING
    saving = Ranks((RankState(process="p", rank=0),))
    assert decide(job, replace(facts, ranks=saving), 20).job.decision.phase is Phase.STOPPING
    # Not all agents have found this supervisor yet.
    assert decide(job, facts, RETURN_SECONDS - 0.1).job.decision.phase is Phase.STOPPING
    ended = decide(job, facts, RETURN_SECONDS).job.decision
    assert ended.phase is Phase.SUSPENDED
    assert "All processes have failed before they saved; it is not known" in ended.reason


def test_without_a_deadline_a_stop_ends_as_well() -> None:
    """When all notices were taken back, waiting for rank 0 is still bounded."""
    job = _stopping()
    assert decide(job, seeing(), POLICY.stop_timeout_seconds - 0.1).job.decision.phase is Phase.STOPPING
    assert decide(job, seeing(), POLICY.stop_timeout_seconds).job.decision.phase is Phase.SUSPENDED


def test_rank_zero_has_the_margin_even_when_it_is_late() -> None:
    """A notice heard at its deadline still leaves rank 0 a head start and a moment for its checkpoint."""
    job, facts = running_job(spec(4, 4), 4), seeing(noticed(notice(4, left=-1)))
    stopping, planned = decide(job, facts)
    assert not _stop(decide(stopping, facts, 0.9).job).everyone
    assert planned.wake_at == T0 + POLICY.rank_zero_head_start_seconds
    assert _stop(decide(stopping, facts, 1).job).everyone
    assert decide(stopping, facts, POLICY.margin_seconds).job.decision.phase is Phase.SUSPENDED


def test_the_end_of_an_excluded_host_does_not_cut_a_stop_short() -> None:
    """A host that the run left before the STOP may die without harm; only hosts in use bound the wait for rank 0."""
    job = obeyed(decide(running_job(spec(3, 5), 5), seeing(noticed(notice(5, left=10))), 2).job)
    facts = seeing(noticed(notice(5, left=10), notice(4, seen=T0 + 9), notice(3, seen=T0 + 9)))
    job = decide(job, facts, 9).job
    assert (job.decision.phase, job.decision.exclusions) == (Phase.STOPPING, hosts(5))
    later = decide(job, facts, 60).job
    assert later.decision.phase is Phase.STOPPING
    assert not _stop(later).everyone


def test_the_end_of_a_host_that_is_still_listed_counts() -> None:
    """As long as the launcher has not confirmed the exclusion, the run still stands on that host."""
    job = decide(running_job(spec(3, 5), 5), seeing(noticed(notice(5, left=20))), 2).job
    facts = seeing(noticed(notice(5, left=20), notice(4, seen=T0 + 9), notice(3, seen=T0 + 9)))
    job = decide(job, facts, 9).job
    assert decide(job, facts, 19).job.decision.phase is Phase.STOPPING
    assert decide(job, facts, 20).job.decision.phase is Phase.SUSPENDED


def test_a_run_that_never_started_is_suspended_at_once() -> None:
    job = observing(running_job(spec(4, 4), 4), run=0, running=False)
    decision = decide(job, seeing(noticed(notice(1)))).job.decision
    assert decision.phase is Phase.SUSPENDED
    assert decision.reason.endswith("The run had not started.")


def test_hosts_lost_without_a_notice_mean_stop_after_a_grace() -> None:
    """Too few hosts only burn GPUs, but an operator may be replacing them."""
    job = observing(running_job(spec(4, 4), 4), hosts=first(3))
    job, planned = decide(job, seeing())
    assert job.decision.phase is Phase.RUNNING
    assert planned.wake_at == T0 + POLICY.lost_grace_seconds
    assert decide(job, seeing(), 29.9).job.decision.phase is Phase.RUNNING
    decision = decide(job, seeing(), 30).job.decision
    assert (decision.phase, decision.reason) == (
        Phase.STOPPING,
        "Hosts were lost without a notice; 3 hosts remain (minimum 4).",
    )


def test_a_lost_host_may_be_replaced_within_the_grace() -> None:
    """A replacement joins a job that is below its minimum, and the grace starts anew with the next loss."""
    job = decide(observing(running_job(spec(4, 4), 4), hosts=first(3)), seeing()).job
    job = decide(observing(job, hosts=hosts(1, 2, 3, 9)), seeing({}, hosts(9)), 10).job
    job = decide(job, seeing({}, hosts(9)), 12).job
    assert (job.decision.hosts, job.decision.below_min_since) == (hosts(1, 2, 3, 9), None)
    assert decide(job, seeing(), 100).job.decision.phase is Phase.RUNNING


def test_a_lost_host_that_is_back_leaves_no_trace() -> None:
    policy = Policy(resume_delay_seconds=0)
    job = decide(observing(running_job(spec(4, 4), 4), hosts=first(3)), seeing()).job
    job = decide(observing(job, hosts=first(4)), seeing({}, hosts(4)), 10, policy).job
    assert (job.decision.below_min_since, job.decision.reason) == (None, "Run 1 is running on 4 hosts.")


def test_a_missing_rank_zero_is_no_reason_to_stop() -> None:
    job = running_job()
    assert decide(job, seeing(missing_since=T0), 10_000).job.decision == job.decision


def test_a_finished_job_is_not_stopped() -> None:
    job = observing(running_job(), running=False, exit_code=0, result=Result.SUCCEEDED)
    job, planned = decide(job, seeing(noticed(*(notice(number) for number in range(1, 7)))))
    assert (job.decision.phase, planned.actions, planned.wake_at) == (Phase.FINISHED, (), None)
