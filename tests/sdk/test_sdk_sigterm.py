"""SIGTERM as a second way to learn that this process is to leave."""

import signal

import pytest
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import HOLDING, Start

LEAVES = """
    import sys, time
    import kubeai.elastic as kubeai

    kubeai.init(sigterm=True)
    kubeai.init(sigterm=True)
    print("training")
    while kubeai.check_alive():
        time.sleep(0.005)
    print(kubeai.directive().kind.value, kubeai.directive().reason, kubeai.should_checkpoint())
    kubeai.checkpoint_saved(7)
    print(kubeai.should_checkpoint())
    sys.exit(-1)
"""
LEFT = "training\nLEAVE SIGTERM has arrived True\nFalse\n"


def test_sigterm_is_left_alone_unless_it_is_asked_for(supervisor: FakeSupervisor, start: Start) -> None:
    script = start(LEAVES.replace("sigterm=True", ""))
    supervisor.wait_for(lambda: supervisor.hellos)
    script.wait_for_line("training\n")
    script.process.terminate()
    assert script.end() == -signal.SIGTERM
    assert script.output() == "training\n"


def test_sigterm_makes_a_process_leave_and_say_so(supervisor: FakeSupervisor, start: Start) -> None:
    supervisor.direct(directive="CHECKPOINT", generation=3)
    script = start(LEAVES, RANK="2")
    supervisor.wait_for(lambda: supervisor.hellos)
    script.wait_for_line("training\n")
    supervisor.wait_for(lambda: supervisor.open_streams)
    script.process.terminate()
    assert script.end() == 255
    assert script.output() == LEFT


def test_the_report_answers_the_last_decision(supervisor: FakeSupervisor, start: Start) -> None:
    """SIGTERM is no decision of the supervisor's and has no generation of its own."""
    script = start(
        LEAVES.replace('print("training")', "while kubeai.directive().generation != 3: time.sleep(0.005)\n    print(3)")
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(generation=3)
    script.wait_for_line("3")
    script.process.terminate()
    assert script.end() == 255
    assert [left["generation"] for left in supervisor.reports_of("left")] == [3]


def test_sigterm_needs_no_supervisor_and_waits_for_none(start: Start) -> None:
    script = start(LEAVES)
    script.wait_for_line("training\n")
    script.process.terminate()
    assert script.end() == 255
    assert script.out.read_text() == LEFT


def test_the_users_handler_is_called_too(supervisor: FakeSupervisor, start: Start) -> None:
    """The one that was there before, after the flag has fallen; what it raises is the user's."""
    script = start(
        """
        import os, signal, sys, time
        import kubeai.elastic as kubeai

        def mine(number, frame):
            os.write(1, f"mine {number} {kubeai.check_alive()}\\n".encode())
            sys.exit(5)

        signal.signal(signal.SIGTERM, mine)
        kubeai.init(sigterm=True)
        print("training")
        time.sleep(60)
        """
    )
    supervisor.wait_for(lambda: supervisor.hellos)
    script.wait_for_line("training\n")
    script.process.terminate()
    assert script.end() == 5
    assert script.output() == "training\nmine 15 False\n"


def test_only_the_main_thread_can_ask(start: Start) -> None:
    """Elsewhere it is one line on stderr, and the rest of init is done."""
    script = start(
        """
        import signal, threading
        import kubeai.elastic as kubeai
        thread = threading.Thread(target=kubeai.init, kwargs={"sigterm": True})
        thread.start()
        thread.join()
        print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, kubeai.check_alive())
        """
    )
    assert script.end() == 0
    assert script.out.read_text() == "True True\n"
    assert "SIGTERM is not watched: call init() in the main thread\n" in script.warnings()


def test_a_stop_after_sigterm_still_holds_and_a_second_sigterm_ends_the_hold(
    supervisor: FakeSupervisor, start: Start
) -> None:
    """The supervisor's word counts more; in the exit hook SIGTERM is what it was before init."""
    waits = "while kubeai.directive().kind.value != 'STOP': time.sleep(0.005)"
    script = start(LEAVES.replace("kubeai.checkpoint_saved(7)", waits), RANK="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    script.wait_for_line("training\n")
    script.process.terminate()
    script.wait_for_line("LEAVE")
    supervisor.direct(directive="STOP", generation=6)
    supervisor.wait_for(lambda: supervisor.reports_of("left"))
    assert supervisor.reports_of("left")[0]["generation"] == 6
    script.process.terminate()
    assert script.end() == -signal.SIGTERM
    assert HOLDING.format(20) in script.output()


def test_a_stop_on_its_way_is_answered_by_the_checkpoint_that_was_saved_at_sigterm(
    supervisor: FakeSupervisor, start: Start
) -> None:
    """As where a queue deletes the pods before the supervisor has decided: training does not go on after SIGTERM."""
    # A busy machine takes longer than the two seconds for which a process waits.
    exits = "from kubeai.elastic import session\n    session._STOP_SECONDS = 20\n    print('exits')\n    sys.exit(-1)"
    # It waits only where it has heard of the supervisor, which is later than its stream is open.
    heard = 'while kubeai.directive().generation != 3: time.sleep(0.005)\n    print("training")'
    script = start(LEAVES.replace("sys.exit(-1)", exits).replace('print("training")', heard), RANK="0")
    supervisor.wait_for(lambda: supervisor.hellos)
    supervisor.direct(generation=3)
    script.wait_for_line("training\n")
    script.process.terminate()
    script.wait_for_line("exits")
    supervisor.direct(directive="STOP", generation=6)
    supervisor.wait_for(lambda: [each for each in supervisor.reports_of("saved") if each["generation"] == 6])
    supervisor.direct(directive="STOP", generation=6, release=True)
    assert script.end() == 255
    # That of SIGTERM is posted by another thread, and may come later.
    assert (6, 7) in [(each["generation"], each["step"]) for each in supervisor.reports_of("saved")]
    assert [each["generation"] for each in supervisor.reports_of("left")] == [6]


def test_a_loop_of_the_sdk_saves_at_sigterm(start: Start) -> None:
    """Rank 0 as its launcher ends it, before any word of the supervisor."""
    script = start(
        """
        import itertools, time
        import kubeai.elastic as kubeai

        kubeai.init(sigterm=True)
        print("training")
        for step, _batch in kubeai.steps(itertools.count(), lambda step: print("saved")):
            time.sleep(0.005)
        """,
        RANK="0",
    )
    script.wait_for_line("training\n")
    script.process.terminate()
    assert script.end() == 75
    assert script.out.read_text() == "training\nsaved\n"


@pytest.mark.parametrize("started", ["in the main thread", "in another thread"])
def test_terminating_a_forked_child_leaves_the_parents_flag(start: Start, started: str) -> None:
    """As multiprocessing's terminate() does with the workers of a data loader: an inherited handler would stop all."""
    script = start(
        """
        import multiprocessing, os, signal, threading, time, warnings
        import kubeai.elastic as kubeai
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: fork with threads

        def work():
            time.sleep(60)

        def try_it():
            worker = fork.Process(target=work)
            worker.start()
            worker.terminate()
            worker.join()
            print(worker.exitcode, kubeai.check_alive())
            pool = fork.Pool(2)
            pool.apply(os.getpid)
            pool.terminate()
            pool.join()
            print(kubeai.check_alive())

        fork = multiprocessing.get_context("fork")
        kubeai.init(sigterm=True)
        if "another" in os.environ["STARTED"]:
            thread = threading.Thread(target=try_it)
            thread.start()
            thread.join()
        else:
            try_it()
        os.kill(os.getpid(), signal.SIGTERM)
        print(kubeai.check_alive())
        """,
        STARTED=started,
    )
    assert script.end() == 0
    assert script.out.read_text() == "-15 True\nTrue\nFalse\n"


DEFERS = """
    import os, signal
    from kubeai.elastic import elastic_agent

    # HANDLER
    with elastic_agent.deferring_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        print("others have what they need")
    print("goes on")
"""


@pytest.mark.parametrize(
    ("handler", "code", "output"),
    [
        ("", -signal.SIGTERM, "others have what they need\n"),
        (
            'signal.signal(signal.SIGTERM, lambda *_: print("handled"))',
            0,
            "others have what they need\nhandled\ngoes on\n",
        ),
    ],
)
def test_a_deferred_sigterm_comes_after_the_block(start: Start, handler: str, code: int, output: str) -> None:
    """To whatever was to handle it before."""
    script = start(DEFERS.replace("# HANDLER", handler))
    assert script.end() == code
    assert script.output() == output
