"""kubeai-run as a real process against a fake supervisor: runs, stops, signals and lists of hosts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.commands.commands_harness import (
    FOR_EVER,
    RUN,
    STRICT,
    Launchpad,
    command_of,
    in_run,
    is_alive,
    kill_now,
    order_stop,
    resume,
    suspend,
    until_registered,
)
from tests.testkit.waiting import wait_until

SAVING = ("--save-grace", "60")


def test_success_is_reported_and_is_exit_code_0(launchpad: Launchpad) -> None:
    launched = launchpad.start("true")
    assert launched.end() == 0
    launched.wait_for_report(run=1, running=False, exit_code=0, result="succeeded")


def test_the_hello_says_what_the_job_asks_for(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    options = ("--min-workers", "1", "--max-wait-time", "600", "--launcher-host", "a", "--framework", "torchrun")
    assert launchpad.start("true", options=options, job="my.job-1").end() == 0
    hello = supervisor.hellos[0].body
    assert len(hello.pop("instance")) >= 16
    assert hello == {
        "job": "my.job-1",
        "framework": "torchrun",
        "min_workers": 1,
        "max_workers": 2,
        "requested_workers": 2,
        "max_wait_seconds": 600.0,
        "launcher_host": "a",
        "on_loss": "shrink",
        "worker_multiple": 1,
        "report": {
            "revision": 2,
            "hosts": ["a", "b"],
            "run": 0,
            "running": False,
            "exit_code": None,
            "restarts": 0,
            "applied": 0,
            "ending": False,
            "result": None,
        },
    }


def test_the_command_finds_its_run_in_arguments_environment_and_files(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    supervisor.order(run=3, hosts=["x", "y", "z"], exclusions=["x"])
    show = "import json, os, pathlib, sys; d = pathlib.Path(os.environ['KUBEAI_DIR']); print(json.dumps(["
    show += "sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('KUBEAI_')},"
    show += (
        "{f.name: f.read_text() for f in d.iterdir()}, [oct(f.stat().st_mode & 0o777) for f in [d, *d.iterdir()]]]))"
    )
    launched = launchpad.start(
        sys.executable, "-c", show, "-np={workers}", environ={"KUBEAI_LAUNCHER_TOKEN_FILE": "/secret"}
    )
    assert launched.end() == 0
    line = next(line for line in launched.output().splitlines() if line.startswith("[["))
    arguments, environment, files, modes = json.loads(line)
    assert arguments == ["-np=2"]
    assert environment == {
        "KUBEAI_DIR": str(launched.directory),
        "KUBEAI_JOB": "job",
        "KUBEAI_RUN": "3",
        "KUBEAI_WORKERS": "2",
        "KUBEAI_HOSTS_FILE": str(launched.hosts),
        "KUBEAI_HOSTS_SCRIPT": "",
        "KUBEAI_HOSTS_PORT": "0",
    }
    assert files == {
        "address": f"{supervisor.address}\n",
        "job": "job\n",
        "run": "3\n",
        "token": f"{supervisor.job_token('job', 3)}\n",
        "exclusions": "x\n",
        "hosts": "x\ny\nz\n",
    }
    assert set(modes) == {"0o700", "0o600"}


def test_without_a_directory_of_ones_own_a_temporary_one_is_used_and_removed(
    launchpad: Launchpad, tmp_path: Path
) -> None:
    launched = launchpad.start("sh", "-c", "echo at $KUBEAI_DIR", options=("--directory", ""))
    assert launched.end() == 0
    place = Path(next(line for line in launched.output().splitlines() if line.startswith("at "))[3:])
    assert place != tmp_path
    assert not place.exists()


def test_failures_are_restarted_as_new_runs_up_to_the_limit(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    """Then the job has failed, and the command's own code is only reported."""
    launched = launchpad.start("sh", "-c", "exit 3", options=("--back-off-limit", "2"))
    assert launched.end() == 70
    launched.wait_for_report(run=3, running=False, exit_code=3, restarts=2, result="failed")
    # Not from the reports: only the latest is sent, and a run may be over before its start is.
    assert [launched.output().count(f"run {run} started") for run in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert supervisor.hellos[0].body["report"]["restarts"] == 0


def test_a_restarted_run_has_no_token_until_the_supervisor_gave_it_one(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*in_run("exit 3", "exec sleep 60"))
    launched.wait_for_output("up 2")
    assert launched.file("run") == "2\n"
    assert not (launched.directory / "token").exists()
    supervisor.order(run=2)
    wait_until((launched.directory / "token").exists, lambda: "a token")
    assert launched.file("token") == f"{supervisor.job_token('job', 2)}\n"


def test_a_stop_by_order_is_no_failure_and_a_resume_is_run_2(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    launched = launchpad.start(*in_run("trap 'exit 255' USR1; while :; do sleep 0.02; done"))
    launched.wait_for_output("up 1")
    order_stop(supervisor)
    launched.wait_for_report(applied=1)
    pid = command_of(launched)
    os.kill(pid, signal.SIGUSR1)
    launched.wait_for_report(run=1, running=False, exit_code=255)
    suspend(supervisor)
    launched.wait_for_report(applied=2)
    resume(supervisor)
    assert launched.end() == 0
    launched.wait_for_report(run=2, result="succeeded", restarts=0)


def test_a_suspension_ends_a_command_that_is_still_running(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    """With SIGTERM first; ending on it with code 0 is no success."""
    launched = launchpad.start(*in_run("trap 'exit 0' TERM; while :; do sleep 0.02; done"))
    launched.wait_for_output("up 1")
    suspend(supervisor)
    launched.wait_for_report(run=1, running=False, exit_code=0, result=None)
    resume(supervisor)
    assert launched.end() == 0
    launched.wait_for_output("up 2")


def test_a_command_that_ignores_the_request_is_killed_with_its_group(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    """Nothing of run 1 is left when run 2 starts."""
    stubborn = "trap '' TERM; sleep 60 & echo child $!; while :; do sleep 0.02; done"
    launched = launchpad.start(*in_run(stubborn), options=("--stop-grace", "0.2"))
    launched.wait_for_output("child ")
    child = int(launched.output().partition("child ")[2].split()[0])
    suspend(supervisor)
    launched.wait_for_report(run=1, running=False, exit_code=-9)
    assert not is_alive(child)


def test_what_a_command_leaves_behind_is_ended_before_its_end_is_reported(launchpad: Launchpad) -> None:
    """The next run must not meet the last one's processes; zombies that nobody reaps are not waited for."""
    launched = launchpad.start("sh", "-c", "sleep 60 & echo child $!", options=("--stop-grace", "60"))
    assert launched.end() == 0
    assert not is_alive(int(launched.output().partition("child ")[2].split()[0]))


def test_a_command_starts_with_no_signal_ignored(launchpad: Launchpad) -> None:
    """Python ignores two of its own accord, which would break the pipes of a shell script."""
    launched = launchpad.start("grep", "SigIgn", "/proc/self/status")
    assert launched.end() == 0
    # Others may be ignored by whoever started the tests.
    ignored = int(launched.output().partition("SigIgn:")[2].split()[0], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_it_says_what_a_job_waits_for_whenever_that_changes(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    supervisor.order(order="wait", run=0, phase="Waiting", waits_for="0 of 2 listed hosts can be used.")
    silent = "import sys; from kubeai.elastic.commands import run; run._REMINDER_SECONDS = 1e9; "
    launched = launchpad.start("true", program=silent + "sys.exit(run.main())")
    launched.wait_for_output("kubeai-run: waiting: 0 of 2 listed hosts can be used.\n")
    supervisor.order(order="wait", run=0, phase="Waiting", waits_for="1 of 2 listed hosts can be used.")
    launched.wait_for_output("kubeai-run: waiting: 1 of 2 listed hosts can be used.\n")
    supervisor.order(order="run", run=1)
    assert launched.end() == 0
    assert launched.output().count("waiting: ") == 2


def test_it_repeats_what_a_job_waits_for(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    supervisor.order(order="wait", run=0, phase="Waiting", waits_for="No agent.")
    hasty = (
        "import sys; from kubeai.elastic.commands import run; run._REMINDER_SECONDS = 0.1; run._TRUST_SECONDS = 0.1; "
    )
    launched = launchpad.start("true", program=hasty + "sys.exit(run.main())")
    launched.wait_for_output("kubeai-run: waiting: No agent.\n", count=3)
    supervisor.order(order="run", run=1)
    assert launched.end() == 0


def test_waiting_too_long_has_its_own_exit_code(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    supervisor.order(order="wait", run=1, phase="Waiting")
    launched = launchpad.start("true")
    launched.wait_for_report(applied=1)
    supervisor.order(order="end", run=1, phase="TimedOut")
    assert launched.end() == 75
    launched.wait_for_report(run=0, result="timed_out")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_in_order_and_is_reported(
    launchpad: Launchpad, number: signal.Signals, code: int
) -> None:
    orderly = ("sh", "-c", "trap 'echo in order; exit 9' TERM; echo up; while :; do sleep 0.02; done")
    launched = launchpad.start(*orderly, options=("--stop-grace", "60"))
    launched.wait_for_output("up")
    launched.process.send_signal(number)
    asked = time.monotonic()
    assert launched.end() == code
    assert time.monotonic() - asked < 20
    assert "in order" in launched.output()
    launched.wait_for_report(running=False, exit_code=9, result="terminated")


def test_a_signal_lets_the_command_run_until_the_supervisor_has_had_it_saved(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    """The request is reported, the order to wait ends the command, and nothing is started again."""
    launched = launchpad.start(*FOR_EVER, options=SAVING)
    until_registered(launched)
    launched.process.terminate()
    launched.wait_for_report(running=True, ending=True)
    order_stop(supervisor)
    launched.wait_for_report(running=True, ending=True, applied=1)
    suspend(supervisor)
    assert launched.end() == 143
    launched.wait_for_report(run=1, running=False, exit_code=-15, ending=True, result="terminated")
    assert "SIGTERM: waiting up to 60 s for run 1 to save a checkpoint" in launched.output()


def test_ctrl_c_in_a_terminal_does_not_reach_the_command(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    """The terminal sends SIGINT to its whole foreground group, before anything is saved."""
    command = ("sh", "-c", "trap 'echo interrupted' INT; echo up; while :; do sleep 0.02; done")
    launched = launchpad.start(*command, options=SAVING, before=("setsid",))
    launched.wait_for_output("up")
    os.killpg(launched.process.pid, signal.SIGINT)
    launched.wait_for_report(running=True, ending=True)
    suspend(supervisor)
    assert launched.end() == 130
    assert "interrupted" not in launched.output()


def test_a_command_that_is_done_while_it_could_save_has_succeeded(launchpad: Launchpad) -> None:
    launched = launchpad.start(*in_run("while [ ! -e $KUBEAI_DIR/go ]; do sleep 0.02; done"), options=SAVING)
    launched.wait_for_output("up 1")
    launched.process.terminate()
    launched.wait_for_report(ending=True)
    (launched.directory / "go").touch()
    assert launched.end() == 0
    launched.wait_for_report(exit_code=0, result="succeeded")


def test_a_command_that_fails_while_it_could_save_is_not_started_again(launchpad: Launchpad) -> None:
    launched = launchpad.start(*in_run("while [ ! -e $KUBEAI_DIR/go ]; do sleep 0.02; done; exit 3"), options=SAVING)
    launched.wait_for_output("up 1")
    launched.process.terminate()
    launched.wait_for_report(ending=True)
    (launched.directory / "go").touch()
    assert launched.end() == 143
    launched.wait_for_report(exit_code=3, restarts=0, result="terminated")
    assert "up 2" not in launched.output()


def test_without_a_word_of_a_checkpoint_the_command_is_ended_after_the_grace(launchpad: Launchpad) -> None:
    launched = launchpad.start(*FOR_EVER, options=("--save-grace", "0.3"))
    until_registered(launched)
    launched.process.terminate()
    assert launched.end() == 143
    assert "no checkpoint was reported after 0.3 s: ending run 1 without a checkpoint" in launched.output()


def test_further_signals_end_the_command_without_a_checkpoint_and_then_kill_it(launchpad: Launchpad) -> None:
    stubborn = ("sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done")
    launched = launchpad.start(*stubborn, options=(*SAVING, "--stop-grace", "60"))
    launched.wait_for_output("up")
    launched.process.terminate()
    launched.wait_for_output("waiting up to 60 s")
    assert "asked" not in launched.output()
    launched.process.terminate()
    launched.wait_for_output("asked")
    launched.process.terminate()
    assert launched.end() == 143
    launched.wait_for_report(exit_code=-9, result="terminated")


def test_a_job_that_waits_for_hosts_ends_at_once(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    supervisor.order(order="wait", run=0, phase="Waiting")
    launched = launchpad.start("true", options=SAVING)
    launched.wait_for_report(applied=1)
    launched.process.terminate()
    assert launched.end() == 143
    assert "waiting up to" not in launched.output()
    launched.wait_for_report(run=0, ending=True, result="terminated")


def test_a_signal_during_a_suspension_neither_shortens_nor_prolongs_the_commands_end(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    slow = "trap 'echo asked; until [ -e $KUBEAI_DIR/go ]; do sleep 0.02; done; exit 9' TERM; "
    launched = launchpad.start(*in_run(slow + "while :; do sleep 0.02; done"), options=(*SAVING, "--stop-grace", "60"))
    launched.wait_for_output("up 1")
    suspend(supervisor)
    launched.wait_for_output("asked")
    launched.process.terminate()
    launched.wait_for_report(ending=True)
    (launched.directory / "go").touch()
    assert launched.end() == 143
    launched.wait_for_report(run=1, exit_code=9, result="terminated")


def test_an_ignored_sigint_ends_nothing(launchpad: Launchpad) -> None:
    """A shell ignores it for a script's background jobs, which Ctrl-C in the terminal reaches as well."""
    launched = launchpad.start(*FOR_EVER, before=("sh", "-c", "trap '' INT; exec \"$@\"", "sh"))
    launched.wait_for_output("up")
    launched.process.send_signal(signal.SIGINT)
    launched.process.send_signal(signal.SIGTERM)
    assert launched.end() == 143


def test_a_second_signal_kills_at_once(launchpad: Launchpad) -> None:
    launched = launchpad.start(
        "sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.02; done", options=("--stop-grace", "60")
    )
    launched.wait_for_output("up")
    launched.process.terminate()
    launched.wait_for_output("asked")
    launched.process.terminate()
    assert launched.end() == 143
    launched.wait_for_report(exit_code=-9, result="terminated")


def test_a_command_does_not_outlive_a_killed_kubeai_run(launchpad: Launchpad) -> None:
    launched = launchpad.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done")
    launched.wait_for_output("up")
    pid = command_of(launched)
    launched.process.kill()
    try:
        wait_until(lambda: not is_alive(pid), lambda: "the end of the command")
    finally:
        kill_now(pid)


def test_exclusions_are_in_place_before_they_are_reported_as_applied(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*FOR_EVER)
    until_registered(launched)
    path = launched.directory / "exclusions"
    for number in range(1, 6):
        supervisor.order(run=1, hosts=["a", f"h{number}"], exclusions=[f"h{number}"])
        launched.wait_for_report(applied=number)
        assert path.read_text(encoding="utf-8") == f"h{number}\n"
        assert launched.file("hosts") == f"a\nh{number}\n"
    before = path.stat().st_mtime_ns
    supervisor.order(run=1, hosts=["b", "h5"], exclusions=["h5"])
    launched.wait_for_report(applied=6)
    assert path.stat().st_mtime_ns == before


def test_exclusions_that_cannot_be_written_are_not_reported_and_tried_again(
    launchpad: Launchpad, supervisor: FakeSupervisor
) -> None:
    launched = launchpad.start(*FOR_EVER)
    until_registered(launched)
    path = launched.directory / "exclusions"
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    supervisor.order(run=1, exclusions=["a"])
    launched.wait_for_output("retrying")
    assert not any(report["applied"] for report in launched.reports())
    (path / "in the way").rmdir()
    path.rmdir()
    launched.wait_for_report(applied=1, running=True)
    assert launched.file("exclusions") == "a\n"


def test_changes_of_the_operators_list_are_reported_and_an_unreadable_one_is_not(launchpad: Launchpad) -> None:
    launched = launchpad.start(*FOR_EVER)
    launched.wait_for_report(hosts=["a", "b"], running=True)
    launched.hosts.unlink()
    launched.wait_for_output("using the last good list")
    launched.hosts.write_text("b:1\nc:2\n", encoding="utf-8")
    launched.wait_for_report(hosts=["b", "c"])
    launched.wait_for_output("is readable again")
    assert [] not in [report["hosts"] for report in launched.reports()]


def test_the_hello_says_what_the_job_wants_on_a_loss(launchpad: Launchpad, supervisor: FakeSupervisor) -> None:
    """Without --workers, it requests the largest number that is a multiple."""
    options = ("--on-loss", "hold", "--worker-multiple", "2", "--max-workers", "5")
    assert launchpad.start("true", options=options).end() == 0
    hello = supervisor.hellos[0].body
    assert (hello["on_loss"], hello["worker_multiple"]) == ("hold", 2)
    assert (hello["requested_workers"], hello["max_workers"]) == (4, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--job", "j", "--max-workers", "2"),
        ("--job", "J", "--max-workers", "2", "--", "true"),
        ("--job", "j", "--max-workers", "2", "--min-workers", "3", "--", "true"),
        ("--job", "j", "--max-workers", "4", "--workers", "3", "--worker-multiple", "2", "--", "true"),
        ("--job", "j", "--max-workers", "3", "--min-workers", "3", "--worker-multiple", "2", "--", "true"),
        ("--job", "j", "--max-workers", "2", "--worker-multiple", "0", "--", "true"),
        ("--job", "j", "--max-workers", "2", "--on-loss", "wait", "--", "true"),
        ("--job", "j", "--max-workers", "2", "--", "no-such-command-anywhere"),
        ("--job", "j", "--max-workers", "2", "--token-file", "/does/not/exist", "--", "true"),
        ("--job", "j", "--max-workers", "2", "--supervisor", "http://192.0.2.1:80", "--", "true"),
        ("--job", "j", "--max-workers", "2", "--max-wait-time", "nan", "--", "true"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t", encoding="utf-8")
    environ = {
        **os.environ,
        "KUBEAI_SUPERVISOR": "http://127.0.0.1:1",
        "KUBEAI_LAUNCHER_TOKEN_FILE": str(token),
        "KUBEAI_HOSTS_FILE": str(token),
    }
    done = subprocess.run([*STRICT, RUN, *arguments], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert done.stderr.startswith("kubeai-run: ")


@pytest.mark.parametrize(
    ("variable", "text", "why"),
    [
        ("KUBEAI_SUPERVISOR", "gpu-1", "the supervisor's address must be http://HOST:PORT or https://HOST:PORT"),
        ("KUBEAI_SUPERVISOR", "http://192.0.2.1:80", "the supervisor's address must use https beyond this machine"),
        ("KUBEAI_LAUNCHER_TOKEN_FILE", "/does/not/exist", "[Errno 2] No such file or directory: '/does/not/exist'"),
        ("KUBEAI_HOSTS_FILE", "/does/not/exist", "/does/not/exist: No such file or directory"),
        ("KUBEAI_HOSTS_PORT", "ssh", "'ssh' is not a whole number"),
    ],
)
def test_a_wrong_setting_in_the_environment_is_named(variable: str, text: str, why: str, tmp_path: Path) -> None:
    """It has the exit code of wrong settings, as for the services."""
    file = tmp_path / "file"
    file.write_text("t", encoding="utf-8")
    names = ("KUBEAI_LAUNCHER_TOKEN_FILE", "KUBEAI_HOSTS_FILE")
    right = {"KUBEAI_SUPERVISOR": "http://127.0.0.1:1", **dict.fromkeys(names, str(file))}
    environ = {**os.environ, **right, variable: text}
    arguments = ("--job", "j", "--max-workers", "2", "--", "true")
    done = subprocess.run([*STRICT, RUN, *arguments], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.startswith(f"kubeai-run: {variable}: {why}")) == (78, True), done.stderr


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("--max-workers", "0", "0 is not at least 1"),
        ("--max-workers", "many", "'many' is not a whole number"),
        ("--back-off-limit", "-1", "-1 is not at least 0"),
        ("--port", "70000", "70000 is not between 0 and 65535"),
        ("--max-wait-time", "soon", "'soon' is not a number of seconds"),
        ("--stop-grace", "nan", "'nan' is not a number of seconds"),
    ],
)
def test_a_number_that_is_none_is_said_in_words(option: str, text: str, why: str) -> None:
    arguments = ["--job", "j", "--max-workers", "2", f"{option}={text}", "--", "true"]
    done = subprocess.run([*STRICT, RUN, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (64, f"kubeai-run: argument {option}: {why}")


def test_a_hosts_file_that_is_not_there_at_the_start_is_a_usage_error(launchpad: Launchpad, tmp_path: Path) -> None:
    launched = launchpad.start("true", options=("--hosts-file", str(tmp_path / "nope")))
    assert launched.end() == 64
    assert launched.output() == f"kubeai-run: --hosts-file {tmp_path}/nope: No such file or directory\n"


def test_a_hosts_script_that_fails_at_the_start_is_tried_again(launchpad: Launchpad, tmp_path: Path) -> None:
    script = f"sh -c 'cat {tmp_path}/listed'"
    launched = launchpad.start(*FOR_EVER, options=("--hosts-script", script))
    launched.wait_for_output("exit code 1: no hosts are known yet")
    (tmp_path / "listed").write_text("a\n", encoding="utf-8")
    launched.wait_for_report(hosts=["a"])


def test_help_documents_every_exit_code() -> None:
    done = subprocess.run([*STRICT, RUN, "--help"], capture_output=True, text=True, check=True)
    for code in (0, 64, 69, 70, 73, 75, 78, 130, 143):
        assert f"  {code:>3}  " in done.stdout
