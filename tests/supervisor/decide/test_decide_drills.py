"""A drill's notice: it binds like a reclaim's, and ends by itself without anything having gone."""

from dataclasses import replace

import pytest

from supervisor.decide.notices import NodeIdentities, Presence, apply_report, end_if_due, ends_at, noticed_hosts
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase
from supervisor.domain.notice import SIMULATED, NoticeState, ReclaimNotice
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    decide,
    notice,
    noticed,
    report,
    running_job,
    seeing,
    spec,
)


def _drill(number: int = 1, *, left: float = 60.0) -> ReclaimNotice:
    return replace(notice(number, left=left), source=SIMULATED)


@pytest.mark.parametrize("seen", Presence)
def test_a_drill_is_withdrawn_at_its_deadline(seen: Presence) -> None:
    """Not later, and whatever is seen of the machine, which was never to go."""
    assert ends_at(_drill(), seen, POLICY) == T0 + 60
    assert end_if_due(_drill(), seen, T0 + 59.9, POLICY) == _drill()
    ended = end_if_due(_drill(), seen, T0 + 60, POLICY)
    assert (ended.state, ended.ended_at, ended.holds) == (NoticeState.WITHDRAWN, T0 + 60, False)


def test_a_nodes_own_clear_answer_does_not_deny_a_drill() -> None:
    """It is what the drill pretends to be otherwise."""
    clear = NodeIdentities(machines={Host("n1"): "uid-1"}, clear={Host("n1")})
    assert noticed_hosts([_drill()], clear, POLICY) == noticed(_drill())


@pytest.mark.parametrize(
    ("machine", "node_object", "binds"),
    [
        (None, None, True),
        ("uid-1", None, True),
        (None, "uid-1", True),
        ("another", "uid-1", True),
        ("uid-1", "another", True),
        ("another", None, False),
        (None, "another", False),
        ("another", "and-another", False),
    ],
)
def test_a_drill_binds_the_machine_or_the_object_that_it_named(
    machine: str | None,
    node_object: str | None,
    binds: bool,  # noqa: FBT001  # pytest names it.
) -> None:
    """It was asked for by the uid of either; a node that was replaced since is not concerned."""
    today = NodeIdentities(
        machines={} if machine is None else {Host("n1"): machine},
        objects={} if node_object is None else {Host("n1"): node_object},
    )
    assert noticed_hosts([_drill()], today, POLICY) == (noticed(_drill()) if binds else {})


def test_the_end_of_a_drill_leaves_a_real_notice_beside_it() -> None:
    real, drill = notice(1, left=300), _drill()
    assert noticed_hosts([real, drill], NodeIdentities(), POLICY) == noticed(drill)
    ended = end_if_due(drill, Presence.PRESENT, T0 + 60, POLICY)
    assert noticed_hosts([real, ended], NodeIdentities(), POLICY) == noticed(real)


def test_a_drill_whose_time_has_passed_never_begins() -> None:
    """Whoever finds the word of it later, as after a restart, holds none, and ends the one that goes on."""
    late = replace(report(left=0.0), source=SIMULATED)
    assert apply_report(None, late, T0, POLICY) is None
    ended = apply_report(_drill(), replace(late, revision=2), T0 + 70, POLICY)
    assert ended is not None
    assert ended.state is NoticeState.WITHDRAWN


def test_a_second_drill_moves_the_deadline_of_the_first() -> None:
    again = replace(report(revision=2, left=30.0), source=SIMULATED)
    moved = apply_report(_drill(), again, T0 + 10, POLICY)
    assert moved is not None
    assert (moved.id, moved.episode, moved.deadline) == (_drill().id, 1, T0 + 40)


def test_every_reason_says_that_it_is_a_drill() -> None:
    """While the group is collected, when it is excluded, when the job must stop, and when its launcher would go."""
    doomed = seeing(noticed(_drill(1)))
    collecting = decide(running_job(), doomed)
    assert collecting.job.decision.reason.startswith("Drill: n1 will be reclaimed, says simulated; waiting")
    shrinking = decide(collecting.job, doomed, at=5)
    assert shrinking.job.decision.phase is Phase.SHRINKING
    assert shrinking.job.decision.reason.startswith("Drill: n1 will be reclaimed, says simulated; continuing")
    stopping = decide(running_job(spec(6)), doomed)
    assert stopping.job.decision.phase is Phase.STOPPING
    assert stopping.job.decision.reason.startswith("Drill: n1 will be reclaimed")
    led = decide(running_job(replace(spec(1), launcher_host=Host("n1"))), doomed)
    assert led.job.decision.reason.startswith("Drill: The launcher's host n1")


def test_a_reason_that_is_also_a_reclaims_does_not_call_itself_a_drill() -> None:
    both = seeing(noticed(_drill(1), notice(2)))
    reason = decide(running_job(), both).job.decision.reason
    assert reason.startswith("n1, n2 will be reclaimed, say metadata and simulated")
