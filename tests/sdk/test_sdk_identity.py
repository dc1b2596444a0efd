"""The identity directory."""

import os
import threading
from pathlib import Path

import pytest
from kubeai.elastic import identity
from kubeai.elastic.identity import RunIdentity
from kubeai.elastic.testing import FakeSupervisor


def an_identity(directory: Path, run: int = 3, ca: Path | None = None) -> RunIdentity:
    return RunIdentity(directory, "http://127.0.0.1:1", f"token-{run}", "job", run, ca)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    identity.write(an_identity(tmp_path))
    assert identity.read(tmp_path) == an_identity(tmp_path)
    pem = tmp_path / "other.pem"
    pem.write_text("PEM")
    identity.write(an_identity(tmp_path, ca=pem))
    assert identity.read(tmp_path) == an_identity(tmp_path, ca=tmp_path / "ca.crt")
    assert (tmp_path / "ca.crt").read_text() == "PEM"


@pytest.mark.parametrize("name", ["address", "token", "job", "run"])
@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_file_that_is_missing_or_empty_or_no_text_means_not_configured(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    identity.write(an_identity(tmp_path))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert identity.read(tmp_path) is None


@pytest.mark.parametrize("run", ["one", "1.5", "1 2"])
def test_a_run_that_is_no_number_means_not_configured(tmp_path: Path, run: str) -> None:
    identity.write(an_identity(tmp_path))
    (tmp_path / "run").write_text(run)
    assert identity.read(tmp_path) is None


def test_the_directory_is_the_fixed_one_unless_the_environment_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEAI_DIR", raising=False)
    assert identity.directory() == Path("/var/run/kubeai")
    monkeypatch.setenv("KUBEAI_DIR", "")
    assert identity.directory() == Path("/var/run/kubeai")
    monkeypatch.setenv("KUBEAI_DIR", "/elsewhere")
    assert identity.directory() == Path("/elsewhere")


def test_a_token_is_not_shown(tmp_path: Path) -> None:
    assert "token-3" not in repr(an_identity(tmp_path))


def test_only_the_owner_may_read_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o644)
    identity.write_atomically(path, "secret")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(OSError, match="target"):
        identity.write_atomically(tmp_path / "target", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_reader_never_has_a_newer_token_than_run(tmp_path: Path) -> None:
    """While the files of one run after the other are written, a token is read with its own run or a later one."""
    done = threading.Event()
    identity.write(an_identity(tmp_path, run=1))

    def write() -> None:
        for run in range(2, 300):
            identity.write(an_identity(tmp_path, run=run))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        read = identity.read(tmp_path)
        assert read is not None
        assert read.run is not None
        assert int(read.token.partition("-")[2]) <= read.run
    writer.join()


def test_a_file_that_may_not_be_read_is_not_called_unconfigured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the directory of `kubeai-run` belongs to another user. Root may read everything, so it is played."""
    identity.write(an_identity(tmp_path))
    assert "none is configured" in identity.absence(tmp_path / "elsewhere")

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    assert identity.absence(tmp_path) == f"user {os.geteuid()} cannot read {tmp_path / 'token'}: Permission denied"


def test_the_fake_supervisor_takes_a_directory_as_text(tmp_path: Path) -> None:
    FakeSupervisor().write_identity(str(tmp_path))
    assert identity.read(tmp_path) is not None
