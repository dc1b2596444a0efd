"""kubeai-run dies while it ends a command that will not end."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.chaos.chaos_points import LAUNCHER, Armed, PointsScene
from tests.sdk.commands.commands_harness import Launchpad, is_alive
from tests.testkit.waiting import wait_until


@pytest.fixture
def launchpad(tmp_path: Path) -> Iterator[Launchpad]:
    with FakeSupervisor(heartbeat=0.2) as supervisor:
        pad = Launchpad(tmp_path, supervisor, [])
        yield pad
        pad.clean_up()


@pytest.mark.brief
@pytest.mark.parametrize("armed", [armed for armed in LAUNCHER if armed.scene is PointsScene.STUBBORN], ids=str)
def test_a_stubborn_command_is_gone_with_it(launchpad: Launchpad, armed: Armed) -> None:
    """It was about to kill the command itself; the kernel does, and the next kubeai-run starts it anew."""
    stubborn = ("sh", "-c", "trap '' TERM; echo command $$; while :; do sleep 0.02; done")
    environ = {"KUBEAI_RUN_FAILPOINT": armed.setting}
    first = launchpad.start(*stubborn, options=("--stop-grace", "0.2"), environ=environ)
    first.wait_for_output("command ")
    pid = int(first.output().partition("command ")[2].split()[0])
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == -signal.SIGKILL
    assert f"failpoint {armed.name}: " in first.output()
    wait_until(lambda: not is_alive(pid), lambda: f"{pid} to be gone")
    wait_until(lambda: not launchpad.supervisor.open_streams, lambda: "the supervisor to notice")
    launchpad.start(*stubborn).wait_for_output("command ")
