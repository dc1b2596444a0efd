"""A worker that a template has forked is as one that was started."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.sdk.warm.warm_programs import WarmPrograms
from tests.testkit.waiting import wait_until

REPORT = """
    import json, os, resource, signal, sys, threading
    import heavy

    names = vars(sys.modules["__main__"])
    numbers = signal.valid_signals()
    streams = (sys.stdin, sys.stdout, sys.stderr)
    print(json.dumps({
        "argv": sys.argv,
        "given": sys.orig_argv,
        "file": __file__,
        "name": __name__,
        "path": sys.path,
        "spec": __spec__ and __spec__.name,
        "package": __package__,
        "names": sorted(names),
        "is_main": names is globals(),
        "flags": [str(sys.flags), sys._xoptions, sys.warnoptions],
        "directory": os.getcwd(),
        "mask": os.umask(0o22),
        "variables": dict(os.environ),
        "handlers": sorted(f"{int(n)} {signal.getsignal(n)}" for n in numbers if signal.getsignal(n)),
        "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "cpus": sorted(os.sched_getaffinity(0)),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "streams": [[s.encoding, s.errors, s.line_buffering, s.write_through] for s in streams],
        "files": [os.readlink(f"/proc/self/fd/{each}").partition(":")[0] for each in (0, 1, 2)],
        "threads": threading.active_count(),
        "pid": os.getpid(),
        "parent": os.getppid(),
        "by": heavy.BY,
    }))
    """
HEAVY = "import os\nBY = os.getpid()\n"
OWN = ("pid", "parent", "by")


def report(ran: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert ran.returncode == 0, ran.stderr
    said: dict[str, object] = json.loads(ran.stdout)
    return said


def differing(started: dict[str, object], forked: dict[str, object]) -> dict[str, object]:
    """Return what differs, apart from the numbers of processes."""
    names = [name for name in started if name not in OWN and started[name] != forked[name]]
    return {name: (started[name], forked[name]) for name in names}


@pytest.mark.parametrize(
    "arguments",
    [
        ("report.py", "a b", "--lr=1"),
        ("-u", "./report.py"),
        ("-Wignore", "-X", "utf8", "-O", "report.py", "-m"),
        ("-m", "report", "-u"),
    ],
)
def test_it_has_what_a_started_process_has(programs: WarmPrograms, arguments: tuple[str, ...]) -> None:
    """Arguments, paths, options, variables, signals, limits and streams; and it is a fork that has imported nothing."""
    programs.install("heavy", HEAVY)
    programs.write("report.py", REPORT)
    programs.prepared(*arguments)
    started, forked = report(programs.python(*arguments, MORE="1")), report(programs.warm(*arguments, MORE="1"))
    assert started["by"] == started["pid"]
    assert forked["by"] == forked["parent"]
    assert differing(started, forked) == {}


def test_it_gets_limits_mask_and_ignored_signals_of_its_own_command(programs: WarmPrograms) -> None:
    """Those of the command, and not of the template, which was started with others."""
    programs.install("heavy", HEAVY)
    programs.write("report.py", REPORT)
    programs.prepared("report.py")
    shell = 'umask 0077; ulimit -Sn 99; trap "" USR1 INT; exec taskset -c 0 "$@"'
    command = ["bash", "-c", shell, "bash"]
    started, forked = (
        report(programs.run_by(command, program, "report.py")) for program in ("python", "kubeai-python")
    )
    assert forked["by"] == forked["parent"]
    assert (forked["mask"], forked["limit"][0], forked["cpus"]) == (0o77, 99, [0])  # type: ignore[index]
    assert differing(started, forked) == {}


@pytest.mark.parametrize(
    "last",
    [
        "sys.exit(7)",
        "sys.exit('a text')",
        "raise ValueError('the own line')",
        "raise KeyboardInterrupt",
        "os._exit(9)",
        "os.kill(os.getpid(), 9)",
        "os.kill(os.getpid(), signal.SIGABRT)",
        "import does_not_exist",
        "print('the end', end='')",
    ],
)
def test_it_ends_as_a_started_process_ends(programs: WarmPrograms, last: str) -> None:
    """The exit code or signal, all output, exit handlers, and a traceback that begins with the script's own line."""
    programs.install("heavy", HEAVY)
    programs.write(
        "end.py",
        f"""
        import atexit, heavy, os, signal, sys, resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        atexit.register(lambda: print("exit handler"))
        print("not flushed", end="")
        def last():
            {last}
        last()
        """,
    )
    programs.prepared("end.py")
    started, forked = programs.python("end.py"), programs.warm("end.py")
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


WAITS = """
    import heavy, os, signal, subprocess, sys
    child = subprocess.Popen(["sleep", "600"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    print(os.getpid(), child.pid, os.getppid(), flush=True)
    while True:
        signal.pause()
    """


def pids(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.fixture
def waiting(programs: WarmPrograms) -> subprocess.Popen[str]:
    """A worker with a child, both of which wait."""
    programs.install("heavy", HEAVY)
    programs.write("waits.py", WAITS)
    cold = programs.start("waits.py")
    pids(cold)
    cold.terminate()
    assert cold.wait() == 5
    programs.until_prepared()
    return programs.start("waits.py")


def test_it_gets_the_signals_of_its_command(waiting: subprocess.Popen[str]) -> None:
    """Its handler runs, and its exit code is the command's. What it has started does not outlive it."""
    worker, child, template = pids(waiting)
    assert worker != waiting.pid
    waiting.terminate()
    assert waiting.wait() == 5
    wait_until(lambda: not is_running(child) and not is_running(worker))
    assert is_running(template)


def test_a_signal_that_it_does_not_handle_ends_both(waiting: subprocess.Popen[str]) -> None:
    worker, child, _ = pids(waiting)
    waiting.send_signal(signal.SIGUSR1)
    assert waiting.wait() == -signal.SIGUSR1
    wait_until(lambda: not is_running(child) and not is_running(worker))


def test_a_killed_command_takes_its_worker_along(waiting: subprocess.Popen[str]) -> None:
    """And all that the worker has started: a launcher kills the process group that it knows."""
    worker, child, template = pids(waiting)
    waiting.kill()
    wait_until(lambda: not is_running(child) and not is_running(worker))
    assert is_running(template)


def test_a_killed_template_takes_its_workers_along(waiting: subprocess.Popen[str]) -> None:
    """The command says so and ends as if it had been killed, so that the launcher starts the worker again."""
    worker, child, template = pids(waiting)
    os.kill(template, signal.SIGKILL)
    assert waiting.wait() == -signal.SIGKILL
    assert waiting.stderr is not None
    assert "the template has ended" in waiting.stderr.readline()
    wait_until(lambda: not is_running(child) and not is_running(worker))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_it_may_use_multiprocessing(programs: WarmPrograms, method: str) -> None:
    """A spawned process imports the script again, as `__mp_main__`."""
    programs.install("heavy", HEAVY)
    programs.write(
        "many.py",
        f"""
        import heavy, multiprocessing

        def doubled(number):
            return number * 2

        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                print(pool.map(doubled, range(4)))
        """,
    )
    programs.prepared("many.py")
    ran = programs.warm("many.py")
    assert (ran.stdout, ran.stderr) == ("[0, 2, 4, 6]\n", "")


def test_other_command_lines_run_as_usual(programs: WarmPrograms) -> None:
    for arguments in (("-c", "print(1)"), ("-V",), ("-I", "-c", "print(2)"), ("missing.py",), ("-m", "missing")):
        started, ran = programs.python(*arguments), programs.warm(*arguments)
        assert (ran.returncode, ran.stdout, ran.stderr) == (started.returncode, started.stdout, started.stderr)
