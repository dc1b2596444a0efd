"""Logs, fault reports and probes."""

import contextlib
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import structlog
from structlog.testing import capture_logs

from servicekit.address import Address, is_loopback
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.http_server import Probes
from servicekit.lifecycle import Health
from servicekit.logs import LogFormat, configure


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A JSON line has the event's name, its fields, its level and an ISO instant in UTC; below the level is silent."""
    configure(LogFormat.JSON, "INFO")
    structlog.get_logger().debug("not.written")
    structlog.get_logger().info("notice.received", node="n1")
    captured = capsys.readouterr()
    line = json.loads(captured.err)
    at = datetime.fromisoformat(line.pop("timestamp"))
    assert at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - at) < timedelta(seconds=10)
    assert line == {"event": "notice.received", "node": "n1", "level": "info"}
    assert captured.out == ""


def test_console_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """A console line reads as event and fields, without colours where nobody sees them, tracebacks included."""
    configure(LogFormat.CONSOLE, "warning")
    try:
        int("lost")
    except ValueError:
        structlog.get_logger().exception("notice.lost", node="n1")
    text = capsys.readouterr().err
    assert "notice.lost" in text
    assert "node=n1" in text
    assert "ValueError: invalid literal" in text
    assert "\x1b" not in text


def test_lines_are_json_where_nobody_reads_them_and_for_people_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(LogFormat.AUTO, "info")
    structlog.get_logger().info("notice.received", node="n1")
    assert json.loads(capsys.readouterr().err)["event"] == "notice.received"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    configure(LogFormat.AUTO, "info")
    structlog.get_logger().info("notice.received", node="n1")
    assert capsys.readouterr().err.startswith("\x1b")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        configure(LogFormat.JSON, "loud")


def test_a_fault_is_logged_once_when_it_starts_and_once_when_it_ends() -> None:
    with capture_logs() as lines:
        fault = Fault("metadata", Clock())
        fault.recovered()
        fault.failed("timed out")
        fault.failed("timed out")
        fault.recovered()
        fault.recovered()
        fault.failed("refused")
    assert [(line["event"], line["log_level"], line["dependency"]) for line in lines] == [
        ("dependency.failing", "warning", "metadata"),
        ("dependency.recovered", "info", "metadata"),
        ("dependency.failing", "warning", "metadata"),
    ]
    assert lines[1]["failures"] == 2
    assert lines[1]["last_reason"] == "timed out"
    assert fault.reason == "refused"


async def test_probes_answer_what_the_callables_say() -> None:
    """200 where healthy, 503 where not, the detail as JSON, on a free port of loopback."""
    ready = [Health(ok=False, detail={"why": "starting"}), Health(ok=True)]
    probes = Probes(live=lambda: Health(ok=True), ready=lambda: ready.pop(0))
    async with probes.serving() as address, aiohttp.ClientSession(f"http://{address}") as http:
        assert is_loopback(address.host)
        assert address.port > 0
        async with http.get("/livez") as answer:
            assert answer.headers["Server"] == "job-supervisor"
            assert (answer.status, await answer.json()) == (200, {"ok": True, "detail": {}})
        async with http.get("/readyz") as answer:
            assert (answer.status, await answer.json()) == (503, {"ok": False, "detail": {"why": "starting"}})
        async with http.get("/readyz") as answer:
            assert answer.status == 200
    async with aiohttp.ClientSession(f"http://{address}") as http:
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get("/livez")


async def test_a_port_that_is_taken_is_an_error() -> None:
    first = Probes(live=lambda: Health(ok=True), ready=lambda: Health(ok=True))
    async with first.serving() as address:
        second = Probes(lambda: Health(ok=True), lambda: Health(ok=True), Address(address.host, address.port))
        with pytest.raises(OSError, match=rf"cannot listen on {address}: .* in use"):
            async with second.serving():
                raise AssertionError("the port is taken")


def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(LogFormat.JSON, "info")
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:  # noqa: PTH123 - a device, not a path of ours
        monkeypatch.setattr("sys.stderr", full)
        structlog.get_logger().info("notice.received")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
