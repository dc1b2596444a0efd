import pytest

from simulator.cloud.trace import DEFAULT_TRACE, Change, Moment, Node, TraceError, TraceRecord, cut, load, parse


def test_the_carried_trace_has_what_its_readme_says() -> None:
    records = load(DEFAULT_TRACE)
    removed = [record for record in records if record.change is Change.REMOVE]
    assert (len(records) - len(removed), len(removed)) == (79, 74)
    assert len({record.at for record in removed}) == 48


def test_windows_line_ends_and_empty_lines_do_not_matter() -> None:
    assert parse(["0,add,a\r", "", "1500,remove,a\n"]) == [
        TraceRecord(0.0, Change.ADD, Node("a")),
        TraceRecord(1.5, Change.REMOVE, Node("a")),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1000,add", "expected `milliseconds,add|remove,node`"),
        ("soon,add,b", "whole number"),
        ("-5,add,b", "whole number"),
        ("1000,vanish,b", "expected `add` or `remove`"),
        ("1000,add, ", "not a valid node name"),
        ("1000,add,../b", "not a valid node name"),
        ("400,add,b", "time goes back"),
        ("1000,add,a", "although it exists"),
        ("1000,remove,b", "although it does not exist"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(line: str, complaint: str) -> None:
    """Whoever edits a trace by hand is told which line is wrong, and how."""
    with pytest.raises(TraceError, match=r"^line 3: .*") as error:
        parse(["500,add,a", "", line])
    assert complaint in str(error.value)


def test_a_file_that_is_not_there_is_a_trace_error() -> None:
    with pytest.raises(TraceError, match="cannot read"):
        load(DEFAULT_TRACE.with_name("none.csv"))


def test_a_cut_starts_with_what_is_there_and_groups_what_goes_together() -> None:
    """Nodes alive at the start are present at time 0; the removals of one instant are one moment."""
    records = parse(
        ["0,add,a", "0,add,b", "1000,add,c", "2000,remove,a", "3000,remove,b", "3000,remove,c", "4000,add,d"]
    )
    piece = cut(records, 2.0, 3.5)
    assert piece.present == ("b", "c")
    assert piece.moments == (Moment(1.0, (), (Node("b"), Node("c"))),)
    assert piece.seconds == 1.5


def test_a_cut_ends_with_what_happens_at_its_end() -> None:
    """The end of a cut is part of it, its start is not: cuts one after another repeat nothing."""
    records = parse(["0,add,a", "1000,add,b", "2000,add,c"])
    assert [moment.at for moment in cut(records, 1.0, 2.0).moments] == [1.0]


@pytest.mark.parametrize(("start", "end"), [(5.0, 5.0), (6.0, 5.0), (-1.0, 5.0)])
def test_a_cut_without_length_is_refused(start: float, end: float) -> None:
    with pytest.raises(TraceError, match="is empty"):
        cut(parse(["0,add,a"]), start, end)


def test_a_cut_without_any_node_is_refused() -> None:
    with pytest.raises(TraceError, match="no node"):
        cut(parse(["0,add,a", "1000,remove,a"]), 2.0, 3.0)
