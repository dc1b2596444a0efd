"""kubeai-discover-hosts: what it lists, and that nothing makes it fail."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.elastic.commands import hosts as hosts_module
from kubeai.elastic.commands.discover_hosts import main
from kubeai.elastic.commands.hosts import HostSource
from kubeai.elastic.commands.workspace import RunWorkspace

from tests.sdk.commands.commands_harness import DISCOVER, STRICT, discover


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    directory = tmp_path / "identity"
    directory.mkdir()
    return directory


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    return write(tmp_path / "hosts", "a:1\nb:2\nc\n")


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that answers on 127.0.0.1 and not on 127.0.0.2."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        yield port


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (time.time() - 60, time.time() - 60))
    return path


def listed(directory: Path, *arguments: str, complains: bool = False, **environ: str) -> list[str]:
    """Run it; its lines, once its exit code and its one line on stderr were looked at."""
    done = discover(directory, *arguments, **environ)
    assert done.returncode == 0
    assert done.stderr.count("\n") == int(complains), done.stderr
    return done.stdout.split()


def test_it_lists_the_operators_hosts_with_their_slots(identity: Path, hosts: Path) -> None:
    assert listed(identity, "--hosts-file", str(hosts)) == ["a:1", "b:2", "c"]
    assert listed(identity, KUBEAI_HOSTS_FILE=str(hosts)) == ["a:1", "b:2", "c"]


def test_exclusions_are_left_out_by_name(identity: Path, hosts: Path) -> None:
    write(hosts, "a:1\nb:2\nb1:2\n")
    write(identity / "exclusions", "b\n")
    assert listed(identity, "--hosts-file", str(hosts)) == ["a:1", "b1:2"]


def test_only_hosts_that_were_granted_are_listed_where_there_is_such_a_list(identity: Path, hosts: Path) -> None:
    """What the operator adds meanwhile may be another job's; an empty grant lists nothing, and no file all."""
    write(identity / "hosts", "a\nc\nz\n")
    assert listed(identity, "--hosts-file", str(hosts)) == ["a:1", "c"]
    write(identity / "exclusions", "a\n")
    assert listed(identity, "--hosts-file", str(hosts)) == ["c"]
    assert listed(identity, "--hosts-script", "false", complains=True) == ["c"]
    write(identity / "hosts", "")
    assert listed(identity, "--hosts-file", str(hosts), complains=True) == []


def test_an_empty_list_says_who_is_left_out_and_why(identity: Path, hosts: Path, listener: int) -> None:
    """Horovod would wait for hosts in silence; a list that has some says nothing."""
    write(hosts, "127.0.0.1:1\n127.0.0.2:1\nc\n")
    write(identity / "hosts", "127.0.0.1\n127.0.0.2\n")
    write(identity / "exclusions", "127.0.0.1\n")
    arguments = ("--hosts-file", str(hosts), "--port", str(listener))
    reasons = [
        "127.0.0.1 (excluded, as it will be reclaimed)",
        f"127.0.0.2 (does not answer on port {listener})",
        "c (not granted to this job)",
    ]
    said = discover(identity, *arguments)
    assert (said.stdout, said.stderr) == ("", f"kubeai-discover-hosts: no host can be used: {', '.join(reasons)}\n")
    write(identity / "exclusions", "")
    assert listed(identity, *arguments) == ["127.0.0.1:1"]


def test_a_host_that_cannot_be_reached_is_named_once(identity: Path, hosts: Path, listener: int) -> None:
    """The launcher asks every second; another line follows only when something has changed."""
    write(hosts, "127.0.0.1:1\nno.such.invalid:1\n")
    arguments = ("--hosts-file", str(hosts), "--port", str(listener))
    said = discover(identity, *arguments)
    reason = f"left out, as they do not answer on port {listener}: no.such.invalid"
    assert (said.stdout, said.stderr) == ("127.0.0.1:1\n", f"kubeai-discover-hosts: {reason}\n")
    assert listed(identity, *arguments) == ["127.0.0.1:1"]
    write(hosts, "127.0.0.1:1\nno.such.invalid:1\nneither.invalid:1\n")
    assert discover(identity, *arguments).stderr.endswith("no.such.invalid, neither.invalid\n")
    write(hosts, "127.0.0.1:1\n")
    assert listed(identity, *arguments) == ["127.0.0.1:1"]


def test_many_hosts_that_are_left_out_are_counted(identity: Path, hosts: Path) -> None:
    write(hosts, "".join(f"h{number}\n" for number in range(8)))
    write(identity / "hosts", "")
    said = discover(identity, "--hosts-file", str(hosts))
    assert said.stderr.endswith("h4 (not granted to this job) and 3 more\n")
    assert "h5" not in said.stderr
    write(hosts, "")
    assert discover(identity, "--hosts-file", str(hosts)).stderr.endswith("the operator's host list is empty\n")


def test_a_script_takes_the_place_of_the_file(identity: Path, hosts: Path, tmp_path: Path) -> None:
    script = write(tmp_path / "script.sh", 'echo "$1:4"\n')
    assert listed(identity, KUBEAI_HOSTS_FILE=str(hosts), KUBEAI_HOSTS_SCRIPT=f"sh {script} x") == ["x:4"]


@pytest.mark.parametrize("script", ["false", "/does/not/exist", "sh -c 'unclosed", "sh -c 'echo x; exit 3'"])
def test_a_script_that_fails_leaves_the_last_good_list(identity: Path, hosts: Path, script: str) -> None:
    listed(identity, "--hosts-file", str(hosts))
    assert listed(identity, "--hosts-script", script, complains=True) == ["a:1", "b:2", "c"]


def test_an_exclusion_wins_also_over_the_last_good_list(identity: Path, hosts: Path) -> None:
    """A host that will be reclaimed is not listed, whatever else is unknown."""
    listed(identity, "--hosts-file", str(hosts))
    write(identity / "exclusions", "a\n")
    hosts.unlink()
    assert listed(identity, "--hosts-file", str(hosts), complains=True) == ["b:2", "c"]


@pytest.mark.parametrize(
    "arguments", [("--no-such-option",), ("--port", "x"), ("--port", "65536"), ("--port", "-1"), ("surplus",)]
)
def test_bad_arguments_leave_the_last_good_list(identity: Path, hosts: Path, arguments: tuple[str, ...]) -> None:
    listed(identity, "--hosts-file", str(hosts))
    assert listed(identity, "--hosts-file", str(hosts), *arguments, complains=True) == ["a:1", "b:2", "c"]


def test_with_nothing_at_all_it_lists_nothing(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert listed(tmp_path / "nowhere", "--hosts-file", missing, complains=True) == []


def test_a_directory_that_cannot_be_written_only_costs_a_line(identity: Path, hosts: Path) -> None:
    (identity / "hosts.last").mkdir()
    assert listed(identity, "--hosts-file", str(hosts), complains=True) == ["a:1", "b:2", "c"]


def test_a_list_with_odd_bytes_is_passed_on_as_it_is(identity: Path, tmp_path: Path) -> None:
    odd = tmp_path / "hosts"
    odd.write_bytes(b"# comment\n\n \xff:1\nb slots=2\n")
    arguments = [*STRICT, DISCOVER, "--hosts-file", str(odd), "--port", "0"]
    done = subprocess.run(
        arguments, env={**os.environ, "KUBEAI_DIR": str(identity), "LC_ALL": "C"}, capture_output=True, check=True
    )
    assert done.stdout == b"\xff:1\nb slots=2\n"


def test_nobody_reading_the_answer_is_no_failure(identity: Path, hosts: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*STRICT, DISCOVER, "--hosts-file", str(hosts), "--port", "0"]
    environ = {**os.environ, "KUBEAI_DIR": str(identity)}
    for descriptors in ({"stdout": writer}, {"stdout": writer, "stderr": writer}):
        assert subprocess.run(arguments, env=environ, check=False, **descriptors).returncode == 0  # type: ignore[call-overload]
    os.close(writer)
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *arguments]
    assert subprocess.run(shell, env=environ, check=False, stderr=subprocess.DEVNULL).returncode == 0


def test_a_new_host_is_listed_only_once_its_port_answers(identity: Path, hosts: Path, listener: int) -> None:
    """One that is not reachable would kill every rank of a Horovod job."""
    write(hosts, "127.0.0.1:1\n127.0.0.2:1\n")
    assert listed(identity, "--hosts-file", str(hosts), "--port", str(listener), complains=True) == ["127.0.0.1:1"]
    with socket.create_server(("127.0.0.2", listener)):
        assert listed(identity, "--hosts-file", str(hosts), "--port", str(listener)) == ["127.0.0.1:1", "127.0.0.2:1"]


def test_a_host_that_was_admitted_is_not_asked_again(identity: Path, hosts: Path, listener: int) -> None:
    """Also not after an exclusion that was withdrawn; but after it was off the operator's list it is."""
    arguments = ("--hosts-file", str(hosts), "--port", str(listener))
    write(hosts, "127.0.0.1:1\n127.0.0.2:1\n")
    with socket.create_server(("127.0.0.2", listener)):
        assert len(listed(identity, *arguments)) == 2
    assert len(listed(identity, *arguments)) == 2
    write(identity / "exclusions", "127.0.0.2\n")
    assert listed(identity, *arguments) == ["127.0.0.1:1"]
    write(identity / "exclusions", "")
    assert len(listed(identity, *arguments)) == 2
    write(hosts, "127.0.0.1:1\n")
    assert listed(identity, *arguments) == ["127.0.0.1:1"]
    write(hosts, "127.0.0.1:1\n127.0.0.2:1\n")
    assert listed(identity, *arguments, complains=True) == ["127.0.0.1:1"]


def test_a_host_that_was_admitted_is_left_in_peace(identity: Path, hosts: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = ("--hosts-file", str(write(hosts, "127.0.0.1\n")), "--port", str(server.getsockname()[1]))
        assert listed(identity, *arguments) == listed(identity, *arguments) == ["127.0.0.1"]
        server.accept()[0].close()
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_new_host_is_not_asked_while_it_is_excluded(identity: Path, hosts: Path, listener: int) -> None:
    """It is not admitted by being excluded: it is asked when the exclusion is withdrawn."""
    arguments = ("--hosts-file", str(hosts), "--port", str(listener))
    write(hosts, "127.0.0.2:1\n")
    write(identity / "exclusions", "127.0.0.2\n")
    with socket.create_server(("127.0.0.2", listener)):
        assert listed(identity, *arguments, complains=True) == []
    write(identity / "exclusions", "")
    assert listed(identity, *arguments, complains=True) == []


def test_a_name_service_that_hangs_does_not_hold_it(
    identity: Path, hosts: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()

    def hang(*_: object, **__: object) -> None:
        released.wait(30)
        raise OSError

    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setenv("KUBEAI_DIR", str(identity))
    others = set(threading.enumerate())
    started = time.monotonic()
    assert main(["--hosts-file", str(hosts), "--port", "22"]) == 0
    assert time.monotonic() - started < 20
    assert capfd.readouterr().out == ""
    released.set()
    for thread in set(threading.enumerate()) - others:
        thread.join(10)


@pytest.mark.parametrize("after_reads", range(6))
def test_a_list_that_changes_while_it_reads_shows_no_host_that_was_never_usable(
    identity: Path,
    hosts: Path,
    after_reads: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    workspace = RunWorkspace(identity, "job", "http://127.0.0.1:1", None)
    workspace.list_hosts(["a", "c"], ["c"])
    reads = iter(range(100))

    def read(path: str) -> str:
        if next(reads) == after_reads:
            workspace.list_hosts(["a", "b"], ["b"])
        return read_text(path)

    read_text = hosts_module.read_text
    monkeypatch.setattr(hosts_module, "read_text", read)
    monkeypatch.setenv("KUBEAI_DIR", str(identity))
    assert main(["--hosts-file", str(hosts), "--port", "0"]) == 0
    assert capfd.readouterr().out == "a:1\n"


def test_all_new_hosts_are_asked_at_once(identity: Path, hosts: Path) -> None:
    with socket.create_server(("0.0.0.0", 0), backlog=0) as full, full_backlog(full):
        port = full.getsockname()[1]
        write(hosts, "".join(f"127.0.0.{number}:1\nno-such-{number}.invalid:1\n" for number in range(1, 41)))
        started = time.monotonic()
        assert listed(identity, "--hosts-file", str(hosts), "--port", str(port), complains=True) == []
        assert time.monotonic() - started < 10


class full_backlog:  # noqa: N801 - reads as what it does.
    """Connections that fill a listener's queue, so that the next ones get no answer."""

    def __init__(self, server: socket.socket) -> None:
        self._address = ("127.0.0.1", server.getsockname()[1])
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> None:
        for _ in range(4):
            client = socket.socket()
            client.settimeout(0)
            client.connect_ex(self._address)
            self._sockets.append(client)

    def __exit__(self, *_: object) -> None:
        for client in self._sockets:
            client.close()


def test_a_list_that_is_being_rewritten_in_place_is_read_when_it_is_whole(hosts: Path) -> None:
    """Half a list would take healthy hosts off."""
    with hosts.open("w", encoding="utf-8") as file:
        file.write("a:1\n")
        file.flush()
        finish = threading.Timer(0.01, lambda: print("b:2", file=file, flush=True))
        finish.start()
        names = list(HostSource(str(hosts)).read())
        finish.join()
    assert names == ["a", "b"]


def test_a_file_that_was_just_emptied_is_not_believed_but_one_that_stays_empty_is(identity: Path, hosts: Path) -> None:
    listed(identity, "--hosts-file", str(hosts))
    hosts.write_text("", encoding="utf-8")
    assert listed(identity, "--hosts-file", str(hosts), complains=True) == ["a:1", "b:2", "c"]
    write(hosts, "")
    assert listed(identity, "--hosts-file", str(hosts), complains=True) == []


def test_help_is_no_failure(identity: Path) -> None:
    done = discover(identity, "--help")
    assert done.returncode == 0
    assert "KUBEAI_HOSTS_FILE" in done.stdout


def test_starting_it_imports_nothing_heavy() -> None:
    check = "import sys, kubeai.elastic.commands.discover_hosts; print(*sys.modules)"
    done = subprocess.run([*STRICT, check], capture_output=True, text=True, check=True)
    assert not {"ssl", "http.client", "json", "dataclasses", "subprocess", "socket"} & set(done.stdout.split())
