"""What a job wants when it loses workers: a fixed size, or sizes that are multiples of a number."""

from dataclasses import replace

import pytest

from supervisor.decide.directives import order_for
from supervisor.decide.grant import grants
from supervisor.domain.ids import Host
from supervisor.domain.job import OnLoss, Phase, Spec, SupervisedJob
from tests.supervisor.decide.decide_builders import (
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
)

PAIRS = replace(spec(2, 8), worker_multiple=2)
HOLDS = replace(spec(2, 6), on_loss=OnLoss.HOLD)


def _shrunk(workers: int, *going: int) -> SupervisedJob:
    """A job of pairs that has left hosts out because of notices, and whose launcher has confirmed that."""
    facts = seeing(noticed(*(notice(number) for number in going)))
    job = decide(running_job(PAIRS, workers), facts, 1.25).job
    return decide(obeyed(job), facts, 1.3).job


def _used(job: SupervisedJob) -> frozenset[Host]:
    return job.decision.hosts - job.decision.exclusions


def test_a_host_without_a_notice_leaves_with_one_that_has_one() -> None:
    """Its number of workers stays a multiple, in the same change, and the reason names both."""
    job = decide(running_job(PAIRS, 6), seeing(noticed(notice(6))), 1.25).job
    assert (job.decision.phase, job.decision.exclusions) == (Phase.SHRINKING, hosts(5, 6))
    assert job.decision.reason == (
        "n6 will be reclaimed, says metadata; continuing with 4 hosts (minimum 2, as the number of workers must be a "
        "multiple of 2). n5 is left out, as the number of workers must be a multiple of 2."
    )
    assert order_for(job).workers == 4


def test_a_run_says_which_hosts_it_does_without() -> None:
    assert _shrunk(6, 6).decision.reason == (
        "Run 1 is running on 4 hosts. n5 is left out, as the number of workers must be a multiple of 2."
    )


def test_a_withdrawn_notice_takes_both_back() -> None:
    job = decide(_shrunk(6, 6), seeing(), 9).job
    assert _used(job) == first(6)
    assert job.decision.reason == "n5, n6 are used again; now 6 hosts."


def test_a_host_that_is_lost_without_a_notice_takes_another_with_it() -> None:
    job = decide(observing(running_job(PAIRS, 6), hosts=first(5)), seeing()).job
    assert (job.decision.phase, _used(job)) == (Phase.SHRINKING, first(4))
    assert job.decision.reason == (
        "n5 is left out, as the number of workers must be a multiple of 2. Continuing with 4 hosts."
    )


def test_none_joins_in_the_change_in_which_another_leaves() -> None:
    """A host that was left out waits until the launcher has confirmed who left: both at once can block a launcher."""
    facts = seeing(noticed(notice(6), notice(1)))
    leaves = decide(_shrunk(6, 6), facts, 9).job
    assert (leaves.decision.phase, _used(leaves)) == (Phase.SHRINKING, hosts(2, 3))
    joins = decide(obeyed(leaves), facts, 9.1).job
    assert (joins.decision.phase, _used(joins)) == (Phase.RUNNING, hosts(2, 3, 4, 5))


def test_a_run_that_could_only_go_on_with_a_substitute_stops() -> None:
    """With its last pair broken, it saves and resumes at once with the host that was left out."""
    facts = seeing(noticed(notice(4), notice(1)))
    job = decide(_shrunk(4, 4), facts, 9).job
    assert (job.decision.phase, job.decision.exclusions) == (Phase.STOPPING, hosts(3, 4))
    assert job.decision.reason == (
        "n1, n4 will be reclaimed, says metadata; 1 host would remain (minimum 2, as the number of workers must be a "
        "multiple of 2): stopping."
    )


def test_a_waiting_job_starts_at_a_multiple() -> None:
    """The host that is left over stays free for others."""
    job = suspended_job(PAIRS, first(7))
    assert grants([job], first(7)) == {job.name: first(6)}
    assert grants([job], first(1)) == {}


def test_a_running_job_grows_to_a_multiple() -> None:
    """It counts a host that it left out, and takes none that it could not use."""
    job = observing(running_job(PAIRS, 4), hosts=first(8))
    assert grants([job], hosts(5, 6, 7)) == {job.name: hosts(5, 6)}
    assert grants([job], hosts(5)) == {}
    short = observing(_shrunk(6, 6), hosts=first(8))
    assert grants([short], hosts(7, 8), noticed=hosts(6)) == {short.name: hosts(7)}


def test_growth_uses_the_host_that_was_left_out() -> None:
    facts = seeing(noticed(notice(6)), granted=hosts(7))
    job = decide(observing(_shrunk(6, 6), hosts=first(8)), facts, 3).job
    assert _used(decide(job, facts, 6).job) == hosts(1, 2, 3, 4, 5, 7)


def test_a_job_that_holds_stops_when_one_worker_will_be_lost() -> None:
    """However many remain; it does not wait for further notices."""
    job = decide(running_job(HOLDS, 6), seeing(noticed(notice(6)))).job
    assert (job.decision.phase, job.decision.exclusions) == (Phase.STOPPING, hosts())
    assert job.decision.reason == (
        "n6 will be reclaimed, says metadata; 5 hosts would remain (minimum 6, as the job holds its size of 6): "
        "stopping."
    )


def test_a_job_that_holds_resumes_at_its_size_alone() -> None:
    facts = seeing(noticed(notice(6)))
    stopped = decide(answered(decide(running_job(HOLDS, 6), facts).job), facts, 5).job
    waits = observing(decide(obeyed(stopped), facts, 6).job, hosts=first(8))
    assert grants([waits], first(5), noticed=hosts(6)) == {}
    granted = grants([waits], hosts(1, 2, 3, 4, 5, 7, 8), noticed=hosts(6))
    assert granted == {waits.name: hosts(1, 2, 3, 4, 5, 7)}
    resumed = decide(waits, seeing(noticed(notice(6)), granted=granted[waits.name]), 7).job
    assert (resumed.decision.phase, _used(resumed)) == (Phase.RESUMING, granted[waits.name])


def test_a_job_that_holds_waits_a_moment_for_a_host_that_replaces_a_lost_one() -> None:
    """Without a notice there is nothing to be in time for."""
    short = decide(observing(running_job(HOLDS, 6), hosts=first(5)), seeing()).job
    assert short.decision.phase is Phase.RUNNING
    assert short.decision.reason == (
        "Hosts were lost without a notice; 5 hosts remain (minimum 6, as the job holds its size of 6)."
    )
    listed = observing(short, hosts=hosts(1, 2, 3, 4, 5, 7))
    assert grants([listed], hosts(7)) == {listed.name: hosts(7)}
    facts = seeing(granted=hosts(7))
    joined = decide(decide(listed, facts, 1).job, facts, 4).job
    assert _used(joined) == hosts(1, 2, 3, 4, 5, 7)
    assert decide(listed, seeing(), 31).job.decision.phase is Phase.STOPPING


@pytest.mark.parametrize("asked", [PAIRS, HOLDS], ids=["multiple", "hold"])
def test_a_job_that_loses_nothing_notices_nothing(asked: Spec) -> None:
    job = running_job(asked, 6)
    assert decide(job, seeing(), 60).job == job
