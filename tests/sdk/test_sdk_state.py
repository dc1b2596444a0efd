"""State transitions of the library, without I/O."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeai.elastic.messages import Directive, DirectiveKind, DirectiveLine, MalformedDirective, Notice, parse_line
from kubeai.elastic.monitor import ReceivedState, advance, apply

from tests.sdk.sdk_lines import MESSAGE

FINAL = (DirectiveKind.LEAVE, DirectiveKind.STOP)


def line(  # noqa: PLR0913 - the fields of a line
    kind: str = "RUN",
    generation: int = 1,
    act_in: float = 0.0,
    *,
    notice: Notice | None = None,
    seconds_left: float | None = None,
    release: bool = False,
) -> DirectiveLine:
    directive = Directive(DirectiveKind(kind), "job", 1, generation, "a reason")
    return DirectiveLine(directive, act_in, seconds_left, notice, release)


@dataclass(frozen=True)
class Sent:
    at: float
    line: DirectiveLine


def kind_by_definition(sent: list[Sent], now: float) -> DirectiveKind:
    """The contract in other words: the first LEAVE or STOP that no later line came before, else the last in effect."""
    in_effect = DirectiveKind.RUN
    for position, this in enumerate(sent):
        due = this.at + this.line.act_in
        replaced = position + 1 < len(sent) and sent[position + 1].at < due
        if due <= now and not replaced and in_effect not in FINAL:
            in_effect = this.line.directive.kind
    return in_effect


@pytest.mark.parametrize("kinds", list(itertools.product(DirectiveKind, repeat=3)))
def test_every_sequence_of_three_lines_has_the_effect_the_contract_names(kinds: tuple[DirectiveKind, ...]) -> None:
    """All kinds, at once or after 1.5 s, received at 0, 1 and 2 s, looked at before and after each moment."""
    for delays in itertools.product((0.0, 1.5, 0.5), repeat=3):
        sent = [Sent(float(at), line(kind, at, delays[at])) for at, kind in enumerate(kinds)]
        state = ReceivedState()
        for now in (0.0, 0.25, 0.75, 1.0, 1.25, 1.75, 2.0, 2.25, 3.0, 4.0):
            state = advance(state, now)
            for this in sent:
                if this.at == now:
                    state = apply(state, this.line, now)
            heard = [this for this in sent if this.at <= now]
            assert state.directive.kind is kind_by_definition(heard, now), (kinds, delays, now)


@given(
    st.lists(
        st.tuples(
            st.floats(0, 5),
            st.sampled_from(sorted(DirectiveKind)),
            st.floats(0, 10),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_what_is_final_stays_final(steps: list[tuple[float, DirectiveKind, float, bool]]) -> None:
    """Whatever comes after a LEAVE or STOP took effect, the directive is the same object for ever."""
    state, now, final = ReceivedState(), 0.0, None
    for wait, kind, act_in, release in steps:
        now += wait
        state = apply(advance(state, now), line(kind, 1, act_in, release=release), now)
        assert state.release is release
        if final is not None:
            assert state.directive is final
        elif state.directive.is_final:
            final = state.directive


def test_a_pending_directive_leaves_the_present_one_in_effect() -> None:
    """CHECKPOINT goes on being asked for while a LEAVE is yet to come."""
    state = apply(apply(ReceivedState(), line("CHECKPOINT", 1), 0), line("LEAVE", 2, act_in=10), 1)
    assert state.directive.kind is DirectiveKind.CHECKPOINT
    assert advance(state, 10.9).directive.kind is DirectiveKind.CHECKPOINT
    assert advance(state, 11).directive.kind is DirectiveKind.LEAVE


def test_a_final_process_still_hears_notices_and_its_release_and_nothing_else() -> None:
    notice = Notice("a/1", "a", "node", 5.0)
    stopped = apply(ReceivedState(), line("STOP", 3, seconds_left=50), 0)
    later = apply(stopped, line("RUN", 4, notice=notice, seconds_left=1, release=True), 10)
    assert later.directive == stopped.directive
    assert later.pending is None
    assert later.seconds_left(10) == 40
    assert later.release
    assert later.notice is not None
    assert later.notice_at(12) == Notice("a/1", "a", "node", 3.0)


def test_seconds_are_counted_down_to_zero_and_not_below() -> None:
    state = apply(ReceivedState(), line(notice=Notice("a", "a", "n", 3.0), seconds_left=2), 100)
    assert [state.seconds_left(now) for now in (100, 101.5, 103)] == [2, 0.5, 0]
    notices = [state.notice_at(now) for now in (100, 102, 104)]
    assert [notice and notice.seconds_left for notice in notices] == [3, 1, 0]


def test_without_seconds_of_the_job_those_of_the_notice_count() -> None:
    """A source that gives the deadline of one host gives one of the job."""
    assert apply(ReceivedState(), line(notice=Notice("a", "a", "n", 3.0)), 0).seconds_left(1) == 2
    assert apply(ReceivedState(), line(notice=Notice("a", "a", "n", None)), 0).seconds_left(1) is None
    assert ReceivedState().seconds_left(0) is None


def test_a_withdrawn_notice_is_gone_with_the_line_that_no_longer_has_it() -> None:
    state = apply(ReceivedState(), line(notice=Notice("a", "a", "n", 3.0), seconds_left=3), 0)
    state = apply(state, line(), 1)
    assert state.notice is None
    assert state.seconds_left(1) is None


@pytest.mark.parametrize("kind", ["CHECKPOINT", "LEAVE", "STOP"])
def test_a_checkpoint_is_wanted_once_a_generation(kind: str) -> None:
    """Until it is said to be saved, and again for the next decision."""
    assert not ReceivedState().wants_checkpoint
    asked = apply(ReceivedState(), line(kind, 5), 0)
    assert asked.wants_checkpoint
    saved = ReceivedState(directive=asked.directive, saved_for=5)
    assert not saved.wants_checkpoint
    assert not apply(saved, line(kind, 5), 1).wants_checkpoint
    assert apply(saved, line(kind, 6), 1).wants_checkpoint is (kind == "CHECKPOINT")
    assert not apply(ReceivedState(), line("RUN", 5), 0).wants_checkpoint


def test_a_message_is_read_with_all_its_fields() -> None:
    read = parse_line({**MESSAGE, "invented": {"later": True}})
    notice = Notice("aliyun/i-1", "aliyun", "node-1", 29.5, own=True)
    directive = Directive(DirectiveKind.STOP, "job", 2, 7, "too few workers would remain")
    assert read == DirectiveLine(directive, 1.5, 30.0, notice, release=False, max_wait=600.0)


@pytest.mark.parametrize("field", ["seconds_left", "notice", "release", "max_wait"])
def test_what_may_be_left_out_is_neutral(field: str) -> None:
    kept = {name: value for name, value in MESSAGE.items() if name != field}
    neutral = {"seconds_left": None, "notice": None, "release": False, "max_wait": None}[field]
    assert parse_line(kept) == parse_line({**MESSAGE, field: neutral})


@pytest.mark.parametrize("field", ["directive", "act_in", "job", "run", "generation", "reason"])
def test_a_message_without_a_field_it_must_have_is_malformed(field: str) -> None:
    with pytest.raises(MalformedDirective):
        parse_line({name: value for name, value in MESSAGE.items() if name != field})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("directive", "PAUSE"),
        ("directive", ["STOP"]),
        ("act_in", None),
        ("act_in", "1"),
        ("act_in", True),
        ("act_in", float("nan")),
        ("act_in", float("inf")),
        ("seconds_left", float("nan")),
        ("run", "1"),
        ("run", 1.0),
        ("generation", True),
        ("reason", None),
        ("job", 1),
        ("release", 1),
        ("release", "yes"),
        ("notice", "none"),
        ("notice", []),
        ("notice", {"id": "a"}),
        ("notice", {"id": 1, "source": "a", "host": "h"}),
        ("notice", {"id": "a", "source": "a", "host": None}),
    ],
)
def test_a_field_of_the_wrong_kind_makes_the_message_malformed(field: str, value: object) -> None:
    with pytest.raises(MalformedDirective):
        parse_line({**MESSAGE, field: value})


def test_a_negative_duration_is_now() -> None:
    read = parse_line({**MESSAGE, "act_in": -1, "seconds_left": -3})
    assert apply(ReceivedState(), read, 10).directive.kind is DirectiveKind.STOP
    assert apply(ReceivedState(), read, 10).seconds_left(10) == 0
