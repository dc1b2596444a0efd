"""Every Python that the tests find runs this: it uses the whole library, with the standard library only.

It plays the supervisor for a training process of the same interpreter, which is what the file is when it is given an
argument. Python 3.8.
"""

import importlib
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, List  # noqa: UP035 - Python 3.8

import kubeai.elastic
from kubeai.elastic.testing import FakeSupervisor

NOTICE = {"id": "s/1", "source": "s", "host": "h", "seconds_left": 90}


def wait(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def train() -> None:
    """The training process: every function of the library, a forked and a spawned child."""
    from kubeai.elastic import api as kubeai  # noqa: PLC0415

    heard: List[object] = []  # noqa: UP006 - Python 3.8
    kubeai.init(rank=lambda: 0, sigterm=True, world_size=lambda: 1)
    kubeai.resumed(0)
    kubeai.on_notice(heard.append)
    wait(lambda: heard and kubeai.notice() is not None)
    assert 80 < kubeai.seconds_left() <= 90  # type: ignore[operator]
    wait(kubeai.should_checkpoint)
    child = os.fork()
    if child == 0:
        kubeai.init()
        wait(lambda: not kubeai.check_alive())
        os._exit(4)
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    worker.terminate()
    worker.join()
    assert kubeai.check_alive()
    kubeai.checkpoint_saved(3)
    assert not kubeai.should_checkpoint()
    step = 0
    while not kubeai.should_stop(step):
        assert not kubeai.should_checkpoint(step)
        time.sleep(0.005)
        step += 1
    assert kubeai.directive().kind is kubeai.DirectiveKind.STOP
    assert kubeai.stop_is_agreed()
    assert os.waitpid(child, 0)[1] >> 8 == 4
    kubeai.exit_for_resume()


def supervise(directory: Path) -> None:
    with FakeSupervisor(heartbeat=0.1) as supervisor:
        supervisor.write_identity(directory)
        environ = {"PYTHONPATH": os.environ["PYTHONPATH"], "KUBEAI_DIR": str(directory)}
        strict = ["-X", "dev", *("-W" + option for option in sys.warnoptions)]
        script = subprocess.Popen([sys.executable, *strict, __file__, "train"], env=environ)
        try:
            supervisor.wait_for(lambda: supervisor.open_streams)
            supervisor.direct(0, directive="CHECKPOINT", notice=NOTICE, seconds_left=90)
            assert supervisor.wait_for(lambda: supervisor.reports_of("saved"))[0]["step"] == 3
            supervisor.agree(1)
            supervisor.wait_for(lambda: supervisor.reports_of("left"))
            supervisor.direct(0, directive="STOP", release=True)
            assert script.wait(60) == 75
        finally:
            script.kill()
            script.wait()


def main() -> None:
    for module in pkgutil.walk_packages(kubeai.elastic.__path__, "kubeai.elastic."):
        # The first is a script; an integration needs its framework.
        if not module.name.endswith("die_with_parent") and ".integrations." not in module.name:
            importlib.import_module(module.name)
    with tempfile.TemporaryDirectory() as directory:
        supervise(Path(directory))
    sys.stdout.write("checked by {}.{}\n".format(*sys.version_info))


if __name__ == "__main__":
    train() if sys.argv[1:] else main()
