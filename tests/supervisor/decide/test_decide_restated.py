"""Signals that the cluster repeats change notices once."""

from dataclasses import replace

import pytest

from supervisor.decide.notices import Signal, apply_signal
from supervisor.domain.ids import Source
from supervisor.domain.notice import Announcement, NoticeState, ReclaimNotice, Subject, SubjectKind
from tests.supervisor.decide.decide_builders import POLICY, T0

PRESENT = T0 + 7200
"""The cluster's clock is two hours ahead of ours."""

POD = Subject(SubjectKind.POD, "ns/pod", "uid")


def _word(revision: int = 10, left: float | None = 180.0, *, session: int = 0, message: str = "said") -> Signal:
    return Signal(
        source=Source("event"),
        subject=POD,
        announcement=Announcement.ACTIVE,
        session=session,
        revision=revision,
        deadline=None if left is None else PRESENT + left,
        announced="" if left is None else f"{left} after",
        lead=300.0,
        message=message,
    )


def _withdrawal(revision: int = 11) -> Signal:
    return Signal(source=Source("event"), subject=POD, announcement=Announcement.WITHDRAWN, revision=revision)


def _after(*words: Signal) -> ReclaimNotice | None:
    """What is known after these words, which come a second apart."""
    known: ReclaimNotice | None = None
    for seconds, each in enumerate(words):
        known = apply_signal(known, each, T0 + seconds, PRESENT + seconds, POLICY)
    return known


def _known(*words: Signal) -> ReclaimNotice:
    known = _after(*words)
    assert known is not None
    return known


def test_the_deadline_counts_by_our_clock() -> None:
    known = _known(_word(left=180))
    assert (known.id, known.episode, known.state) == ("event/ns/pod/uid", 1, NoticeState.ACTIVE)
    assert (known.first_seen, known.deadline, known.announced) == (T0, T0 + 180, "180 after")


def test_more_than_the_lead_is_never_left() -> None:
    """A reporter whose clock is hours ahead does not put the end off."""
    assert _known(_word(left=5000)).deadline == T0 + 300


@pytest.mark.parametrize("state", list(NoticeState))
def test_the_same_word_again_changes_nothing(state: NoticeState) -> None:
    """Not with a later version of the object that holds it, not after the end."""
    known = replace(_known(_word()), state=state, ended_at=None if state is NoticeState.ACTIVE else T0 + 5)
    assert apply_signal(known, _word(), T0 + 9, PRESENT + 9, POLICY) is known
    later = apply_signal(known, _word(revision=99), T0 + 9, PRESENT + 9, POLICY)
    if state is NoticeState.WITHDRAWN:  # It was taken back in between: this is said anew.
        assert later is not None
        assert (later.episode, later.state) == (2, NoticeState.ACTIVE)
    else:
        assert later is known


def test_a_word_without_a_time_is_not_news_after_the_end() -> None:
    known = replace(_known(_word(left=None)), state=NoticeState.EXPIRED, ended_at=T0 + 700)
    assert apply_signal(known, _word(revision=50, left=None), T0 + 800, PRESENT + 800, POLICY) is known


def test_a_later_word_moves_the_deadline() -> None:
    """An Event that is repeated says when anew; the notice stays the same."""
    known = _known(_word(left=100), _word(revision=11, left=160))
    assert (known.episode, known.first_seen, known.deadline, known.revision) == (1, T0, T0 + 160, 11)


def test_an_earlier_word_loses() -> None:
    known = _known(_word(revision=10, left=100, session=5))
    for earlier in (_word(revision=9, left=160, session=5), _word(revision=99, left=160, session=4)):
        assert apply_signal(known, earlier, T0 + 1, PRESENT + 1, POLICY) is known


def test_an_old_word_is_expired_on_arrival() -> None:
    """One whose subject should have been gone long before anybody looked is history."""
    known = _known(_word(left=-POLICY.expire_seconds - 1))
    assert (known.state, known.ended_at) == (NoticeState.EXPIRED, T0)
    assert _known(_word(left=-1)).state is NoticeState.ACTIVE


def test_a_withdrawal_ends_what_holds_alone() -> None:
    """Nothing is stored for the many objects that say of themselves that they will not be reclaimed."""
    assert _after(_withdrawal()) is None
    known = _known(_word(), _withdrawal())
    assert (known.state, known.revision) == (NoticeState.WITHDRAWN, 11)
    assert apply_signal(known, _withdrawal(12), T0 + 2, PRESENT + 2, POLICY) is known
    expired = replace(_known(_word()), state=NoticeState.EXPIRED, ended_at=T0 + 1)
    assert apply_signal(expired, _withdrawal(), T0 + 2, PRESENT + 2, POLICY) is expired


def test_an_announcement_after_the_withdrawal_is_a_new_episode() -> None:
    known = _known(_word(), _withdrawal(), _word(revision=12))
    assert (known.episode, known.state) == (2, NoticeState.ACTIVE)


def test_another_announcement_after_the_end_is_a_new_episode() -> None:
    """An instance that was stopped and started is reclaimed again under its old id."""
    known = replace(_known(_word(left=100)), state=NoticeState.EXPIRED, ended_at=T0 + 500)
    again = apply_signal(known, _word(revision=40, left=900), T0 + 600, PRESENT + 600, POLICY)
    assert again is not None
    assert (again.episode, again.state, again.deadline) == (2, NoticeState.ACTIVE, T0 + 900)
