"""Exceptions that nobody foresaw in the library's threads: printed once, and nobody else is the worse for them."""

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest
from kubeai.elastic import threads, wire
from kubeai.elastic.relay import PodRelay, RelayedCall
from kubeai.elastic.testing import FakeSupervisor
from kubeai.elastic.threads import StderrLog
from kubeai.elastic.wire import CallAddress, WireStream, open_stream

from tests.sdk.sdk_scripts import Start
from tests.testkit.serving import Served
from tests.testkit.waiting import until, wait_until


def test_a_thread_goes_on_after_an_unforeseen_exception(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is printed with its traceback the first time, and the thread ends once what it does ends."""
    monkeypatch.setattr(threads, "_FIRST_PAUSE", 0.001)
    calls: list[int] = []

    def run() -> None:
        calls.append(1)
        if len(calls) < 4:
            raise KeyError("nobody thought of it")

    threads.start("somewhere", run, StderrLog()).join()
    said = capfd.readouterr().err
    assert len(calls) == 4
    assert said.count("an internal error in somewhere") == said.count("Traceback") == 1
    assert "KeyError: 'nobody thought of it'" in said


def test_a_thread_that_is_closed_does_not_go_on() -> None:
    closed, calls = threading.Event(), list[int]()

    def run() -> None:
        calls.append(1)
        closed.set()
        raise KeyError("at its end")

    threads.start("somewhere", run, StderrLog(), closed=closed).join()
    assert len(calls) == 1


LISTENING = """
    import time
    import kubeai.elastic as kubeai
    from kubeai.elastic import monitor

    parse = monitor.parse_line
    def parse_most(message):
        if message["generation"] == 3:
            raise KeyError("nobody thought of it")
        return parse(message)
    monitor.parse_line = parse_most
    kubeai.init(rank=0)
    while kubeai.check_alive():
        time.sleep(0.005)
    print("stops with", kubeai.directive().generation)
"""


def test_a_line_that_causes_a_fault_delays_no_other(supervisor: FakeSupervisor, start: Start) -> None:
    """The stream stays open, and the STOP after it takes effect."""
    script = start(LISTENING)
    supervisor.wait_for(lambda: supervisor.open_streams)
    supervisor.direct(directive="RUN", generation=3)
    wait_until(lambda: "an internal error" in script.err.read_text())
    supervisor.direct(directive="STOP", generation=4)
    script.wait_for_line("stops with 4")
    supervisor.direct(directive="STOP", generation=4, release=True)
    script.end()
    assert len(supervisor.hellos) == 1
    assert script.err.read_text().count("Traceback") == 1


class FaultyRelay(PodRelay):
    """Fails wherever it serves one process."""

    faulty = ""

    def _received(self, peer: Any, request: RelayedCall) -> None:
        if self.faulty == "request" and request.body.get("process") == "poison":
            raise KeyError(self.faulty)
        super()._received(peer, request)

    def _settle(self, peer: Any, message: Mapping[str, Any], result: Any) -> None:
        if self.faulty == "answer" and peer.process == "poison":
            raise KeyError(self.faulty)
        super()._settle(peer, dict(message), result)

    def _pass_on(self, message: Mapping[str, Any]) -> None:
        if self.faulty == "line" and "poison" in message.get("processes", ()):
            raise KeyError(self.faulty)
        super()._pass_on(message)


def _opened(name: str, process: str) -> WireStream | None:
    hello = {"process": process, "host": "n1", "rank": None, "run": 1, "pid": 1, "step": None, "sdk": "0"}
    try:
        return open_stream(CallAddress(wire.LOCAL_SCHEME + name, ""), "/v1/processes/stream", hello)
    except Exception:  # noqa: BLE001 - the one that the relay fails to serve
        return None


@pytest.mark.parametrize("faulty", ["request", "answer", "line"])
async def test_a_fault_of_a_relay_in_serving_one_process_costs_no_other(
    served: Served, faulty: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Others that are connected stay so, and new ones are taken. The fault is printed once."""
    await served.peers.agent("n1")
    _, order = await served.peers.running("job", ["n1"])
    # Such names are the whole machine's.
    name = f"faulty-{faulty}-{os.getpid()}"
    said = list[str]()

    def internal_errors() -> int:
        said.append(capfd.readouterr().err)
        return "".join(said).count("an internal error in the relay")

    listener = wire.listen_locally(name)
    relay = FaultyRelay(listener, lambda: CallAddress(served.peers.http, order["token"]), StderrLog())
    relay.faulty = faulty
    with ExitStack() as stack:
        stack.callback(wire.release, listener)
        stack.enter_context(closing(listener))
        relay.start()
        stack.callback(relay.close)
        streams = [await asyncio.to_thread(_opened, name, each) for each in ("first", "poison", "second")]
        for stream in filter(None, streams):
            stack.callback(stream.close)

        def connected() -> set[str]:
            return {each.process for each in served.processes.workers(served.job("job").id)}

        await until(lambda: connected() >= {"first", "second"}, connected)
        # The line that the relay fails to pass on may come after the others have connected.
        await until(internal_errors, lambda: "".join(said))
    assert internal_errors() == 1
