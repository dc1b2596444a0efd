"""A process whose pod is its identity: a few files that volumes show at the fixed path, and nothing else."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kubeai.elastic import identity
from kubeai.elastic.identity import RunIdentity
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import HOLDING, SDK, TRAINING, Start, without_sender


def project(directory: Path, name: str, **files: str) -> None:
    """Show these files as the kubelet does: `..data` leads to them and is exchanged at once."""
    behind = directory / f"..{name}"
    behind.mkdir()
    for file, text in files.items():
        (behind / file.replace("_", ".")).write_text(text)
        shown = directory / file.replace("_", ".")
        if not shown.is_symlink():
            shown.symlink_to(Path("..data") / shown.name)
    draft = directory / "..data_tmp"
    draft.symlink_to(behind.name)
    draft.replace(directory / "..data")


@pytest.fixture
def pod(tmp_path: Path, supervisor: FakeSupervisor) -> FakeSupervisor:
    """A supervisor to which a pod's files in `tmp_path` lead, for a process of run 4."""
    for name in ("address", "token", "job", "run"):
        (tmp_path / name).unlink()
    project(tmp_path, "first", address=supervisor.address, token=supervisor.job_token("job", 4))
    return supervisor


def test_token_and_address_are_enough(tmp_path: Path) -> None:
    project(tmp_path, "first", address="http://127.0.0.1:1", token="t")
    assert identity.read(tmp_path) == RunIdentity(tmp_path, "http://127.0.0.1:1", "t", None, None, None)
    project(tmp_path, "second", address="https://supervisor:1\n", token="t2\n", ca_crt="PEM")
    assert identity.read(tmp_path) == RunIdentity(
        tmp_path, "https://supervisor:1", "t2", None, None, tmp_path / "ca.crt"
    )
    assert identity.write(RunIdentity(tmp_path / "..first", "a", "t3", None, None, None)) is None  # type: ignore[func-returns-value]
    assert sorted(path.name for path in (tmp_path / "..first").iterdir()) == ["address", "token"]


def test_it_names_no_run_before_it_was_told_one_and_then_that(pod: FakeSupervisor, start: Start) -> None:
    script = start(TRAINING, RANK="0")
    pod.wait_for(lambda: pod.hellos)
    pod.direct(0)
    pod.wait_for(lambda: pod.open_streams)
    pod.drop()
    pod.wait_for(lambda: len(pod.hellos) > 1)
    pod.direct(0, directive="STOP")
    (left,) = pod.wait_for(lambda: pod.reports_of("left"))
    pod.direct(0, directive="STOP", release=True)
    assert script.end() == 255
    assert [hello.body["run"] for hello in pod.hellos] == [None, 4]
    assert (left["run"], left["rank"]) == (4, 0)
    assert script.warnings() == HOLDING.format(20)


def test_a_new_token_is_used_at_the_next_connection(pod: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    """And a new address: they are exchanged under the process, which is still the same one."""
    start(TRAINING)
    pod.wait_for(lambda: pod.hellos)
    with FakeSupervisor(heartbeat=0.1) as other:
        project(tmp_path, "second", address=other.address, token="fake-job:renewed:4")
        pod.stop(goodbye=True)
        (hello,) = other.wait_for(lambda: other.hellos)
    assert hello.token == "fake-job:renewed:4"
    assert hello.body == {**pod.hellos[0].body, "run": 4, "attempt": hello.body["attempt"]}


def _may_mount() -> bool:
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/run"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of its own for the fixed path")
def test_nothing_but_the_fixed_path_is_needed(pod: FakeSupervisor, tmp_path: Path) -> None:
    """Started as by sshd, without anything of the pod's environment; and the path can only be read."""
    script = tmp_path / "train.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(SDK)!r})\n" + textwrap.dedent(TRAINING))
    mounts = """
        set -e
        mount --bind "$1" "$1"
        mount -t tmpfs none /run
        mkdir /run/kubeai
        mount --bind "$1" /run/kubeai
        mount -o remount,bind,ro /run/kubeai
        ! touch /run/kubeai/stopped 2>&1
        exec env -i PATH=/usr/bin:/bin HOME=/root USER=root LOGNAME=root SHELL=/bin/sh "$2" -u -W error "$3"
    """
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mounts, "sh"]
    with subprocess.Popen(
        [*enter, str(tmp_path), sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            pod.wait_for(lambda: pod.hellos)
            pod.direct(directive="STOP")
            pod.wait_for(lambda: pod.reports_of("left"))
            pod.direct(directive="STOP", release=True)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 255
    assert out.decode().splitlines()[1:] == ["training", "saved"]
    assert without_sender(err.decode()) == HOLDING.format(20)
    assert not (tmp_path / "stopped").exists()
