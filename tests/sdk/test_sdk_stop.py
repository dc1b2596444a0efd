"""Stopping and leaving: real training processes and what they do at their end."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeRefusal, FakeSupervisor, Message

from tests.sdk.sdk_scripts import HOLDING, TRAINING, Start
from tests.testkit.waiting import wait_until


def test_a_stopped_script_saves_says_so_is_held_and_exits_255(
    supervisor: FakeSupervisor, start: Start, tmp_path: Path
) -> None:
    script = start(TRAINING, RANK="0", KUBEAI_HOST="node-7")
    hello = supervisor.wait_for(lambda: supervisor.hellos)[0].body
    assert (hello["host"], hello["rank"], hello["pid"], hello["step"]) == ("node-7", 0, script.process.pid, None)
    supervisor.direct(0, directive="STOP", generation=4)
    left = supervisor.wait_for(lambda: supervisor.reports_of("left"))[0]
    assert left == {
        "process": hello["process"],
        "host": "node-7",
        "rank": 0,
        "step": None,
        "run": 1,
        "generation": 4,
        "kind": "left",
        "world_size": None,
        "agrees": [],
        "collective": False,
        "step_seconds": None,
        "start_seconds": None,
        "change_seconds": None,
        "revision": 1,
        "checkpoint_seconds": None,
    }
    with pytest.raises(subprocess.TimeoutExpired):
        script.end(0.3)
    supervisor.direct(directive="STOP", generation=4, release=True)
    assert script.end() == 255
    # Another thread writes it, perhaps after this process has reported that it leaves.
    assert (tmp_path / "stopped").read_text() == "1 4\n"
    assert script.output() == "training\nsaved\n" + HOLDING.format(20)


def test_a_reason_that_is_a_sentence_ends_with_one_full_stop(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP", reason="Too few hosts would be left: stopping.")
    assert script.end() == 255
    assert "the job stops: Too few hosts would be left: stopping. This process waits" in script.output()


def test_an_older_supervisor_that_knows_no_failed_saves_hears_that_the_process_leaves(
    supervisor: FakeSupervisor, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = supervisor._refusal

    def refusal(call: Message) -> FakeRefusal | None:
        is_unknown = call.body.get("kind") == "failed"
        return FakeRefusal(400, "malformed", "no such kind") if is_unknown else usual(call)

    monkeypatch.setattr(supervisor, "_refusal", refusal)
    script = start(TRAINING.replace("sys.exit(-1)", "open('/nowhere/at/all')"), KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP")
    (left,) = supervisor.wait_for(lambda: supervisor.reports_of("left"))
    assert left["error"].startswith("FileNotFoundError: ")
    assert script.end() == 1


def test_the_hold_is_bounded(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0.5")
    supervisor.wait_for(lambda: supervisor.hellos)
    began = time.monotonic()
    supervisor.direct(directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    assert script.end() == 255
    assert time.monotonic() - began > 0.5


def test_the_hold_is_bounded_while_the_supervisor_is_away(supervisor: FakeSupervisor, start: Start) -> None:
    """The report cannot be delivered, and the exit is not held up by it."""
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0.5")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.refuse(503, "not_serving", path="/v1/processes/report")
    supervisor.direct(directive="STOP")
    script.wait_for_line("saved")
    supervisor.stop()
    assert script.end() == 255


def test_without_a_hold_a_stopped_process_still_says_that_it_leaves(supervisor: FakeSupervisor, start: Start) -> None:
    """For a script that acknowledges nothing it is what lets the job be suspended."""
    script = start(TRAINING, RANK="0", KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(0, directive="STOP", generation=4)
    assert script.end() == 255
    assert [report["generation"] for report in supervisor.reports_of("left")] == [4]


def test_left_is_repeated_until_it_is_confirmed(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(TRAINING)
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.refuse(503, "not_serving", path="/v1/processes/report")
    supervisor.direct(directive="STOP")
    script.wait_for_line("saved")
    supervisor.stop()
    supervisor.accept()
    supervisor.start()
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    supervisor.direct(directive="STOP", release=True)
    assert script.end() == 255


def test_a_run_that_is_over_releases_a_held_process(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(TRAINING)
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    supervisor.refuse(409, "run_is_over")
    supervisor.drop()
    assert script.end() == 255


def test_sigterm_ends_a_held_process_at_once(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(TRAINING)
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    script.process.terminate()
    assert script.end() == -signal.SIGTERM


def test_a_leaving_process_is_not_held(supervisor: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    script = start(TRAINING, RANK="3")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(3, directive="LEAVE", generation=2)
    assert script.end() == 255
    assert supervisor.reports_of("left")[0]["generation"] == 2
    assert not (tmp_path / "stopped").exists()
    assert script.output() == "training\nsaved\n"


def test_a_process_whose_flag_never_fell_exits_at_once(supervisor: FakeSupervisor, start: Start) -> None:
    """Without a report, with its stream ended; a STOP that is yet to come is none."""
    script = start(
        """
        import time
        import kubeai.elastic as kubeai
        kubeai.init()
        while not kubeai.directive().generation:
            time.sleep(0.005)
        print(kubeai.directive().kind.value, kubeai.check_alive())
        """
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP", generation=1, act_in=60)
    supervisor.direct(directive="CHECKPOINT", generation=2)
    supervisor.direct(directive="STOP", generation=3, act_in=60)
    assert script.end() == 0
    assert script.output() == "CHECKPOINT True\n"
    assert not supervisor.reports
    supervisor.wait_for(lambda: not supervisor.open_streams)
    assert len(supervisor.hellos) == 1


def test_a_directive_takes_effect_after_its_act_in_while_the_supervisor_is_away(
    supervisor: FakeSupervisor, start: Start
) -> None:
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    began = time.monotonic()
    supervisor.direct(directive="STOP", act_in=0.6)
    wait_until((script.out.parent / "stopped").exists)  # noted at its receipt
    supervisor.stop()
    assert script.end() == 255
    assert time.monotonic() - began > 0.6


def test_nothing_after_a_stop_makes_a_process_alive_again(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(
        """
        import time
        import kubeai.elastic as kubeai
        kubeai.init()
        while kubeai.check_alive():
            time.sleep(0.005)
        print("fallen")
        while kubeai.notice() is None:
            assert not kubeai.check_alive()
            time.sleep(0.005)
        print(kubeai.check_alive(), kubeai.directive().kind.value, kubeai.directive().generation)
        """,
        KUBEAI_EXIT_HOLD="0",
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP", generation=5)
    script.wait_for_line("fallen")
    supervisor.direct(directive="RUN", generation=6)
    supervisor.drop()
    supervisor.wait_for(lambda: len(supervisor.hellos) == 2)
    notice = {"id": "a/1", "source": "a", "host": "h", "seconds_left": 1}
    supervisor.direct(directive="RUN", generation=7, notice=notice)
    assert script.end() == 0
    assert script.output() == "fallen\nFalse STOP 5\n" + HOLDING.format(0)
