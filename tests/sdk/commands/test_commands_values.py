"""The small parts of the commands: lines of the list, orders, options, the outbox."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubeai.elastic.commands.command import has_live_member
from kubeai.elastic.commands.hosts import DEFAULT_FILE, HostSource, Unreadable, name_of, parse, source
from kubeai.elastic.commands.link import RunReportOutbox
from kubeai.elastic.commands.options import back_off
from kubeai.elastic.commands.orders import (
    HostsChanged,
    LogMessage,
    MalformedOrder,
    RunnerEvent,
    RunOrder,
    RunOrderKind,
    RunReport,
    order_of,
)
from kubeai.elastic.commands.run import HostsWatch

from tests.sdk.commands.commands_harness import is_alive
from tests.testkit.waiting import wait_until

LINE: dict[str, Any] = {
    "type": "order",
    "generation": 4,
    "phase": "Running",
    "reason": "because",
    "order": "run",
    "run": 2,
    "stopping": False,
    "workers": 1,
    "hosts": ["a", "b", "c"],
    "exclusions": ["a", "b"],
    "token": "secret",
}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("a", "a"),
        ("a:4", "a"),
        ("a slots=4", "a"),
        ("a:4 # x", "a"),
        ("a.b-c:1", "a.b-c"),
        ("a:x", "a:x"),
        ("::1:4", "::1"),
    ],
)
def test_a_host_is_named_by_what_stands_before_its_slots(line: str, name: str) -> None:
    assert name_of(line) == name


def test_blank_lines_and_comments_are_no_hosts() -> None:
    assert parse("\n# x\n a:1 \r\nb\na:2\n") == {"a": "a:2", "b": "b"}


def test_an_argument_comes_before_the_environment_and_a_script_before_the_file() -> None:
    """A file that was named on the command line is not overruled by a script in the environment."""
    environ = {"KUBEAI_HOSTS_FILE": "/f", "KUBEAI_HOSTS_SCRIPT": "s"}
    assert _chosen(source(None, None, {})) == (DEFAULT_FILE, None)
    assert _chosen(source(None, None, environ)) == ("/f", "s")
    assert _chosen(source("/g", None, environ)) == ("/g", None)
    assert _chosen(source(None, "t", environ)) == ("/f", "t")
    assert _chosen(source(None, None, {"KUBEAI_HOSTS_SCRIPT": ""})) == (DEFAULT_FILE, None)


def _chosen(chosen: HostSource) -> tuple[str, str | None]:
    return chosen.file, chosen.script


def test_a_script_that_hangs_is_ended_with_what_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kubeai.elastic.commands.hosts.SCRIPT_SECONDS", 0.5)
    script, pids = tmp_path / "script.sh", tmp_path / "pids"
    script.write_text(f"sleep 60 &\necho $! > {pids}\nsleep 60\n", encoding="utf-8")
    with pytest.raises(Unreadable, match="no answer within"):
        HostSource("/f", f"sh {script}").read()
    grandchild = int(pids.read_text(encoding="utf-8"))
    wait_until(lambda: not is_alive(grandchild), lambda: "the end of what the script started")


def test_a_group_of_zombies_is_not_alive() -> None:
    """Where nobody reaps orphans, the end of a group would else be waited for in vain."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    assert has_live_member(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not has_live_member(process.pid)
    process.communicate()


def test_a_watch_puts_what_is_new_and_remarks_once_that_it_cannot_read(tmp_path: Path) -> None:
    events: list[RunnerEvent] = []
    file = tmp_path / "hosts"
    watch = HostsWatch(HostSource(str(file)), events.append)
    watch.poll()
    watch.poll()
    file.write_text("a:1\n", encoding="utf-8")
    watch.poll()
    watch.poll()
    assert [type(event) for event in events] == [LogMessage, LogMessage, HostsChanged]
    assert events[-1] == HostsChanged(("a",))


def test_an_order_is_read_whole() -> None:
    assert order_of({**LINE, "news": 1}) == RunOrder(
        generation=4,
        kind=RunOrderKind.RUN,
        run=2,
        workers=1,
        hosts=("a", "b", "c"),
        exclusions=("a", "b"),
        phase="Running",
        reason="because",
        token="secret",
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("generation", None),
        ("generation", -1),
        ("generation", True),
        ("order", "explode"),
        ("order", ["run"]),
        ("run", 0),
        ("run", "1"),
        ("stopping", "no"),
        ("workers", 1.5),
        ("exclusions", "abc"),
        ("exclusions", [1]),
        ("hosts", None),
        ("phase", 7),
        ("reason", {}),
        ("token", 1),
    ],
)
def test_a_malformed_order_is_refused(field: str, value: object) -> None:
    with pytest.raises(MalformedOrder):
        order_of({**LINE, field: value})


@pytest.mark.parametrize("field", ["generation", "order", "run", "workers", "hosts", "exclusions", "phase"])
def test_an_order_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(MalformedOrder):
        order_of({name: value for name, value in LINE.items() if name != field})


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(order_of(LINE))


@pytest.mark.parametrize(
    ("restarts", "least", "most"), [(0, 1, 2), (1, 2, 4), (4, 16, 32), (5, 30, 60), (6, 30, 60), (10**6, 30, 60)]
)
def test_the_back_off_grows_from_one_second_to_sixty(restarts: int, least: float, most: float) -> None:
    assert (back_off(1.0, restarts, 0.0), back_off(1.0, restarts, 1.0)) == (least, most)


def test_only_what_is_new_gets_a_new_revision() -> None:
    """Else every look at the state would be a report."""
    outbox = RunReportOutbox()
    outbox.publish(RunReport(hosts=("a",)))
    first = outbox.latest
    outbox.publish(RunReport(hosts=("a",)))
    assert outbox.latest is first
    outbox.publish(RunReport(hosts=("b",)))
    assert outbox.latest.revision == first.revision + 1


def test_the_latest_report_waits_until_it_is_confirmed() -> None:
    outbox = RunReportOutbox()
    outbox.set_open(True)
    older = outbox.wait()
    assert older is not None
    outbox.publish(RunReport(run=1))
    outbox.confirm(older)
    newer = outbox.wait()
    assert newer is not None
    assert newer.run == 1
    outbox.confirm(newer)
    outbox.close()
    assert outbox.wait() is None


def test_an_older_report_does_not_overtake_a_newer_one() -> None:
    outbox = RunReportOutbox()
    older = outbox.latest
    outbox.publish(RunReport(run=1))
    newer = outbox.latest
    outbox.raise_revision(older)
    assert outbox.latest is newer
    outbox.raise_revision(newer)
    assert (outbox.latest.run, outbox.latest.revision) == (1, newer.revision + 1)
