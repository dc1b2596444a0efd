"""All ranks stop at one agreed step: what eight of them are told, and what their answers cause."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from supervisor.domain.agreement import AnswerKind, Purpose
from supervisor.domain.job import Phase, SupervisedJob
from tests.supervisor.decide.decide_builders import notice, observing, running_job, spec
from tests.supervisor.fanout.fanout_decided import DecidedJob

SIZE = 8
STEP_SECONDS = 0.05


class Rank:
    """One rank that takes a step every `STEP_SECONDS` and answers each line; it notes the step at which it stops."""

    def __init__(self, job: "AgreeingJob", number: int) -> None:
        self.job = job
        self.worker = job.worker(number + 1, number)
        self.stream = job.connect(number + 1, number)
        self.start = 100 + number % 2
        self.began = job.now
        self.answers = True
        self.answers_proposals = True
        self.seen = list[Mapping[str, Any]]()
        self.stops_at: int | None = None
        job.states(self.worker, purposes=frozenset({Purpose.STOP, Purpose.CHECKPOINT}), world_size=SIZE)

    @property
    def step(self) -> int:
        return self.start + int((self.job.now - self.began) / STEP_SECONDS)

    def reads(self) -> None:
        """Answers the present line, unless it has done so."""
        line = self.stream.lines[-1]
        if not line["agreement"] or not self.answers or line in self.seen[-1:]:
            return
        self.seen.append(line)
        agreement = line["agreement"]
        if agreement["committed"]:
            assert line["directive"] == "STOP"
            self.stops_at = agreement["step"]
            self.says(AnswerKind.COMMITTED, self.step)
        elif self.answers_proposals or agreement["step"] is None:
            is_ahead = agreement["step"] is not None and self.step < agreement["step"]
            self.says(AnswerKind.ACCEPTED if is_ahead else AnswerKind.DECLINED, self.step)

    def says(self, kind: AnswerKind, step: int) -> None:
        seconds = {} if self.job.checkpoint_seconds is None else {"checkpoint_seconds": self.job.checkpoint_seconds}
        self.job.answers(self.worker, kind, step, step_seconds=STEP_SECONDS, unread_seconds=0.0, **seconds)


class AgreeingJob(DecidedJob):
    """A job on eight hosts that needs all of them, with a rank on each that agrees."""

    def __init__(self, job: SupervisedJob | None = None) -> None:
        super().__init__(job or running_job(spec(SIZE, SIZE), SIZE))
        self.checkpoint_seconds: float | None = None
        self.all_ranks = [Rank(self, number) for number in range(SIZE)]

    def settle(self) -> None:
        """As a `DecidedJob`, with ranks that read what they are told."""
        before = None
        while before != self.job:
            before = self.job
            super().settle()
            for rank in getattr(self, "all_ranks", ()):
                rank.reads()

    def stop_step(self) -> int:
        """The step at which all ranks stop; each of them knows it."""
        (step,) = {rank.stops_at for rank in self.all_ranks}
        assert step is not None
        return step


async def test_all_ranks_are_told_of_one_step_before_they_reach_it() -> None:
    """Polled, proposed, committed to all; nobody is told to stop before."""
    job = AgreeingJob()
    job.notes(notice(8))
    step = job.stop_step()
    assert job.decision.phase is Phase.STOPPING
    assert job.decision.reason.endswith(f"stopping. All ranks save after step {step}.")
    for rank in job.all_ranks:
        assert rank.seen[-1]["agreement"]["committed"]
        assert {line["directive"] for line in rank.seen[:-1]} <= {"RUN", "LEAVE"}
        assert rank.seen[0]["agreement"]["step"] is None, "the first line is a poll"


async def test_ranks_that_do_not_answer_are_named_and_rank_zero_stops_alone() -> None:
    """A rank whose flag is not read holds nobody up for longer than the time-out."""
    job = AgreeingJob()
    job.all_ranks[3].answers = False
    job.notes(notice(8))
    phases = [job.decision.phase]
    job.passes(job.policy.agreement_timeout_seconds)
    phases.append(job.decision.phase)
    assert phases == [Phase.RUNNING, Phase.STOPPING]
    assert job.decision.reason.endswith("There is no agreed step, as rank 3 did not answer: rank 0 saves alone.")
    assert (job.decision.agreement, job.decision.agreed_stop) == (None, None)


async def test_a_withdrawal_before_the_commit_leaves_nothing_behind() -> None:
    """With time until the deadline the ranks train on, and a withdrawn notice stops nobody."""
    job = AgreeingJob()
    job.checkpoint_seconds = 1.0
    job.notes(notice(8))
    assert "until then they train on" in job.decision.reason
    assert job.decision.phase is Phase.RUNNING
    job.notes()
    assert (job.decision.phase, job.decision.reason) == (Phase.RUNNING, "Run 1 is running on 8 hosts.")
    assert job.decision.agreement is None
    assert {line["directive"] for rank in job.all_ranks for line in rank.seen} <= {"RUN", "LEAVE"}


async def test_another_supervisor_goes_on_where_the_last_one_ended() -> None:
    """It knows the proposal, hears of the ranks again, and they all stop at one step."""
    job = AgreeingJob()
    for rank in job.all_ranks:
        rank.answers_proposals = False
    job.notes(notice(8))
    proposed = job.decision.agreement
    assert proposed is not None
    assert proposed.step is not None
    again = job.started_again()
    again.passes(5.0)
    step = again.stop_step()
    assert again.decision.agreement is not None
    assert again.decision.agreement.epoch >= proposed.epoch
    assert (again.decision.agreement.step, again.decision.phase) == (step, Phase.STOPPING)


async def test_a_commit_that_ranks_have_passed_is_followed_by_another() -> None:
    """They say so, and stop a little later, at one step as well."""
    job = AgreeingJob()
    job.notes(notice(8))
    first = job.stop_step()
    for rank in job.all_ranks:
        rank.stops_at = None
        rank.start += first + 1 - rank.step
        rank.says(AnswerKind.PASSED, first + 1)
    job.settle()
    second = job.stop_step()
    assert second > first
    assert job.decision.reason.endswith(f"stopping. All ranks save after step {second}.")


async def test_a_new_job_agrees_although_its_runs_begin_again() -> None:
    """The earlier one of its name has ended in run 3, and its processes are still connected."""
    earlier = running_job(spec(SIZE, SIZE), SIZE)
    earlier = observing(replace(earlier, decision=replace(earlier.decision, run=3)), run=3)
    job = AgreeingJob(earlier)
    new = running_job(spec(SIZE, SIZE), SIZE)
    job.job = replace(new, uid="another", observed=replace(new.observed, registered_at=new.observed.registered_at + 60))
    job.all_ranks = [Rank(job, number) for number in range(SIZE)]
    job.notes(notice(8))
    assert job.decision.agreement is not None, "rank 0 of the new job is stopped alone"
    assert job.decision.reason.endswith(f"All ranks save after step {job.stop_step()}.")
