"""Compares jobs by themselves, within bounds, and in a process of its own."""

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

from supervisor.domain.ids import Host, JobName
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.goodput import __main__ as apart
from supervisor.goodput import comparison
from supervisor.goodput.comparison import (
    OUT_OF_MEMORY,
    TOO_LARGE,
    Comparison,
    LeftOut,
    RecordedJob,
    RecordedJobs,
    assumptions,
    compare,
    gathered,
    remarks,
    summary,
)
from supervisor.goodput.model import GoodputCosts
from supervisor.goodput.policies import OtherPolicy

_H = 3600.0
_MEASURED = MeasuredCosts(step_seconds=2.0, checkpoint_seconds=20.0, start_seconds=60.0)


def recorded(hosts: int = 4, reclaims: int = 3, costs: MeasuredCosts = _MEASURED) -> RecordedJob:
    """A job that loses its last host in each hour, halfway, with two minutes of notice."""
    spans = [
        WantedSpan(begins=at, ends=at + _H, least=1, most=hosts, in_process=True, restarts=1, costs=costs)
        for at in (_H * number for number in range(reclaims))
    ]
    stays = [HostStay(host=Host(f"n{number}"), begins=0.0, ends=reclaims * _H) for number in range(hosts - 1)]
    stays += [
        HostStay(
            host=Host("spot"), begins=each.begins, ends=each.begins + 1800.0, gone=True, noticed=each.begins + 1680.0
        )
        for each in spans
    ]
    wanted = hosts * reclaims * _H
    return RecordedJob(since=0.0, until=reclaims * _H, spans=spans, stays=stays, wanted=wanted, trained=wanted / 2)


def test_the_first_jobs_are_taken_as_long_as_they_can_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job beyond the bound is passed over, so that smaller ones behind it are not lost."""
    jobs = [recorded(hosts=4), recorded(hosts=40), recorded(hosts=4)]
    monkeypatch.setattr(comparison, "MOST_WORK", 100)
    found = compare(RecordedJobs(jobs=jobs, unread=5))
    assert (found.jobs, found.left_out) == (2, LeftOut(beyond=6))
    assert (found.skipped, found.costs) == ([], None)
    assert "Jobs that are left out: 6 (with them it would take minutes)." in remarks(found)


@pytest.mark.parametrize("bound", ["MOST_HOST_MINUTES", "MOST_PIECES"])
def test_a_job_that_is_too_large_to_begin_with_is_no_other_ones_fault(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Also one of many hosts that never change costs a minute: its checkpoints are simulated one by one."""
    large, small = recorded(hosts=40), recorded(hosts=4)
    monkeypatch.setattr(comparison, bound, 60 * 4 * 3 if bound == "MOST_HOST_MINUTES" else len(small.stays))
    found = compare(RecordedJobs(jobs=[large, small]))
    assert (found.jobs, found.left_out) == (1, LeftOut(beyond=1))
    alone = compare(RecordedJobs(jobs=[large]))
    assert (alone.rows, TOO_LARGE in summary(alone)) == ([], True)


def test_it_is_said_that_no_host_has_gone() -> None:
    """Then every policy that does nothing trains all the time, which says nothing about it."""
    job = recorded()
    stayed = replace(job, stays=[each for each in job.stays if not each.gone])
    said = "No host has gone in that time: whoever does nothing about notices has lost nothing yet."
    assert said in remarks(compare(RecordedJobs(jobs=[stayed])))
    assert said not in remarks(compare(RecordedJobs(jobs=[job])))


def test_one_job_is_compared_whatever_is_known_of_its_costs() -> None:
    found = compare(RecordedJobs(jobs=[recorded(costs=MeasuredCosts(step_seconds=3.0))]))
    assert (found.jobs, found.left_out, found.measured) == (1, LeftOut(), ["step"])
    assert found.all_costs["step"] == 3.0


def test_a_measured_change_in_process_is_the_one_that_is_simulated() -> None:
    """In the rounds in which the job's hosts change."""
    job = recorded(hosts=16, reclaims=20)
    costs = replace(_MEASURED, change_seconds=0.125)
    spans = [replace(span, costs=costs, in_rounds=True) for span in job.spans]
    assumed, measured = (compare(RecordedJobs(jobs=[each])) for each in (job, replace(job, spans=spans)))
    assert assumptions(assumed) == (
        "Simulated with a step of 2 s, a checkpoint of 20 s and a restart of 60 s (measured), and a change of 2 s "
        "(assumed)."
    )
    assert assumptions(measured) == (
        "Simulated with a step of 2 s, a checkpoint of 20 s, a restart of 60 s and a change of 0.125 s (measured)."
    )
    assert measured.costs == GoodputCosts(step=2.0, checkpoint=20.0, restart=60.0, change=0.125, in_rounds=True)
    assert _trained(measured) > _trained(assumed)
    assert compare(RecordedJobs(jobs=[job, replace(job, spans=spans)])).jobs == 2


def test_a_change_in_process_is_no_cost_of_a_job_that_changes_by_restarts() -> None:
    """Whatever its records say that it took."""
    costs = replace(_MEASURED, change_seconds=0.125)
    job = recorded(costs=costs)
    found = compare(RecordedJobs(jobs=[replace(job, spans=[replace(span, in_process=False) for span in job.spans])]))
    assert "change" not in assumptions(found)


def test_a_restart_does_not_make_a_job_one_that_changes_by_restarts() -> None:
    """Such as that after a suspension, with which a run begins."""
    job = recorded(costs=replace(_MEASURED, change_seconds=0.125))
    *before, last = job.spans
    restarted = replace(job, spans=[*before, replace(last, in_process=False)])
    assert "a change of 0.125 s (measured)" in assumptions(compare(RecordedJobs(jobs=[restarted])))


def _trained(found: Comparison) -> float:
    """Return the worker-seconds of the supervisor that is simulated."""
    return next(row.trained for row in found.rows if row.policy is OtherPolicy.SUPERVISOR)


async def test_no_more_is_read_than_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[JobName]()

    async def one(job: JobName) -> RecordedJob:
        read.append(job)
        return recorded(hosts=4, reclaims=3)  # Nine stays and spans.

    names = [JobName(f"j{number}") for number in range(10)]
    monkeypatch.setattr(comparison, "MOST_READ", 18)
    found = await gathered(names, one)
    assert (read, found.unread) == (names[:2], 8)
    monkeypatch.setattr(comparison, "MOST_READ", 1000)
    monkeypatch.setattr(comparison, "MOST_JOBS", 4)
    assert (await gathered(names, one)).unread == 6


def test_a_process_of_its_own_finds_the_same() -> None:
    jobs = RecordedJobs(jobs=[recorded()])
    given = msgspec.json.encode(jobs)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "supervisor.goodput"], input=given, capture_output=True, check=True, timeout=60
    )
    assert msgspec.json.decode(done.stdout, type=Comparison) == compare(jobs)
    assert done.stdout == apart.compared(given)


def test_a_process_of_its_own_takes_no_more_memory_than_it_may() -> None:
    """It ends with a code of its own, and its supervisor says so."""
    code = (
        "import supervisor.goodput.__main__ as apart\n"
        "apart.compared = lambda given: bytes(apart.MEMORY_BYTES)\n"
        "apart.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (OUT_OF_MEMORY, b"")
