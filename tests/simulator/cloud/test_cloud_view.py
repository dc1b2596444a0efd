import io

from rich.console import Console, RenderableType

from simulator.events import JobEvent, JobEventKind
from simulator.guarantees import GuaranteeCosts
from simulator.outcome import ReplayOutcome
from simulator.report import MAX_FINDINGS, report
from simulator.status import ReadJobStatus, ReadStatus
from simulator.verdict import Figures, GroupMeaning, Latency, NoticeGroup, ReplayVerdict
from simulator.view import NodeView, ViewSnapshot, changes, nodes_of, screen, sentences, settled


def event(t: float, kind: JobEventKind, **fields: object) -> JobEvent:
    return JobEvent(t, kind, fields)


def added(t: float, node: str) -> JobEvent:
    return event(t, JobEventKind.NODE_ADDED, node=node)


def shown(t: float, node: str, group: str = "g", *, synthetic: bool = False) -> JobEvent:
    return event(t, JobEventKind.NOTICE_SHOWN, node=node, group=group, lead=10.0, deadline=t + 10, synthetic=synthetic)


def gone(t: float, node: str, *, announced: bool = True) -> JobEvent:
    return event(t, JobEventKind.NODE_GONE, node=node, announced=announced)


def snapshot(*events: JobEvent, phase: str = "Running", reason: str = "All is well.") -> ViewSnapshot:
    return ViewSnapshot(5.0, status=ReadStatus(jobs=[ReadJobStatus("demo", phase, reason)]), events=events)


def written(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def figures(*, equal: bool = True) -> Figures:
    """The figures of a run with a shrink and a stop."""
    return Figures(
        notices=3,
        groups=(
            NoticeGroup("g1", GroupMeaning.SHRINK, ("a", "b"), 1, (1.5, 1.5)),
            NoticeGroup("g2", GroupMeaning.STOP, ("c",), 0, ()),
        ),
        notice_to_process=Latency.of([0.25, 0.5, 0.75]),
        notice_to_flag=Latency.of([]),
        notice_to_host_list=Latency.of([1.5, 1.5]),
        steps_applied=100,
        steps_lost=0,
        steps_skipped=0,
        steps_after_stop=0,
        false_stops=0,
        unmet=0,
        suspensions=1,
        resumes=1,
        hosts_blacklisted=0,
        finished=True,
        parameters_equal=equal,
    )


def outcome(verdict: ReplayVerdict | None, *wrong: str, late: float = 0.0) -> ReplayOutcome:
    return ReplayOutcome("demo", verdict, wrong, GuaranteeCosts(0.1, 0.01), 10.0, late, 60.0)


def test_nodes_are_what_the_truth_says() -> None:
    """Noticed nodes have their seconds, withdrawn ones none, gone ones are not there."""
    withdrawn = event(3, JobEventKind.NOTICE_WITHDRAWN, node="c")
    events = [
        *(added(0, node) for node in "abcd"),
        shown(1, "b"),
        shown(1, "c", synthetic=True),
        withdrawn,
        gone(4, "d"),
    ]
    workers = {"a": 1, "d": 1}
    assert nodes_of(events, 4.0, lambda node: workers.get(node, 0), frozenset("b")) == (
        NodeView("a", workers=1),
        NodeView("b", seconds_left=7.0, excluded=True),
        NodeView("c"),
    )


def test_a_deadline_that_has_passed_has_no_negative_seconds() -> None:
    (node,) = nodes_of([added(0, "a"), shown(0, "a")], 12.0, lambda _: 0, frozenset())
    assert node.seconds_left == 0.0


def test_what_comes_together_is_one_sentence() -> None:
    """One line for a group, another for the next group or kind, even at the same moment."""
    events = [
        shown(1.0, "a"),
        shown(1.1, "b"),
        shown(1.15, "c", "other", synthetic=True),
        gone(1.2, "d", announced=False),
    ]
    assert list(sentences(events)) == [
        (1.0, "noticed: a, b, gone in 10 s"),
        (1.15, "noticed (synthetic): c, gone in 10 s"),
        (1.2, "gone: d (unannounced)"),
    ]


def test_what_comes_apart_is_two_sentences() -> None:
    assert [words for _, words in sentences([gone(1, "a"), gone(2, "b")])] == ["gone: a", "gone: b"]


def test_a_group_is_not_told_before_it_can_be_whole() -> None:
    """As long as more may come, nothing of it is told; what stands apart is told at once."""
    events = [gone(1.0, "x"), shown(2.0, "a"), shown(2.2, "b")]
    assert settled(events, 2.3) == events[:1]
    assert settled(events, 2.5) == events


def test_plain_output_tells_what_is_new_and_nothing_twice() -> None:
    """A change of phase or reason and new events are a line each; without news there is none."""
    before, now = snapshot(), snapshot(shown(1, "a"), phase="Stopping", reason="Too few.")
    assert list(changes(before, now)) == ["  1.0 s  noticed: a, gone in 10 s", "  5.0 s  demo: Stopping: Too few."]
    assert list(changes(now, now)) == []


def test_what_was_there_before_the_clock_started_is_no_news() -> None:
    now = ViewSnapshot(5.0, events=(added(1, "a"), added(3, "b")), started_at=2.0)
    assert list(changes(ViewSnapshot(0.0, started_at=2.0), now)) == ["  1.0 s  arrived: b"]


def test_a_supervisor_that_stops_answering_is_told_once() -> None:
    silent = ViewSnapshot(5.0)
    assert list(changes(snapshot(), silent)) == ["  5.0 s  the supervisor does not answer"]
    assert list(changes(silent, silent)) == []


def test_the_screen_shows_nodes_notices_and_the_reason() -> None:
    nodes = (NodeView("a", workers=1), NodeView("b", seconds_left=7.25, synthetic=True, excluded=True))
    text = written(
        screen(ViewSnapshot(5.0, nodes, snapshot(phase="Suspended", reason="Too few.").status, (gone(3, "c"),)))
    )
    for words in ("Suspended", "Too few.", "● a", "○ b", "synthetic  7.2 s", "excluded", "3.0 s  gone: c"):
        assert words in text


def test_the_screen_says_when_the_supervisor_does_not_answer() -> None:
    assert "does not answer" in written(screen(ViewSnapshot(1.0)))
    assert "no job yet" in written(screen(ViewSnapshot(1.0, status=ReadStatus())))


def test_the_table_has_the_figures() -> None:
    """Latencies, changes per group and the verdict; what did not happen is a dash."""
    text = written(report(outcome(ReplayVerdict(figures(), ()))))
    for words in ("3 in groups of 2, 1", "0.50 s / 0.75 s (n=3)", "1 (and 1 meant STOP)", "1 / 1", "yes", "passed"):
        assert words in text
    assert "FAILED" not in text


def test_a_failed_verdict_says_why_but_not_endlessly() -> None:
    wrong = tuple(f"step lost: step {step}" for step in range(MAX_FINDINGS + 3))
    text = written(report(outcome(ReplayVerdict(figures(equal=False), ()), *wrong)))
    for words in ("FAILED", "NO", "step lost: step 0", "and 3 more"):
        assert words in text
    assert "passed" not in text


def test_a_demo_that_broke_off_has_no_figures() -> None:
    """The reason stands below the verdict, and a machine that was late is named."""
    text = written(report(outcome(None, "the supervisor ended", late=3.0)))
    for words in ("FAILED", "the supervisor ended", "overloaded, up to 3.0 s late"):
        assert words in text
    assert "notices" not in text
