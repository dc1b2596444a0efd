"""Reports and time change the state of notices."""

from dataclasses import replace

import pytest

from supervisor.decide.notices import Presence, apply_report, end_if_due, ends_at, replaced
from supervisor.decide.urgency import NodeIdentities, deadline_of, noticed_hosts
from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import (
    EVENT,
    NODE_CONDITION,
    Announcement,
    NoticeState,
    ReclaimNotice,
    Report,
    Subject,
    SubjectKind,
)
from tests.supervisor.decide.decide_builders import POLICY, T0, notice, noticed, report

WITHDRAWN = Announcement.WITHDRAWN


def _after(*reports: Report) -> ReclaimNotice:
    """What is known after these reports, which come a second apart."""
    known: ReclaimNotice | None = None
    for seconds, each in enumerate(reports):
        known = apply_report(known, each, T0 + seconds, POLICY)
    assert known is not None
    return known


def _settled(known: ReclaimNotice, at: float, seen: Presence) -> NoticeState:
    return end_if_due(known, seen, T0 + at, POLICY).state


def test_a_first_report_is_the_first_episode() -> None:
    """The deadline is the receipt plus the seconds that were left: no other clock decides."""
    known = _after(report(left=120))
    assert (known.id, known.episode, known.state) == ("metadata/n1/uid-1", 1, NoticeState.ACTIVE)
    assert (known.first_seen, known.deadline, known.session, known.revision) == (T0, T0 + 120, 1, 1)


def test_a_drifting_deadline_updates_the_notice() -> None:
    """A later word on the deadline replaces the earlier one; it stays the same notice, first seen when it was."""
    known = _after(report(left=120), report(revision=2, left=90))
    assert (known.episode, known.first_seen, known.deadline, known.revision) == (1, T0, T0 + 91, 2)


@pytest.mark.parametrize(("session", "revision"), [(2, 2), (1, 9)])
def test_late_reports_change_nothing(session: int, revision: int) -> None:
    known = _after(report(session=2, revision=3))
    for announcement in Announcement:
        late = report(session=session, revision=revision, announcement=announcement, left=5)
        assert apply_report(known, late, T0 + 9, POLICY) is known


AHEAD, BACK = T0 + 600, T0 - 7200


@pytest.mark.parametrize("now", [AHEAD, BACK])
def test_the_seconds_left_of_a_repeated_report_count(now: float) -> None:
    """What an agent says again, by whatever clock the deadline was stored: it is the same notice."""
    known = _after(report(left=100))
    assert apply_report(known, report(left=88), now, POLICY) == replace(known, deadline=now + 88)


def test_a_repeated_report_that_is_right_is_no_news() -> None:
    known = _after(report(left=100))
    for left in (39.6, 40.0, 41.5, None):
        assert apply_report(known, report(left=left), T0 + 60, POLICY) is known
    assert apply_report(known, report(announcement=WITHDRAWN, left=5), T0 + 60, POLICY) is known


def test_a_repeated_report_that_was_quicker_on_its_way_is_nearer_to_the_truth() -> None:
    """A report only ever arrives late. A difference that small would not count the other way round."""
    known = _after(report(left=100))
    assert apply_report(known, report(left=38.5), T0 + 60, POLICY) == replace(known, deadline=T0 + 98.5)


@pytest.mark.parametrize("state", [NoticeState.EXPIRED, NoticeState.GONE])
def test_what_a_wrong_clock_has_ended_goes_on(state: NoticeState) -> None:
    """Its agent speaks, and says that there is time left: the same episode; without time left an end is an end."""
    known = replace(_after(report(left=100)), state=state, ended_at=AHEAD)
    goes_on = replace(known, state=NoticeState.ACTIVE, deadline=AHEAD + 88, ended_at=None)
    assert apply_report(known, report(left=88), AHEAD, POLICY) == goes_on
    assert apply_report(known, report(left=-1), AHEAD, POLICY) is known


def test_a_pod_that_is_gone_stays_gone() -> None:
    """Its uid never comes back, whatever is repeated of it; neither does what was withdrawn."""
    gone = replace(_after(report(left=100)), state=NoticeState.GONE, ended_at=AHEAD)
    pod = replace(gone, subject=Subject(SubjectKind.POD, "training/job-worker-0", "uid-1"))
    assert apply_report(pod, report(left=88), AHEAD, POLICY) is pod
    withdrawn = replace(gone, state=NoticeState.WITHDRAWN)
    assert apply_report(withdrawn, report(left=88), AHEAD, POLICY) is withdrawn


def test_a_usual_lead_counts_from_its_first_sight_over_sessions() -> None:
    """A source that names no instant says the same lead to each new agent; one that names an instant is believed."""
    known = _after(report(left=30), report(session=2, left=30))
    assert (known.deadline, known.session) == (T0 + 30, 2)
    sooner = _after(report(left=30), report(session=2, left=10))
    assert sooner.deadline == T0 + 11
    named = _after(report(left=30), replace(report(session=2, left=100), announced="2026-01-05T18:02:00Z"))
    assert named.deadline == T0 + 101


def test_a_new_session_outranks_every_revision() -> None:
    known = _after(report(session=1, revision=50, left=100), report(session=2, revision=1, left=50))
    assert (known.deadline, known.session, known.revision) == (T0 + 51, 2, 1)


def test_a_new_session_can_withdraw() -> None:
    """An agent that never announced the notice takes back what its predecessor did."""
    known = _after(report(session=1, revision=7), report(session=2, revision=1, announcement=WITHDRAWN))
    assert (known.state, known.ended_at, known.session, known.revision) == (NoticeState.WITHDRAWN, T0 + 1, 2, 1)


def test_withdrawing_what_is_unknown_is_nothing() -> None:
    assert apply_report(None, report(announcement=WITHDRAWN), T0, POLICY) is None


def test_an_announcement_after_the_end_is_a_new_episode() -> None:
    known = _after(report(), report(revision=2, announcement=WITHDRAWN), report(revision=3, left=60))
    assert (known.episode, known.state, known.first_seen) == (2, NoticeState.ACTIVE, T0 + 2)
    assert (known.deadline, known.ended_at) == (T0 + 62, None)


def test_an_announcement_that_a_withdrawal_overtook_is_late() -> None:
    """A second withdrawal is no new end, but it makes what is older than it late."""
    ended = _after(report(), report(revision=2, announcement=WITHDRAWN), report(revision=4, announcement=WITHDRAWN))
    assert (ended.state, ended.ended_at, ended.revision) == (NoticeState.WITHDRAWN, T0 + 1, 4)
    assert apply_report(ended, report(revision=3), T0 + 5, POLICY) is ended


def test_an_old_announcement_is_expired_on_arrival() -> None:
    known = _after(report(left=-POLICY.expire_seconds))
    assert (known.state, known.ended_at, known.holds) == (NoticeState.EXPIRED, T0, False)
    assert _after(report(left=-POLICY.expire_seconds + 1)).state is NoticeState.ACTIVE


def test_an_old_announcement_told_again_stays_expired() -> None:
    """The next session's word on the same passed deadline is not a new episode; a new deadline is."""
    known = _after(report(left=-400), report(session=2, left=-401))
    assert (known.state, known.episode, known.session) == (NoticeState.EXPIRED, 1, 2)
    again = _after(report(left=-400), report(session=2, left=100))
    assert (again.state, again.episode) == (NoticeState.ACTIVE, 2)


def test_a_silent_agent_after_the_deadline_means_gone() -> None:
    """Silence before the deadline means nothing; a grace after it the node is gone."""
    known = notice(1, left=100)
    assert _settled(known, 104.9, Presence.SILENT) is NoticeState.ACTIVE
    assert _settled(known, 105, Presence.SILENT) is NoticeState.GONE
    assert _settled(known, 105, Presence.PRESENT) is NoticeState.ACTIVE


def test_a_node_that_lives_on_was_not_reclaimed() -> None:
    known = notice(1, left=100)
    assert _settled(known, 399.9, Presence.PRESENT) is NoticeState.ACTIVE
    assert _settled(known, 400, Presence.PRESENT) is NoticeState.EXPIRED


def test_a_subject_that_is_seen_to_be_gone_is_gone() -> None:
    """Long before its deadline; but whoever sees it may be a moment behind whoever told of it."""
    known = notice(1, left=100)
    assert _settled(known, 4.9, Presence.GONE) is NoticeState.ACTIVE
    assert _settled(known, 5, Presence.GONE) is NoticeState.GONE


@pytest.mark.parametrize("seen", list(Presence))
@pytest.mark.parametrize("left", [100.0, 0.1, 77.7, None])
def test_settling_is_due_exactly_when_announced(left: float | None, seen: Presence) -> None:
    """Who waits until `ends_at` and settles then finds the notice ended, whatever the rounding."""
    known = notice(1, left=left, seen=T0 + 0.3)
    due = ends_at(known, seen, POLICY)
    assert end_if_due(known, seen, due, POLICY).ended_at == due


def test_ended_notices_do_not_age() -> None:
    for state in (NoticeState.WITHDRAWN, NoticeState.GONE, NoticeState.EXPIRED):
        known = notice(1, state=state)
        assert end_if_due(known, Presence.PRESENT, T0 + 1e6, POLICY) is known


def test_a_source_without_a_time_has_the_usual_lead() -> None:
    assert deadline_of(notice(1, left=None), POLICY) == T0 + POLICY.default_lead_seconds


def test_a_new_machine_under_an_old_name_ends_the_notice() -> None:
    """The noticed machine is gone when another one speaks; the same one speaking changes nothing."""
    known = notice(1)
    assert replaced(known, "uid-1", T0 + 9) is known
    assert replaced(known, "another", T0 + 9) == replace(known, state=NoticeState.GONE, ended_at=T0 + 9)


def test_only_what_holds_keeps_a_host_from_use() -> None:
    """Announced and gone hosts must not be used; withdrawn and expired notices bind nobody."""
    states = [notice(number, state=state) for number, state in enumerate(NoticeState, start=1)]
    assert noticed_hosts(states, NodeIdentities(), POLICY) == noticed(
        *(each for each in states if each.state in (NoticeState.ACTIVE, NoticeState.GONE))
    )


def test_a_notice_binds_its_own_machine_only() -> None:
    """A connected machine with another uid is free; a host nobody speaks for is bound."""
    known = notice(1)
    assert noticed_hosts([known], NodeIdentities({Host("n1"): "another"}), POLICY) == {}
    assert noticed_hosts([known], NodeIdentities({Host("n1"): "uid-1"}), POLICY) == noticed(known)
    assert noticed_hosts([known], NodeIdentities(), POLICY) == noticed(known)


@pytest.mark.parametrize("backwards", [False, True])
def test_the_most_urgent_source_speaks_for_a_host(backwards: bool) -> None:  # noqa: FBT001  # pytest names it.
    urgent = replace(notice(1, left=50), source=Source("events"))
    notices = [notice(1, left=100), urgent]
    assert noticed_hosts(reversed(notices) if backwards else notices, NodeIdentities(), POLICY) == {Host("n1"): urgent}


def test_a_pods_notice_is_no_hosts() -> None:
    pod = replace(notice(1), subject=Subject(SubjectKind.POD, "n1", "uid-1"))
    assert noticed_hosts([pod], NodeIdentities(), POLICY) == {}


def _from_api(source: Source = NODE_CONDITION) -> ReclaimNotice:
    """What the API server says of n1's node object."""
    return replace(notice(1), source=source, subject=Subject(SubjectKind.NODE, "n1", "object-1"))


@pytest.mark.parametrize("source", [NODE_CONDITION, EVENT])
def test_each_source_has_its_own_identity_of_a_node(source: Source) -> None:
    """The API server's notices are about the node's object, agents' about its machine: either binds by its own."""
    both = {Host("n1"): "uid-1"}, {Host("n1"): "object-1"}
    for known in (_from_api(source), notice(1)):
        assert noticed_hosts([known], NodeIdentities(*both), POLICY) == noticed(known)
        assert noticed_hosts([known], NodeIdentities(both[0]), POLICY) == noticed(known)
        assert noticed_hosts([known], NodeIdentities({}, both[1]), POLICY) == noticed(known)


def test_a_node_made_again_under_an_old_name_is_another_one() -> None:
    """What was said of the earlier object does not bind it, though nobody speaks for its machine yet."""
    assert noticed_hosts([_from_api()], NodeIdentities({}, {Host("n1"): "object-2"}), POLICY) == {}


@pytest.mark.parametrize("source", [NODE_CONDITION, EVENT])
def test_a_clear_answer_of_the_node_itself_outranks_what_others_say(source: Source) -> None:
    """A node problem detector also announces a reclaim when it loses its network; the node's own notice still binds."""
    today = NodeIdentities({Host("n1"): "uid-1"}, {Host("n1"): "object-1"}, {Host("n1")})
    assert noticed_hosts([_from_api(source)], today, POLICY) == {}
    assert noticed_hosts([_from_api(source), notice(1)], today, POLICY) == noticed(notice(1))
    assert noticed_hosts([_from_api(source)], replace(today, clear={Host("n2")}), POLICY) == noticed(_from_api(source))
