"""The processes' stream: who is told what, and when an answer counts."""

import time
from collections.abc import Sequence

import pytest

from supervisor.domain.job import Phase, Stop
from supervisor.fanout.processes import COALESCE_SECONDS
from tests.supervisor.decide.decide_builders import T0, notice
from tests.supervisor.fanout.fanout_streams import JobStreams
from tests.testkit.waiting import until


async def test_the_first_line_is_the_whole_present_state() -> None:
    job = JobStreams()
    (line,) = job.connect(9, None).lines
    assert {**line, "generation": 0} == {
        "type": "directive",
        "directive": "RUN",
        "act_in": 0.0,
        "seconds_left": None,
        "job": "job",
        "run": 1,
        "generation": 0,
        "reason": job.job.decision.reason,
        "notice": None,
        "max_wait": None,
        "release": False,
        "agreement": None,
    }


async def test_a_rank_that_becomes_zero_is_told_to_stop() -> None:
    job = JobStreams()
    streams = job.ranks()
    generation = job.job.decision.generation + 1
    job.decides(phase=Phase.STOPPING, stop=Stop(run=1, generation=generation, since=T0))
    assert [stream.lines[-1]["directive"] for stream in streams] == ["STOP", "RUN", "RUN"]
    job.rank_zero_looks.clear()
    assert job.processes.update(job.worker(2, 0), None)
    assert (streams[1].lines[-1]["directive"], streams[1].lines[-1]["generation"]) == ("STOP", generation)
    assert job.rank_zero_looks == [job.job.name]


@pytest.mark.parametrize(("revisions", "counts"), [((2, 1), 0), ((None, None), 1)], ids=["numbered", "of an older SDK"])
async def test_a_report_that_comes_late_brings_no_older_rank_back(revisions: Sequence[int | None], counts: int) -> None:
    """The threads of a process post side by side. An older SDK numbers nothing: the last report to come counts."""
    job = JobStreams()
    job.ranks()
    taken = [
        job.processes.update(job.worker(2, rank), revision) for rank, revision in zip((0, 1), revisions, strict=True)
    ]
    assert taken == [True, counts == 1]
    ranks = {worker.process: worker.rank for worker in job.processes.workers(job.job.id)}
    assert ranks["process-on-n2"] == counts


async def test_who_knows_no_rank_is_none_and_is_not_stopped_alone() -> None:
    """Whether all are stopped then is decided by what is known of rank 0."""
    job = JobStreams()
    streams = job.ranks()
    assert job.processes.rank_zero(job.job.id, 1).connected
    assert job.processes.update(job.worker(1, None), None)
    assert not job.processes.rank_zero(job.job.id, 1).connected
    job.decides(phase=Phase.STOPPING, stop=Stop(run=1, generation=6, since=T0))
    assert [stream.lines[-1]["directive"] for stream in streams] == ["RUN", "RUN", "RUN"]
    job.decides(stop=Stop(run=1, generation=7, since=T0, everyone=True))
    assert [(stream.lines[-1]["directive"], stream.lines[-1]["release"]) for stream in streams] == [("STOP", False)] * 3


async def test_a_deadline_that_drifts_is_told_although_nothing_is_decided() -> None:
    """A LEAVE that comes nearer is urgent only shortly before."""
    job = JobStreams(least=1)
    rank_two = job.ranks()[2]
    for left in (60.0, 30.0):
        job.notes(notice(3, left=left))
        await until(lambda left=left: rank_two.lines[-1]["seconds_left"] == left)  # type: ignore[misc]  # It is a float.
        assert (rank_two.lines[-1]["directive"], rank_two.lines[-1]["act_in"] < left - 0.5) == ("LEAVE", True)


async def test_a_burst_of_notices_is_few_lines() -> None:
    """They are sent together, once the first of them has waited for its time."""
    job = JobStreams(least=1)
    rank_zero = job.connect(9, 0)
    begun = time.monotonic()
    for number in range(20):
        job.notes(notice(2), notice(3, left=100.0 - number))
    await until(lambda: rank_zero.lines[-1]["seconds_left"] == 81.0)
    assert len(rank_zero.lines) <= 2 + (time.monotonic() - begun) / COALESCE_SECONDS
    assert len(job.sent) == len(rank_zero.lines) - 1


async def test_a_second_stream_of_a_process_replaces_the_first() -> None:
    """The first ends with a goodbye; the end of it does not count against the second."""
    job = JobStreams()
    first = job.ranks()[0]
    second = job.connect(1, 0)
    assert (second.lines[-1]["directive"], first.goodbye) == ("RUN", "replaced by a newer stream")
    job.processes.detach(job.worker(1, 0), first)
    job.decides(phase=Phase.STOPPING, stop=Stop(run=1, generation=6, since=T0))
    assert (second.lines[-1]["directive"], len(first.lines)) == ("STOP", 1)


async def test_each_stream_has_its_turn_to_send_a_heartbeat() -> None:
    job = JobStreams()
    streams = job.ranks()
    await job.processes.heartbeat(1.0)
    assert [stream.turns for stream in streams] == [1, 1, 1]
