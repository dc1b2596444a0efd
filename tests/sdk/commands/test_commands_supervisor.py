"""kubeai-run and a supervisor that is away, refuses, or does not make sense."""

import ssl
import subprocess
import time

import pytest
import trustme
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.commands.commands_harness import (
    FOR_EVER,
    Launchpad,
    command_of,
    in_run,
    is_alive,
    order_stop,
    resume,
    until_registered,
)


def test_a_stop_known_only_from_a_process_is_no_failure_while_the_supervisor_is_away(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    """The word in the identity directory is enough, for longer than the offline grace."""
    launched = launchpad.start(
        *in_run("while [ ! -e $KUBEAI_DIR/go ]; do sleep 0.02; done; echo 1 7 > $KUBEAI_DIR/stopped; exit 255"),
        options=("--offline-grace", "0.1"),
    )
    launched.wait_for_output("up 1")
    supervisor.stop()
    (launched.directory / "go").touch()
    launched.wait_for_output("run 1 ended with 255, stopped")
    with pytest.raises(subprocess.TimeoutExpired):
        launched.end(0.7)
    assert "up 2" not in launched.output()
    supervisor.start()
    launched.wait_for_report(run=1, running=False, exit_code=255)
    assert "up 2" not in launched.output()
    supervisor.order(order="run", run=2, generation=9)
    assert launched.end() == 0
    launched.wait_for_report(run=2, result="succeeded", restarts=0)


def test_an_end_without_a_word_waits_for_the_supervisor_to_call_it_a_stop(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    """It comes back within the offline grace, with the order that announces the stop."""
    launched = launchpad.start(
        *in_run("while [ ! -e $KUBEAI_DIR/go ]; do sleep 0.02; done; exit 255"), options=("--offline-grace", "60")
    )
    launched.wait_for_output("up 1")
    supervisor.stop()
    (launched.directory / "go").touch()
    launched.wait_for_output("run 1 ended with 255")
    order_stop(supervisor)
    supervisor.start()
    launched.wait_for_report(running=False, exit_code=255, applied=1)
    resume(supervisor)
    assert launched.end() == 0
    launched.wait_for_report(run=2, result="succeeded", restarts=0)


def test_a_failure_while_the_supervisor_is_away_is_restarted_after_the_offline_grace(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(
        *in_run("while [ ! -e $KUBEAI_DIR/go ]; do sleep 0.02; done; exit 3", "exec sleep 60"),
        options=("--offline-grace", "0.2"),
    )
    launched.wait_for_output("up 1")
    supervisor.stop()
    (launched.directory / "go").touch()
    launched.wait_for_output("up 2")
    supervisor.start()
    launched.wait_for_report(run=2, running=True, restarts=1)


def test_an_absent_supervisor_changes_nothing_and_hears_everything_when_it_is_back(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*FOR_EVER)
    launched.wait_for_output("up")
    pid = command_of(launched)
    hellos = len(supervisor.hellos)
    supervisor.stop()
    launched.wait_for_output("the supervisor is unreachable")
    supervisor.refuse(503, "not_serving")
    supervisor.start()
    supervisor.accept()
    supervisor.wait_for(lambda: len(supervisor.hellos) > hellos)
    report = supervisor.hellos[-1].body["report"]
    assert (report["run"], report["running"]) == (1, True)
    assert supervisor.hellos[-1].body["instance"] == supervisor.hellos[0].body["instance"]
    assert is_alive(pid)


@pytest.mark.parametrize(("status", "code"), [(400, "malformed"), (403, "foreign_token"), (401, "bad_token")])
def test_a_refusal_after_the_registration_does_not_end_the_job(
    launchpad: Launchpad, supervisor: FakeSupervisor, status: int, code: str
) -> None:
    launched = launchpad.start(*FOR_EVER)
    until_registered(launched)
    supervisor.refuse(status, code)
    supervisor.drop()
    launched.wait_for_output(code)
    hellos = len(supervisor.hellos)
    supervisor.accept()
    supervisor.wait_for(lambda: len(supervisor.hellos) > hellos)
    assert launched.process.poll() is None


def test_a_name_that_is_live_is_refused(launchpad: Launchpad) -> None:
    first = launchpad.start(*FOR_EVER)
    until_registered(first)
    second = launchpad.start("echo", "never")
    assert second.end() == 73
    assert "never" not in second.output()
    assert first.process.poll() is None


def test_a_supervisor_that_is_never_reached_is_given_up(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    supervisor.stop()
    launched = launchpad.start("true", options=("--register-timeout", "0.3"))
    assert launched.end() == 69
    assert "refused" in launched.output()


def test_a_certificate_that_is_not_trusted_is_no_absence_and_the_option_is_named(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    assert supervisor._server is not None
    server = supervisor._server
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    address = supervisor.address.replace("http:", "https:")
    launched = launchpad.start("true", options=("--supervisor", address, "--register-timeout", "1"))
    assert launched.end() == 69
    assert "cannot be reached yet: its certificate is not trusted: --ca-file must name the CA" in launched.output()
    assert "is unreachable" not in launched.output()


def test_a_registration_that_is_refused_for_good_is_not_repeated(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    """The same words would be refused again."""
    supervisor.refuse(403, "foreign_token")
    launched = launchpad.start("true")
    assert launched.end() == 69
    assert "foreign_token" in launched.output()


def test_a_signal_while_the_supervisor_is_away_does_not_wait_for_it_long(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*FOR_EVER)
    launched.wait_for_output("up")
    supervisor.stop()
    launched.wait_for_output("the supervisor is unreachable")
    asked = time.monotonic()
    launched.process.terminate()
    assert launched.end() == 143
    assert time.monotonic() - asked < 20


def test_a_signal_while_the_supervisor_is_away_gives_it_the_grace_to_come_back(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    """Only it can have the job saved; that is said, and what the signal asked for is in the next hello."""
    launched = launchpad.start(*FOR_EVER, options=("--save-grace", "60"))
    launched.wait_for_output("up")
    supervisor.stop()
    launched.wait_for_output("the supervisor is unreachable")
    launched.process.terminate()
    launched.wait_for_output("which must request it, is unreachable")
    supervisor.order(order="wait", run=1, phase="Suspended")
    supervisor.start()
    assert launched.end() == 143
    assert supervisor.hellos[-1].body["report"]["ending"]
    launched.wait_for_report(run=1, running=False, result="terminated")


def test_a_supervisor_that_stays_away_is_waited_for_no_longer_than_the_grace(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*FOR_EVER, options=("--save-grace", "0.3"))
    launched.wait_for_output("up")
    supervisor.stop()
    launched.wait_for_output("the supervisor is unreachable")
    launched.process.terminate()
    assert launched.end() == 143
    assert "the supervisor is unreachable after 0.3 s: ending run 1 without a checkpoint" in launched.output()


def test_a_malformed_order_changes_nothing(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    launched = launchpad.start(*FOR_EVER)
    until_registered(launched)
    supervisor.order(order="explode", run=1)
    supervisor.order(run=0)
    supervisor.order(run=1, exclusions="abc")
    launched.wait_for_output("malformed order", count=3)
    supervisor.order(run=1, exclusions=["a"])
    launched.wait_for_report(applied=4, running=True)


def test_reports_are_repeated_until_they_are_confirmed(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    supervisor.refuse(503, "not_serving", path="/v1/launchers/report")
    launched = launchpad.start(*FOR_EVER)
    launched.wait_for_output("up")
    launched.wait_for_output("not_serving")
    supervisor.accept()
    launched.wait_for_report(run=1, running=True)


def test_a_supervisor_that_does_not_know_the_job_hears_the_hello_again(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*FOR_EVER)
    until_registered(launched)
    supervisor.refuse(404, "unknown_job", path="/v1/launchers/report")
    supervisor.order(run=1, exclusions=["a"])
    supervisor.wait_for(lambda: len(supervisor.hellos) > 1)
    assert supervisor.hellos[-1].body["report"]["applied"] == 1


def test_a_name_that_was_taken_meanwhile_ends_the_command(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    """Two of one job would write the same checkpoint."""
    launched = launchpad.start(*FOR_EVER)
    launched.wait_for_output("up")
    pid = command_of(launched)
    supervisor.refuse(409, "name_is_live")
    supervisor.drop()
    assert launched.end() == 73
    assert not is_alive(pid)
