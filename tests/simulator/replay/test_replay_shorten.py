from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cloud.shorten import shortened, topped_up
from simulator.cloud.trace import DEFAULT_TRACE, Moment, Node, TraceCut, TraceError, cut, load


def moment(at: float, added: str = "", removed: str = "") -> Moment:
    return Moment(at, tuple(map(Node, added)), tuple(map(Node, removed)))


@st.composite
def cuts(draw: st.DrawFn) -> TraceCut:
    gaps = draw(st.lists(st.integers(1, 500), max_size=20))
    ends = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    moments = tuple(Moment(at, (Node(f"n{number}"),), ()) for number, at in enumerate(ends))
    return TraceCut((Node("a"),), moments, sum(gaps) + draw(st.integers(0, 500)))


def gaps_of(piece: TraceCut) -> list[float]:
    """The stretches in which nothing happens, the one before the end among them."""
    return [later - sooner for sooner, later in pairwise([0.0, *(one.at for one in piece.moments), piece.seconds])]


@given(cuts(), st.floats(0.5, 600))
def test_long_stretches_are_cut_and_nothing_else_changes(piece: TraceCut, longest: float) -> None:
    """Every stretch is the shorter of itself and the limit; what happens, and in which order, stays."""
    short = shortened(piece, longest)
    assert gaps_of(short) == pytest.approx([min(gap, longest) for gap in gaps_of(piece)])
    assert [(one.added, one.removed) for one in short.moments] == [(one.added, one.removed) for one in piece.moments]
    assert short.present == piece.present


@given(cuts(), st.floats(1, 600))
def test_a_trace_without_long_stretches_stays_as_it_is(piece: TraceCut, longest: float) -> None:
    once = shortened(piece, longest)
    assert gaps_of(shortened(once, longest)) == pytest.approx(gaps_of(once))


def test_the_whole_recording_keeps_its_events_and_becomes_short() -> None:
    """153 events over ten hours fit into less than 100 minutes of the trace when no stretch is longer than 60 s."""
    records = load(DEFAULT_TRACE)
    short = shortened(cut(records, 0, records[-1].at), 60)
    assert sum(len(one.added) + len(one.removed) for one in short.moments) == 153
    assert short.seconds <= 60 * len(short.moments)


@pytest.mark.parametrize("longest", [0.0, -1.0])
def test_stretches_cannot_be_cut_to_nothing(longest: float) -> None:
    """Two groups at one instant would be one group."""
    with pytest.raises(TraceError, match="cannot cut"):
        shortened(TraceCut((), (), 1.0), longest)


def test_missing_nodes_arrive_after_the_end() -> None:
    """A trace that ends with too few nodes gets the missing ones, named as made up; one with enough gets none."""
    piece = TraceCut((Node("a"), Node("b")), (moment(5, removed="a"), moment(6, added="c", removed="b")), 10)
    full = topped_up(piece, 3, after=4)
    assert full.moments == (*piece.moments, Moment(14, (Node("made-up1"), Node("made-up2")), ()))
    assert full.seconds == 18
    assert topped_up(piece, 1, after=4) is piece
