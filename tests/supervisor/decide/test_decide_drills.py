"""A drill's notice: it binds like a reclaim's, and ends by itself without anything having gone."""

from dataclasses import replace

import pytest

from supervisor.decide.notices import Presence, apply_report, end_if_due, ends_at
from supervisor.decide.urgency import NodeIdentities, noticed_hosts
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase
from supervisor.domain.notice import OPERATOR, SIMULATED, NoticeState, ReclaimNotice
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    first,
    notice,
    noticed,
    obeyed,
    observing,
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


def test_what_follows_from_a_drill_alone_is_marked_as_well() -> None:
    """The run without the host, and the host's return once the drill is over."""
    doomed = seeing(noticed(_drill(1)))
    shrinking = decide(decide(running_job(), doomed).job, doomed, at=5).job
    settled = decide(obeyed(shrinking), doomed, at=6).job
    assert settled.decision.reason == "Drill: Run 1 is running on 5 hosts."
    back = decide(settled, seeing(), at=60).job
    assert back.decision.reason == "Drill: n1 has no notice any more; now 6 hosts."


def test_a_resume_after_a_drill_is_marked_until_something_else_decides() -> None:
    doomed = seeing(noticed(_drill(1)))
    stopping = decide(running_job(spec(6)), doomed).job
    suspended = decide(answered(stopping), doomed, at=5).job
    assert suspended.decision.reason.startswith("Drill: n1 will be reclaimed")
    waits = decide(obeyed(suspended), doomed, at=6).job
    resuming = decide(waits, seeing({}, first(6)), at=70).job
    assert resuming.decision.reason == "Drill: Resuming from the checkpoint as run 2 on 6 of 6 requested hosts."
    runs = decide(observing(obeyed(resuming), run=2, running=True), seeing(), at=71).job
    assert runs.decision.reason == "Drill: Run 2 is running on 6 hosts."
    real = decide(runs, seeing(noticed(notice(2, left=300.0))), at=72).job
    assert real.decision.reason.startswith("n2 will be reclaimed, says metadata")


def test_a_run_that_is_smaller_for_a_reclaim_too_is_no_drill() -> None:
    """A reclaim that was settled before the drill began also made the run as small as it is."""
    job = running_job()
    for at, facts in enumerate([seeing(noticed(notice(2))), seeing(noticed(notice(2), _drill(1)))]):
        collected = decide(job, facts, 20 * at).job
        job = decide(obeyed(decide(collected, facts, 20 * at + 5).job), facts, 20 * at + 6).job
    assert job.decision.reason == "Run 1 is running on 4 hosts."


def test_a_drain_names_the_person_and_claims_no_reclaim() -> None:
    """Neither while the node is drained nor after it was undrained."""
    drained = seeing(noticed(replace(notice(1, left=60.0), source=OPERATOR, message="ann: new kernel")))
    shrinking = decide(decide(running_job(), drained).job, drained, at=5).job
    assert shrinking.decision.reason == "n1 is drained by ann; continuing with 5 hosts (minimum 3)."
    back = decide(obeyed(shrinking), seeing(), at=60).job
    assert back.decision.reason == "n1 has no notice any more; now 6 hosts."
    led = decide(running_job(replace(spec(1), launcher_host=Host("n1"))), drained).job
    assert led.decision.reason.startswith("The launcher's host n1 is drained by ann")
