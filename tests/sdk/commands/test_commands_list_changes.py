"""kubeai-discover-hosts never lists new hosts while others leave, nor shortly after: a Horovod job would hang."""

import os
import time
from pathlib import Path

import pytest
from kubeai.elastic.commands import discover_hosts

from tests.sdk.commands.commands_harness import discover

DELAY = 5.0


def paced(directory: Path, *hosts: str) -> list[str]:
    return discover_hosts.paced(str(directory), hosts, DELAY)


def age(directory: Path, seconds: float) -> None:
    """Make it that long since a host was last left out."""
    then = time.time() - seconds
    os.utime(directory / "hosts.left", (then, then))


def test_hosts_join_at_once_while_none_has_left(tmp_path: Path) -> None:
    """At the start of a run the launcher waits for them."""
    assert paced(tmp_path) == []
    assert paced(tmp_path, "a:1") == ["a:1"]
    assert paced(tmp_path, "a:1", "b:2") == ["a:1", "b:2"]


def test_a_leave_and_a_join_are_two_changes(tmp_path: Path) -> None:
    """The host that leaves goes at once, the one that joins waits, in the operator's order and with its slots."""
    paced(tmp_path, "a:1", "b:1")
    assert paced(tmp_path, "c:2", "b:1") == ["b:1"]
    age(tmp_path, DELAY - 1)
    assert paced(tmp_path, "c:2", "b:1") == ["b:1"]
    age(tmp_path, DELAY + 1)
    assert paced(tmp_path, "c:2", "b:1") == ["c:2", "b:1"]


def test_a_host_that_comes_back_waits_as_well(tmp_path: Path) -> None:
    """Its worker may have left the ring already."""
    paced(tmp_path, "a:1", "b:1")
    assert paced(tmp_path, "b:1") == ["b:1"]
    assert paced(tmp_path, "a:1", "b:1") == ["b:1"]
    age(tmp_path, DELAY + 1)
    assert paced(tmp_path, "a:1", "b:1") == ["a:1", "b:1"]


def test_each_leave_makes_joins_wait_anew(tmp_path: Path) -> None:
    paced(tmp_path, "a", "b", "c")
    paced(tmp_path, "b", "c")
    age(tmp_path, DELAY + 1)
    assert paced(tmp_path, "a", "c") == ["c"]
    assert paced(tmp_path, "a", "c") == ["c"]


def test_only_names_count(tmp_path: Path) -> None:
    """A host whose slots change neither leaves nor joins."""
    paced(tmp_path, "a:1", "b:1")
    assert paced(tmp_path, "a:4", "b slots=2") == ["a:4", "b slots=2"]


def test_a_clock_that_was_set_back_holds_nobody_back(tmp_path: Path) -> None:
    paced(tmp_path, "a", "b")
    paced(tmp_path, "b")
    age(tmp_path, -60)
    assert paced(tmp_path, "a", "b") == ["a", "b"]


def test_the_command_waits_by_default_and_for_as_long_as_it_is_told(tmp_path: Path) -> None:
    """Also where the operator's list cannot be read."""
    hosts, exclusions = tmp_path / "hostfile", tmp_path / "exclusions"
    hosts.write_text("a\nb\n", encoding="utf-8")
    os.utime(hosts, (0, 0))

    def listed(delay: str, *arguments: str) -> list[str]:
        return discover(tmp_path, *arguments, KUBEAI_HOSTS_FILE=str(hosts), KUBEAI_JOIN_DELAY=delay).stdout.split()

    assert listed("") == ["a", "b"]
    exclusions.write_text("a\n", encoding="utf-8")
    assert listed("") == ["b"]
    exclusions.write_text("", encoding="utf-8")
    assert listed("") == ["b"]
    assert listed("", "--hosts-script", "false") == ["b"]
    assert listed("600") == ["b"]
    assert listed("0") == ["a", "b"]


@pytest.mark.parametrize("delay", ["x", "-1", "nan"])
def test_a_delay_that_is_no_number_is_reported_and_replaced(tmp_path: Path, delay: str) -> None:
    done = discover(tmp_path, "--hosts-script", "echo a", KUBEAI_JOIN_DELAY=delay)
    assert done.stdout == "a\n"
    assert f"KUBEAI_JOIN_DELAY: {delay!r} is not a number of seconds, using 5" in done.stderr


def test_a_list_that_cannot_be_remembered_is_printed_whole(tmp_path: Path) -> None:
    (tmp_path / "hosts.printed").mkdir()
    done = discover(tmp_path, "--hosts-script", "echo a")
    assert (done.stdout, done.returncode) == ("a\n", 0)
    assert "cannot remember the list" in done.stderr
