"""A supervisor that is absent, restarted, mistaken or says no: training goes on."""

import socket
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import HOLDING, TRAINING, Start
from tests.testkit.waiting import wait_until


def test_with_nothing_configured_training_goes_on_with_one_warning(tmp_path: Path, start: Start) -> None:
    """However long it lasts and however often init is called; and it exits at once."""
    script = start(
        """
        import random, threading, time
        import kubeai.elastic as kubeai
        random.seed(7)
        expected = [random.random(), random.seed(7)]
        print(kubeai.check_alive(), kubeai.notice(), kubeai.seconds_left(), kubeai.should_checkpoint())
        kubeai.checkpoint_saved(3)
        began = time.perf_counter()
        for _ in range(3):
            kubeai.init()
        print(time.perf_counter() - began < 2, threading.active_count())
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert kubeai.check_alive()
        print(kubeai.directive().kind.value, kubeai.directive().generation)
        assert random.random() == expected[0]  # the training's own random numbers are untouched
        """
    )
    assert script.end() == 0
    assert script.out.read_text() == "True None None False\nTrue 5\nRUN 0\n"
    told = f"kubeai.elastic: no supervisor: none is configured in {tmp_path}. "
    told += "Training continues without warnings of reclaims\n"
    assert script.warnings() == told


def test_with_nobody_reachable_training_goes_on_with_one_warning_until_somebody_is(
    supervisor: FakeSupervisor, start: Start
) -> None:
    supervisor.stop()
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0")
    wait_until(script.err.read_text)
    with socket.create_server(("127.0.0.1", int(supervisor.address.rpartition(":")[2]))) as nobody:
        for _ in range(3):  # three more attempts, and it is still one line
            nobody.accept()[0].close()
    supervisor.start()
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="STOP")
    assert script.end() == 255
    warning, holding = script.warnings().splitlines()
    assert warning.startswith(f"kubeai.elastic: no supervisor: {supervisor.address}: ")
    assert holding + "\n" == HOLDING.format(0)


def test_a_restarted_supervisor_is_found_again_at_its_new_address(
    supervisor: FakeSupervisor, start: Start, tmp_path: Path
) -> None:
    """The identity is read again at each connection; a short absence is not worth a line."""
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    with FakeSupervisor() as other:
        other.write_identity(tmp_path)
        supervisor.stop(goodbye=True)
        hello = other.wait_for(lambda: other.hellos)[0]
        first = supervisor.hellos[0].body
        assert hello.body == {**first, "attempt": hello.body["attempt"]}
        assert hello.body["attempt"] > first["attempt"]
        other.direct(directive="STOP")
        assert script.end() == 255
    assert script.output() == "training\nsaved\n" + HOLDING.format(0)


@pytest.mark.parametrize(
    ("line", "warnings"),
    [
        (b"nonsense\n", 0),
        (b'{"type": "directive", "directive": "STOP"}\n', 1),
        (b'{"type": "directive", "directive": "STOP", "act_in": NaN}\n', 1),
        (b'{"type": "novel", "directive": "STOP"}\n', 0),
    ],
)
def test_a_line_that_makes_no_sense_stops_nobody(
    supervisor: FakeSupervisor, start: Start, line: bytes, warnings: int
) -> None:
    script = start(TRAINING, KUBEAI_EXIT_HOLD="0")
    supervisor.wait_for(lambda: supervisor.open_streams)
    supervisor.send_raw(line * 3)
    if line == b"nonsense\n":
        supervisor.wait_for(lambda: len(supervisor.hellos) == 2)
    supervisor.direct(directive="STOP", reason="good")
    assert script.end() == 255
    assert script.output().count("malformed directive") == warnings
    assert "the job stops: good" in script.output()


def test_an_identity_of_another_run_ends_the_calls(supervisor: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    script = start(
        """
        import threading, time
        import kubeai.elastic as kubeai
        kubeai.init()
        while any(thread.name == "kubeai-listen" for thread in threading.enumerate()):
            time.sleep(0.005)
        print("listens no longer", kubeai.check_alive())
        """
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.write_identity(tmp_path, run=2)
    supervisor.drop()
    assert script.end() == 0
    assert script.output() == "listens no longer True\n"
    assert len(supervisor.hellos) == 1


def test_a_refused_process_says_so_once_and_trains_on(supervisor: FakeSupervisor, start: Start) -> None:
    supervisor.refuse(403, "foreign_token", "this token is another job's")
    script = start(TRAINING)
    wait_until(script.err.read_text)
    script.wait_for_line("training")
    said = "the supervisor refuses this process: refused with 403 foreign_token: this token is another job's"
    assert script.warnings() == f"kubeai.elastic: {said}\n"
    assert script.process.poll() is None
