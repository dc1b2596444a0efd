"""Directives that reach a process, and its reports of rank, checkpoints and notices."""

from pathlib import Path

from kubeai.elastic.messages import Directive, DirectiveKind, DirectiveLine, described
from kubeai.elastic.monitor import Monitor
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import TRAINING, Start
from tests.testkit.waiting import wait_until


def test_a_changed_rank_is_reported(supervisor: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    script = start(
        """
        import os, pathlib, time
        import kubeai.elastic as kubeai
        rank = pathlib.Path(os.environ["KUBEAI_DIR"], "rank")
        kubeai.init(rank=lambda: int(rank.read_text()) if rank.exists() else None)
        while kubeai.check_alive():
            time.sleep(0.005)
        """,
        KUBEAI_EXIT_HOLD="0",
    )
    assert supervisor.wait_for(lambda: supervisor.hellos)[0].body["rank"] is None
    supervisor.refuse(503, "not_serving", path="/v1/processes/report")
    (tmp_path / "rank").write_text("2")
    supervisor.accept()
    report = supervisor.wait_for(lambda: supervisor.reports_of("rank"))[0]
    assert (report["rank"], report["run"], report["generation"]) == (2, 1, 0)
    supervisor.drop()
    assert supervisor.wait_for(lambda: supervisor.hellos[1:])[0].body["rank"] == 2
    (tmp_path / "rank").write_text("0")
    supervisor.wait_for(lambda: len(supervisor.reports_of("rank")) == 2)
    supervisor.direct(0, directive="STOP")
    assert script.end() == 0
    assert [report["rank"] for report in supervisor.reports_of("rank")] == [2, 0]
    hellos, reports = [hello.body for hello in supervisor.hellos], supervisor.reports_of("rank")
    assert 0 < hellos[0]["attempt"] < hellos[1]["attempt"]
    assert hellos[0]["revision"] < reports[0]["revision"] == hellos[1]["revision"] < reports[1]["revision"]


def test_only_a_step_or_a_change_that_takes_much_longer_or_less_is_news() -> None:
    """Each change of them is a report of every rank."""
    monitor, known = Monitor(), list[tuple[float | None, float | None]]()
    for seconds in (None, 1.0, 1.2, 0.8, 1.6, None, 1.3, 1.0):
        monitor.time.change_seconds = seconds
        monitor.learn_pace(seconds)
        known.append((monitor.member.step_seconds, monitor.member.change_seconds))
    assert known == [(each, each) for each in (None, 1.0, 1.0, 1.0, 1.6, 1.6, 1.6, 1.0)]


def _answers(monitor: Monitor) -> tuple[str, int] | None:
    """The kind and the generation of the report that waits to be sent."""
    report = monitor.outcome
    return None if report is None else (report.kind.value, report.generation)


def _stopped(step: int | None) -> Monitor:
    """A process that was told to stop by generation 7, and that knows of it since `step`."""
    monitor = Monitor()
    stop = Directive(DirectiveKind.STOP, job="job", run=1, generation=7, reason="a test")
    monitor.receive(DirectiveLine(stop, 0.0, None, None, release=False))
    if step is not None:
        monitor.stop_at(step)
    return monitor


def test_only_the_checkpoint_of_the_step_at_which_a_process_stops_answers() -> None:
    """An older one is reported as a checkpoint, and one without a step is believed."""
    for step, generation in ((76, 0), (77, 7), (78, 7), (None, 7)):
        monitor = _stopped(77)
        assert monitor.checkpoint_saved(step, 1.0) is (generation == 7)
        assert _answers(monitor) == ("saved", generation)
    assert _stopped(None).checkpoint_saved(76, 1.0)


def test_a_state_in_memory_answers_a_stop_and_is_no_checkpoint() -> None:
    """The step of the newest checkpoint, which a hello repeats, remains the one before."""
    monitor = _stopped(77)
    monitor.state_kept(77, 0.5)
    assert _answers(monitor) == ("kept", 7)
    assert (monitor.step, monitor.state.wants_checkpoint, monitor.left().error) == (None, False, "")


def test_an_older_outcome_replaces_no_answer_that_waits_to_be_sent() -> None:
    monitor = _stopped(77)
    monitor.checkpoint_saved(77, 1.0)
    monitor.checkpoint_saved(40, 1.0)
    monitor.checkpoint_failed(50, "a full disk")
    assert _answers(monitor) == ("saved", 7)
    assert (monitor.step, monitor.left().error) == (77, "")


def test_a_save_that_fails_is_told_again_at_the_exit_unless_another_one_succeeds() -> None:
    monitor = _stopped(77)
    monitor.checkpoint_failed(77, "a full disk")
    assert _answers(monitor) == ("failed", 7)
    assert (monitor.left().error, monitor.left().step) == ("a full disk", 77)
    monitor.checkpoint_saved(77, 1.0)
    assert (_answers(monitor), monitor.left().error) == (("saved", 7), "")


def test_an_error_is_told_on_one_short_line() -> None:
    assert described(OSError(28, "No space left\non device")) == "OSError: [Errno 28] No space left on device"
    assert described(ValueError()) == "ValueError"
    assert described("") == "no reason was given"
    assert len(described("x" * 5000)) == 300


def test_a_rank_function_that_hangs_does_not_hold_up_the_flag(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(
        TRAINING.replace("kubeai.init()", "kubeai.init(rank=lambda: time.sleep(60))"),
        KUBEAI_EXIT_HOLD="0.5",
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP", act_in=0.1)
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    assert script.end() == 255


def test_a_saved_checkpoint_is_reported_until_it_is_confirmed(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(
        """
        import time
        import kubeai.elastic as kubeai
        kubeai.init(rank=lambda: 0)
        step, saved, slowest = 0, [], 0
        while kubeai.check_alive():
            step += 1
            if kubeai.should_checkpoint():
                began = time.perf_counter()
                kubeai.checkpoint_saved(step=step, seconds=0.25)
                slowest = max(slowest, time.perf_counter() - began)
                saved.append(kubeai.directive().generation)
                print("saved for", saved[-1])
            time.sleep(0.005)
        print(saved, slowest < 1)
        """,
        KUBEAI_EXIT_HOLD="0.5",
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.refuse(503, "not_serving", path="/v1/processes/report")
    supervisor.direct(directive="CHECKPOINT", generation=3)
    script.wait_for_line("saved for 3")
    supervisor.accept()
    report = supervisor.wait_for(lambda: supervisor.reports_of("saved"))[0]
    assert (report["generation"], report["rank"]) == (3, 0)
    assert report["step"] > 0
    assert report["checkpoint_seconds"] == 0.25
    supervisor.direct(directive="RUN", generation=4)
    supervisor.direct(directive="CHECKPOINT", generation=5)
    supervisor.wait_for(lambda: len(supervisor.reports_of("saved")) == 2)
    supervisor.direct(directive="LEAVE", generation=6)
    assert script.end() == 0
    assert "[3, 5] True" in script.output()
    assert supervisor.reports_of("left")[0]["step"] == supervisor.reports_of("saved")[1]["step"]


def test_a_checkpoint_is_reported_before_the_exit_that_follows_it(supervisor: FakeSupervisor, start: Start) -> None:
    """Although the thread that reports checkpoints is busy: the supervisor takes the first report for the answer."""
    script = start(
        """
        import sys, time
        import kubeai.elastic as kubeai

        def hang(notice):
            print("hanging", flush=True)
            time.sleep(600)

        kubeai.on_notice(hang)
        kubeai.init(rank=lambda: 0)
        while kubeai.check_alive():
            time.sleep(0.005)
        kubeai.checkpoint_saved(step=7)
        sys.exit(-1)
        """,
        KUBEAI_EXIT_HOLD="0",
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(notice={"id": "a/1", "source": "a", "host": "node-1", "seconds_left": 9})
    script.wait_for_line("hanging")
    supervisor.direct(0, directive="STOP", generation=4)
    assert script.end() == 255
    said = [report.body for report in supervisor.reports if report.body["kind"] != "rank"]
    assert [(report["kind"], report["step"], report["generation"]) for report in said] == [
        ("saved", 7, 4),
        ("left", 7, 4),
    ]


def test_notices_are_shown_at_once_and_called_about_once(supervisor: FakeSupervisor, start: Start) -> None:
    """A new id, or one that comes back after it was withdrawn; a function that raises is one line."""
    script = start(
        """
        import time
        import kubeai.elastic as kubeai

        def say(notice):
            print("notice", notice.id, notice.source, notice.host, 3 < notice.seconds_left <= 9)

        kubeai.on_notice(lambda notice: 1 // 0)
        kubeai.on_notice(say)
        kubeai.init()
        while (kubeai.seconds_left() or 9) > 5:
            assert kubeai.check_alive()
            time.sleep(0.005)
        print("left", 0 < kubeai.seconds_left() <= 5, kubeai.notice().host)
        while kubeai.check_alive():
            time.sleep(0.005)
        """,
        KUBEAI_EXIT_HOLD="0",
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    first = {"id": "a/1", "source": "a", "host": "node-1", "seconds_left": 9}
    for notice in (first, first, {**first, "id": "a/2"}, first, None, first):
        supervisor.direct(notice=notice)
    wait_until(lambda: script.output().count("notice") >= 3)
    supervisor.direct(notice=first, seconds_left=5)
    script.wait_for_line("left")
    supervisor.direct(directive="STOP")
    assert script.end() == 0
    calls = [line for line in script.out.read_text().splitlines() if line.startswith("notice")]
    assert calls == [f"notice a/{number} a node-1 True" for number in (1, 2, 1)]
    assert "left True node-1" in script.output()
    assert script.warnings().count("a notice callback failed") == 1
