"""Whether a stop is at an agreed step, in a run whose ranks may be able to agree."""

from dataclasses import replace

from supervisor.decide.agreement import ROUND_SECONDS
from supervisor.decide.ranks import Ranks, RankState
from supervisor.domain.agreement import Purpose
from supervisor.domain.job import Phase
from tests.supervisor.decide.decide_builders import T0, decide, notice, noticed, running_job, seeing, spec

FIXED = running_job(spec(6, 6))
NOTICED = seeing(noticed(notice(1)), missing_since=T0)


def _rank(number: int, *purposes: Purpose) -> RankState:
    return RankState(process=f"process-{number}", rank=number, purposes=frozenset(purposes))


def test_a_supervisor_that_was_just_started_waits_for_the_ranks_to_return() -> None:
    """They may be able to agree, and rank 0 would otherwise be stopped alone."""
    step = decide(FIXED, replace(NOTICED, since=T0))
    assert step.job.decision == FIXED.decision
    assert step.plan.wake_at == T0 + ROUND_SECONDS
    returned = replace(NOTICED, since=T0, ranks=Ranks([_rank(0, Purpose.STOP)]))
    assert decide(FIXED, returned, at=0.5).job.decision.agreement is not None


def test_it_does_not_wait_long_for_ranks_that_do_not_return() -> None:
    step = decide(FIXED, replace(NOTICED, since=T0), at=ROUND_SECONDS)
    assert step.job.decision.phase is Phase.STOPPING


def test_it_does_not_wait_if_rank_0_is_there_and_cannot_agree() -> None:
    step = decide(FIXED, replace(seeing(noticed(notice(1))), since=T0))
    assert step.job.decision.phase is Phase.STOPPING


def test_the_reason_names_the_rank_that_cannot_agree_if_others_can() -> None:
    mixed = replace(NOTICED, ranks=Ranks([_rank(0, Purpose.STOP), _rank(1)]))
    reason = decide(FIXED, mixed).job.decision.reason
    assert "rank 1 cannot agree" in reason
    assert "rank 0 saves alone" in reason
