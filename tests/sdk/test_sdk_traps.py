"""Training processes that fork, use threads and signals, or are at their very end."""

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import SDK, Start

# Each script forks while the stream is open, in its own way; PARENT goes on until the flag falls, then it is stopped.
PRELUDE = """
import multiprocessing, os, signal, subprocess, sys, threading, time, warnings
import kubeai.elastic as kubeai
warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # from 3.12 on: fork with threads

def until(what, seconds=30):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.002)

def sees_it_fall():
    kubeai.init()
    kubeai.checkpoint_saved(1)
    until(lambda: not kubeai.check_alive())
    os.write(1, b"a child has seen it\\n")

def begin(**more):
    kubeai.init(rank=lambda: 0, **more)
    until(lambda: kubeai.directive().generation)

def trained():
    os.write(1, b"ready\\n")
    until(lambda: not kubeai.check_alive())
"""

FORKS = {
    "os.fork": """
begin()
child = os.fork()
if not child:
    sees_it_fall()
    os._exit(0)
trained()
os.waitpid(child, 0)
""",
    "a child that ends as Python processes do": """
begin()
child = os.fork()
if not child:
    sees_it_fall()
    sys.exit(0)
trained()
assert os.waitpid(child, 0)[1] == 0
""",
    "a double fork": """
begin()
child = os.fork()
if not child:
    if not os.fork():
        sees_it_fall()
    os._exit(0)
os.waitpid(child, 0)
trained()
""",
    "fork in a thread": """
begin()
def thread():
    child = os.fork()
    if not child:
        sees_it_fall()
        os._exit(0)
    os.waitpid(child, 0)
other = threading.Thread(target=thread)
other.start()
trained()
other.join()
""",
    "multiprocessing's fork": """
begin()
worker = multiprocessing.get_context("fork").Process(target=sees_it_fall)
worker.start()
trained()
worker.join()
""",
    "a pool of forked workers": """
begin()
pool = multiprocessing.get_context("fork").Pool(1)
waiting = pool.apply_async(sees_it_fall)
trained()
waiting.get(5)
pool.terminate()
pool.join()
""",
    "forks in a storm of threads": """
begin()
def storm():
    while kubeai.check_alive():
        child = os.fork()
        if not child:
            os._exit(0 if isinstance(kubeai.check_alive(), bool) else 1)
        assert os.waitpid(child, 0)[1] == 0
threads = [threading.Thread(target=storm) for _ in range(4)]
for thread in threads: thread.start()
trained()
for thread in threads: thread.join()
sees_it_fall()
""",
}


@pytest.mark.parametrize("way", FORKS)
def test_a_child_sees_the_flag_and_says_nothing(supervisor: FakeSupervisor, start: Start, way: str) -> None:
    """However it was forked: one hello, one report, both the parent's, and nothing on stderr but the hold."""
    script = start(PRELUDE + FORKS[way])
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(directive="RUN")
    script.wait_for_line("ready")
    supervisor.direct(directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    supervisor.direct(directive="STOP", release=True)
    assert script.end() == 0
    script.wait_for_line("a child has seen it")
    assert [hello.body["pid"] for hello in supervisor.hellos] == [script.process.pid]
    assert len(supervisor.reports_of("left")) == 1
    assert "Traceback" not in script.output()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_worker_is_a_process_of_its_own(supervisor: FakeSupervisor, start: Start, method: str) -> None:
    """It shares nothing with the one that started it: alive until its own init, and it may have one."""
    main = SDK.parent / "tests" / "sdk" / "sdk_spawned.py"
    script = start(f"import runpy; runpy.run_path({str(main)!r}, run_name='__main__')", METHOD=method)
    supervisor.wait_for(lambda: len(supervisor.hellos) == 2)
    assert sorted(hello.body["rank"] for hello in supervisor.hellos) == [0, 1]
    supervisor.direct(1, directive="LEAVE")
    script.wait_for_line("the worker leaves")
    script.wait_for_line("the parent is alive: True")
    assert script.end() == 0


@pytest.mark.parametrize("way", ["os.execv", "subprocess"])
def test_another_program_inherits_nothing(supervisor: FakeSupervisor, start: Start, way: str) -> None:
    """No connection, no signal handler: a child that has become another program keeps no stream open."""
    script = start(
        PRELUDE
        + """
begin(sigterm=True)
show = [sys.executable, "-c", "import signal, os, stat;"
    "print('sockets', sum(stat.S_ISSOCK(os.fstat(fd).st_mode) for fd in map(int, os.listdir('/proc/self/fd'))"
    " if os.path.exists(f'/proc/self/fd/{fd}')), signal.getsignal(15) == signal.SIG_DFL,"
    " signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set())"]
if os.environ["WAY"] == "subprocess":
    subprocess.run(show, check=True)
else:
    child = os.fork()
    if not child:
        os.execv(show[0], show)
    os.waitpid(child, 0)
""",
        WAY=way,
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct()
    assert script.end() == 0
    assert script.output() == "sockets 0 True True\n"


def test_a_child_that_outlives_its_parent_keeps_no_stream_open(supervisor: FakeSupervisor, start: Start) -> None:
    """The parent ends in order, its daemon lives on; the supervisor hears the end at once."""
    script = start(
        PRELUDE
        + """
begin()
if not os.fork():
    until(lambda: os.path.exists(os.environ["KUBEAI_DIR"] + "/enough"))
    print("outlived", kubeai.check_alive())
    os._exit(0)
"""
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct()
    assert script.end() == 0
    supervisor.wait_for(lambda: not supervisor.open_streams)
    assert "outlived" not in script.output()
    (script.out.parent / "enough").touch()
    script.wait_for_line("outlived True")


def test_a_process_forked_before_init_has_a_life_of_its_own(supervisor: FakeSupervisor, start: Start) -> None:
    """Ranks that a parent forks: each calls init itself and hears its own directive."""
    script = start(
        PRELUDE
        + """
kubeai.check_alive()
child = os.fork()
mine = 1 if not child else 0
kubeai.init(rank=lambda: mine)
until(lambda: not kubeai.check_alive() or mine == 0 and os.waitpid(child, os.WNOHANG)[0])
os.write(1, f"rank {mine} is alive: {kubeai.check_alive()}\\n".encode())
"""
    )
    supervisor.wait_for(lambda: len(supervisor.hellos) == 2)
    supervisor.direct(1, directive="LEAVE")
    assert script.end() == 0
    assert sorted(script.out.read_text().splitlines()) == ["rank 0 is alive: True", "rank 1 is alive: False"]


def test_the_resource_tracker_does_not_mind(supervisor: FakeSupervisor, start: Start) -> None:
    """Shared memory of the script's beside ours: nothing is leaked, nothing is said."""
    script = start(
        PRELUDE
        + """
from multiprocessing import shared_memory
begin()
block = shared_memory.SharedMemory(create=True, size=64)
worker = multiprocessing.get_context("fork").Process(target=kubeai.check_alive)
worker.start()
worker.join()
block.close()
block.unlink()
print(worker.exitcode)
"""
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct()
    assert script.end() == 0
    assert script.output() == "0\n"


def test_many_threads_ask_and_none_ever_sees_it_rise(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(
        PRELUDE
        + """
risen = []
def ask():
    before = True
    while not done:
        now = kubeai.check_alive()
        if now and not before: risen.append(now)
        before = now
done = []
threads = [threading.Thread(target=ask) for _ in range(12)]
for thread in threads: thread.start()
for _ in range(3): threading.Thread(target=kubeai.init).start()
trained()
time.sleep(0.05)
done.append(1)
for thread in threads: thread.join()
print("risen", risen, sum(thread.name == "kubeai-listen" for thread in threading.enumerate()))
"""
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    script.wait_for_line("ready")
    supervisor.direct(directive="STOP")
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    supervisor.direct(directive="STOP", release=True)
    assert script.end() == 0
    assert "risen [] 1\n" in script.output()
    assert len(supervisor.hellos) == 1
    assert "Traceback" not in script.output()


def test_asking_never_raises_wherever_it_is_done(supervisor: FakeSupervisor, start: Start) -> None:
    """Before init, in signal handlers, deep in a recursion, without descriptors, at exit."""
    script = start(
        PRELUDE
        + """
import atexit, resource
asked = kubeai.check_alive
atexit.register(lambda: os.write(1, f"at exit {asked()}\\n".encode()))

def deep(n):
    try: return deep(n + 1)
    except RecursionError: return n
deep(0)
assert asked() is True
begin()
handled = []
signal.signal(signal.SIGALRM, lambda *_: handled.append(asked()))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
until(lambda: len(handled) > 20)
signal.setitimer(signal.ITIMER_REAL, 0)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
assert asked() is True and all(handled)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)  # at its end the C library itself opens a file, or aborts
os.environ.clear()
"""
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct()
    assert script.end() == 0
    assert "at exit True\n" in script.output()
    assert "Traceback" not in script.output()
    assert "Exception ignored" not in script.output()


def test_asking_a_module_that_was_emptied_does_not_raise(start: Start) -> None:
    script = start(
        """
        import kubeai.elastic as kubeai, kubeai.elastic.monitor as monitor
        asked = kubeai.check_alive
        for name in list(vars(monitor)):
            vars(monitor)[name] = None
        print(asked())
        """
    )
    assert script.end() == 0
    assert script.output() == "True\n"


@pytest.mark.parametrize("broken", ["mmap.mmap", "threading.Thread.start", "os.register_at_fork", "os.urandom"])
def test_init_never_raises(start: Start, broken: str) -> None:
    module = broken.partition(".")[0]
    script = start(
        f"""
        import {module}
        import kubeai.elastic as kubeai
        kubeai.check_alive()
        def fails(*_, **__): raise OSError("none left")
        {broken} = fails
        kubeai.init()
        print(kubeai.check_alive(), kubeai.notice(), kubeai.directive().kind.value)
        """
    )
    assert script.end() == 0
    assert script.out.read_text() == "True None RUN\n"
    assert script.warnings().count("cannot listen for reclaims") == 1
