"""What a template imports and leaves out, whom it refuses, and when it ends."""

import os
import shutil
import signal
import subprocess

import pytest

from tests.sdk.warm.warm_programs import WarmPrograms
from tests.testkit.waiting import wait_until

SCRIPT = """
    import os, sys
    import {modules}
    template = os.getppid()
    print(*(module for module in {modules!r}.split(", ") if sys.modules[module].BY == template))
    """
PLAIN = "import os\nBY = os.getpid()\n"


@pytest.fixture
def programs(programs: WarmPrograms) -> WarmPrograms:
    """With two modules in an installed package, and one of the user's own."""
    programs.install("light", PLAIN)
    programs.install("heavy", PLAIN)
    programs.write("own.py", PLAIN)
    return programs


def script(programs: WarmPrograms, *modules: str) -> None:
    """Write a script that prints which of these modules its template has imported."""
    programs.write("train.py", SCRIPT.format(modules=", ".join(modules)))


def imported(programs: WarmPrograms, **variables: str) -> list[str]:
    """Return what the template of the script has imported, by a worker of it."""
    ran = programs.warm("train.py", **variables)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


def test_the_users_own_modules_run_in_each_worker(programs: WarmPrograms) -> None:
    """They may have been edited since."""
    script(programs, "heavy", "own")
    programs.prepared("train.py")
    assert imported(programs) == ["heavy"]
    programs.write("own.py", PLAIN + "print('edited')")
    assert programs.warm("train.py").stdout.split() == ["edited", "heavy"]


def test_a_running_worker_tells_what_it_imports(programs: WarmPrograms) -> None:
    """The template is made while the first worker runs, also with what it imports only later."""
    programs.write("train.py", "import heavy, signal\ndef later():\n    import light\nlater()\nsignal.pause()\n")
    running = programs.start("train.py")
    (template,) = programs.until_prepared()
    assert running.poll() is None
    script(programs, "heavy", "light")
    assert imported(programs) == ["heavy", "light"]
    assert programs.processes("template.py") == [template]


def test_a_successor_has_what_workers_have_imported_since(programs: WarmPrograms) -> None:
    script(programs, "heavy")
    programs.prepared("train.py")
    (first,) = programs.until_prepared()
    script(programs, "heavy", "light")
    assert imported(programs) == ["heavy"]
    wait_until(lambda: first not in programs.processes("template.py"), "the end of the first template")
    assert imported(programs) == ["heavy", "light"]


@pytest.mark.parametrize(
    "source",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import socket\nkept = socket.socket()",
        "import os\nRANK = int(os.environ.get('RANK', -1))",
        "import os\nRANK = os.getenv('LOCAL_RANK')",
    ],
    ids=["thread", "connection", "rank", "local rank"],
)
def test_a_module_that_a_fork_could_not_share_is_left_out(programs: WarmPrograms, source: str) -> None:
    """With what imports it, and with nothing else."""
    programs.install("risky", PLAIN + source)
    programs.install("around", PLAIN + "import risky")
    script(programs, "heavy", "around", "risky", "light")
    programs.prepared("train.py", RANK="0", LOCAL_RANK="0")
    assert imported(programs, RANK="1", LOCAL_RANK="0") == ["heavy", "light"]


def test_a_copy_of_all_variables_reads_none(programs: WarmPrograms) -> None:
    programs.install(
        "copies", PLAIN + "import os\nA, B, C = dict(os.environ), os.environ.copy(), list(os.environ.items())"
    )
    script(programs, "copies")
    programs.prepared("train.py", RANK="0")
    assert imported(programs, RANK="1") == ["copies"]


def test_a_worker_with_another_value_of_what_imports_have_read_starts_as_usual(programs: WarmPrograms) -> None:
    """It says so; then a successor leaves out what has read it."""
    programs.install("reads", PLAIN + "import os\nMODE = os.environ.get('MODE')")
    script(programs, "heavy", "reads")
    programs.prepared("train.py", MODE="a")
    (first,) = programs.until_prepared()
    assert imported(programs, MODE="a", OTHER="1") == ["heavy", "reads"]
    ran = programs.warm("train.py", MODE="b")
    assert (ran.stdout, ran.returncode) == ("\n", 0)
    assert "starting as usual: MODE differs" in ran.stderr
    wait_until(lambda: first not in programs.processes("template.py"), "the end of the first template")
    assert imported(programs, MODE="b") == ["heavy"]


def test_a_library_that_reads_a_variable_unseen_needs_the_same_value(programs: WarmPrograms) -> None:
    script(programs, "heavy")
    programs.prepared("train.py", OMP_NUM_THREADS="1")
    assert "OMP_NUM_THREADS differs" in programs.warm("train.py", OMP_NUM_THREADS="2").stderr
    assert imported(programs, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="3") == ["heavy"]


def test_variables_that_imports_set_remain_set(programs: WarmPrograms) -> None:
    programs.install("sets", PLAIN + "import os\nos.environ['SET_BY'] = 'sets'\nos.environ.pop('GONE', None)")
    script(programs, "sets")
    programs.prepared("train.py", GONE="1")
    programs.write("train.py", "import os, sets\nprint(os.environ['SET_BY'], os.environ.get('GONE'))")
    assert programs.warm("train.py", GONE="1").stdout.split() == ["sets", "None"]


def test_only_the_first_process_of_a_host_makes_one(programs: WarmPrograms) -> None:
    script(programs, "heavy")
    assert programs.warm("train.py", LOCAL_RANK="1").stdout == "\n"
    assert not programs.processes("template.py")


def test_a_directory_that_others_may_write_to_is_not_used(programs: WarmPrograms) -> None:
    programs.templates.chmod(0o777)
    script(programs, "heavy")
    assert programs.warm("train.py").stdout == "\n"
    assert not programs.processes("template.py")


def test_a_directory_whose_path_is_too_long_for_a_socket_is_not_used(programs: WarmPrograms) -> None:
    script(programs, "heavy")
    deep = programs.templates / ("d" * 90)
    assert programs.warm("train.py", KUBEAI_WARM_DIR=str(deep)).stdout == "\n"
    assert not deep.exists()


def test_why_there_is_no_template_is_said_and_tried_again_later(programs: WarmPrograms) -> None:
    """The kernel refuses a socket where a directory has its name."""
    script(programs, "heavy")
    programs.prepared("train.py")
    (template,) = programs.until_prepared()
    (path,) = programs.templates.glob("*.sock")
    programs.end([template])
    path.unlink()
    path.mkdir()
    assert programs.warm("train.py").stderr == ""
    reason = path.with_suffix(".reason")
    wait_until(reason.exists, "a reason")
    assert "starting as usual: the template has failed: " in programs.warm("train.py").stderr
    path.rmdir()
    os.utime(reason, (0, 0))
    programs.prepared("train.py")
    assert imported(programs) == ["heavy"]
    assert not reason.exists()


def test_it_ends_with_its_directory(programs: WarmPrograms) -> None:
    """As an elastic agent removes its own. A worker that runs goes on, and its end is told."""
    script(programs, "heavy")
    programs.prepared("train.py")
    programs.write("train.py", "import os, signal, sys\nprint(os.getppid(), flush=True)\nsignal.pause()")
    running = programs.start("train.py")
    assert running.stdout is not None
    template = int(running.stdout.readline())
    shutil.rmtree(programs.templates)
    running.terminate()
    assert running.wait() == -signal.SIGTERM
    wait_until(lambda: template not in programs.processes("template.py"), "the end of the template")


def test_it_ends_some_time_after_its_owner(programs: WarmPrograms) -> None:
    """The owner is the process that has started the worker. Time is not waited for here: it keeps for 0 s."""
    script(programs, "heavy")
    owner = (
        "import sys; from kubeai.warm import prepare, variables;"
        "print(prepare.prepare(sys.argv[1:], variables.given(), 60, keep=0.0), flush=True); sys.stdin.read()"
    )
    command = [
        str(programs.home / "bin" / "python"),
        "-c",
        owner,
        str(programs.home / "bin" / "kubeai-python"),
        "train.py",
    ]
    with subprocess.Popen(
        command, **{**programs.place({}), "stdin": subprocess.PIPE}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert imported(programs) == ["heavy"]
        assert programs.processes("template.py")
    wait_until(lambda: not programs.processes("template.py"), "the end of the template")


def test_twenty_restarts_leave_nothing_behind(programs: WarmPrograms) -> None:
    script(programs, "heavy")
    programs.prepared("train.py")
    (template,) = programs.until_prepared()
    before = programs.descriptors(template)
    for _ in range(20):
        assert imported(programs) == ["heavy"]
    wait_until(lambda: programs.processes() == [template], "nothing else")
    wait_until(lambda: programs.descriptors(template) == before, "no further descriptor")
