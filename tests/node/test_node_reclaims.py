"""A reclaim on a real node: the chart's pods, a training pod, each a real container."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.node_running import cut
from tests.node.node_world import HTTP_PORT, TRAIN, NodeWorld
from tests.testkit.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
_LEAD_SECONDS = 60.0
SSHD = ("/usr/sbin/sshd", "-D", "-e", "-o", "AuthorizedKeysFile=/checkpoint/keys", "-o", "StrictModes=no")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)  # noqa: S607  # The PATH's.
    return path


async def test_a_training_pod_saves_and_leaves_before_its_node_is_gone(here: NodeWorld) -> None:
    """Its metadata announce it: the process hears STOP, saves and ends; the job is suspended and its pods are gone."""
    home = await here.train("one")
    announced = time.time()
    here.reclaim(announced + _LEAD_SECONDS)
    told = await here.saved(home)
    await here.decided("one", "Suspended")
    suspended = time.time()
    await here.no_pods("one")
    gone = time.time()
    _show(told=told["at"] - announced, suspended=suspended - announced, gone=gone - announced)
    assert (told["kind"], told["annotated"]) == ("STOP", False)
    assert told["step"] > 0
    assert gone - announced < _LEAD_SECONDS


async def test_a_process_that_was_started_over_ssh_hears_of_it(here: NodeWorld, key: Path) -> None:
    """It sees neither the pod's environment nor its SIGTERM; its end is what ssh tells the launcher."""
    home = await here.start("remote", SSHD)
    (home / "keys").write_bytes(key.with_suffix(".pub").read_bytes())
    with _over_ssh(key, await here.address("remote-worker-0")) as process:
        await here.steps("remote", home)
        announced = time.time()
        here.reclaim(announced + _LEAD_SECONDS)
        told = await here.saved(home)
        ended = await until(lambda: _code(process), "ssh has ended")
    _show(told=told["at"] - announced)
    assert (told["kind"], told["annotated"]) == ("STOP", False)
    assert ended != 0  # It is held until its job is suspended: the pod's end may be what ends it.
    await here.decided("remote", "Suspended")


async def test_a_process_that_the_supervisor_cannot_reach_hears_of_it_by_its_kubelet(here: NodeWorld) -> None:
    """With the network between them cut the supervisor writes it on the pod, and the pod's files show it."""
    home = await here.train("cut")
    with cut(HTTP_PORT):
        announced = time.time()
        here.reclaim(announced + _LEAD_SECONDS)
        told = await here.saved(home)
    _show(told=told["at"] - announced)
    assert (told["kind"], told["annotated"]) == ("STOP", True)
    assert told["at"] < announced + _LEAD_SECONDS
    await here.decided("cut", "Suspended")


@contextmanager
def _over_ssh(key: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    options = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={key.with_name('known')}", "-q"]
    command = ["ssh", "-i", str(key), *options, f"root@{address}", *TRAIN]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _code(process: "subprocess.Popen[bytes]") -> int | None:
    return process.poll()


def _show(**seconds: float) -> None:
    sys.stdout.write("".join(f"{name} after {value:.2f} s\n" for name, value in seconds.items()))
