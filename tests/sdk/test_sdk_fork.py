"""Forked children of a training process."""

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import Start


@pytest.mark.parametrize("forked", ["before", "after"])
def test_a_forked_child_sees_the_flag_and_says_nothing(supervisor: FakeSupervisor, start: Start, forked: str) -> None:
    """Forked before or after it fell; the child neither reports nor is held, and its end is clean."""
    script = start(
        """
        import os, sys, time
        import kubeai.elastic as kubeai
        kubeai.init(rank=lambda: 0)
        while kubeai.check_alive() and (os.environ["FORKED"] == "after" or not kubeai.directive().generation):
            time.sleep(0.005)
        child = os.fork()
        if child == 0:
            kubeai.init()
            kubeai.on_notice(print)
            print("child")
            while kubeai.check_alive():
                time.sleep(0.005)
            kubeai.checkpoint_saved(1)
            sys.exit(3)
        print("the child's end is", os.waitpid(child, 0)[1] >> 8)
        time.sleep(60)
        """,
        FORKED=forked,
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    if forked == "before":
        supervisor.direct()
        script.wait_for_line("child")
    supervisor.direct(directive="STOP")
    script.wait_for_line("the child's end is 3")
    assert len(supervisor.hellos) == 1
    assert not supervisor.reports
    assert script.warnings() == ""


def test_a_childs_copy_does_not_keep_a_dead_parents_stream_open(supervisor: FakeSupervisor, start: Start) -> None:
    """The parent is killed, the child lives on, and the supervisor hears the end."""
    script = start(
        """
        import os, time
        import kubeai.elastic as kubeai
        kubeai.init()
        while not kubeai.directive().generation:
            time.sleep(0.005)
        if os.fork() == 0:
            print("child")
            deadline = time.monotonic() + 5
            while kubeai.check_alive() and time.monotonic() < deadline and os.getppid() != 1:
                time.sleep(0.005)
            print("orphan")
            while time.monotonic() < deadline and not os.path.exists(os.environ["KUBEAI_DIR"] + "/enough"):
                time.sleep(0.005)
            print("child ends")
            os._exit(0)
        time.sleep(60)
        """
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct()
    script.wait_for_line("child")
    assert supervisor.open_streams
    script.process.kill()
    supervisor.wait_for(lambda: not supervisor.open_streams)
    assert "child ends" not in script.output()
    (script.out.parent / "enough").touch()
    script.wait_for_line("child ends")
