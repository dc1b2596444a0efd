import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.cloud.process import leftovers
from simulator.runner import ReplayExitCode


def ask(url: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(url, method=method)  # noqa: S310  # A loopback server of this test.
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  # As above.
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def metadata_by_hand() -> Iterator[tuple[str, str]]:
    """The metadata command with one node: the node's address, and where orders are taken."""
    command = [sys.executable, "-m", "simulator", "metadata", "--nodes", "node1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = process.stdout.readline() + process.stdout.readline()
            metadata = re.search(r"NODE_AGENT_METADATA_URL=(\S+)", lines)
            control = re.search(r"'(http://[^/]+)/nodes", lines)
            assert metadata is not None
            assert control is not None
            yield metadata[1], control[1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_metadata_can_be_played_with_by_hand() -> None:
    """Announce, withdraw, add and remove nodes with curl alone; mistakes are answered as such."""
    with metadata_by_hand() as (node, control):
        termination = f"{node}/latest/meta-data/instance/spot/termination-time"
        assert ask(termination)[0] == 404
        assert ask(f"{control}/nodes/node1/notice?seconds=300", "POST") == (200, "node1 will be gone in 300 s\n")
        status, text = ask(termination)
        assert status == 200
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
        assert ask(f"{control}/nodes/node1/notice", "DELETE")[0] == 200
        assert ask(termination)[0] == 404
        for seconds in ("soon", "nan", "-1", "1e9"):
            assert ask(f"{control}/nodes/node1/notice?seconds={seconds}", "POST")[0] == 400
        assert ask(f"{control}/nodes/node2/notice", "POST")[0] == 404
        assert ask(f"{control}/nodes/node2/notice", "DELETE")[0] == 404
        assert ask(f"{control}/nodes/node2", "PUT")[0] == 200
        assert ask(f"{control}/nodes/node2/notice", "POST")[0] == 200
        assert ask(f"{control}/nodes/node1", "DELETE")[0] == 200
        assert [line.split()[0] for line in ask(f"{control}/nodes")[1].splitlines()] == ["node2"]
        termination = termination.replace("node1", "node2")
        assert ask(f"{control}/fault/broken", "PUT")[0] == 200
        assert ask(termination)[0] == 500
        assert ask(f"{control}/fault", "DELETE")[0] == 200
        assert ask(termination)[0] == 200
        assert "black-hole" in ask(f"{control}/fault/none", "PUT")[1]


@pytest.mark.parametrize("arguments", [("--nodes", ""), ("--nodes", "a", "--control", "0.0.0.0:0"), ()])
def test_wrong_orders_to_metadata_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["metadata", *arguments])
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--speed", "40"), "3.0 s on the clock"),
        (("--trace", "none.csv"), "cannot read the trace"),
        (("--from", "1860", "--to", "1380"), "is empty"),
        (("--min", "25"), "--min <= --max"),
        (("--from", "1700", "--to", "1900"), "below the minimum of 15"),
        (("--lead", "30", "--speed", "5"), "6.0 s on the clock"),
        (("--from", "1380", "--to", "1700"), "only 14 nodes without a notice remain"),
    ],
)
def test_a_demo_that_makes_no_sense_is_not_started(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == ReplayExitCode.USAGE
    output = capsys.readouterr()
    assert complaint in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    """SIGTERM while the nodes start ends all of them, and says where the logs are."""
    command = [sys.executable, "-m", "simulator", "demo"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert "Starting" in process.stdout.readline()
        (root,) = tmp_path.iterdir()
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(30) == ReplayExitCode.INTERRUPTED
    assert str(root) in rest
    assert leftovers(root) == []
