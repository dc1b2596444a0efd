"""Copies in files of a host: whole or not there, of this user and job alone, and gone when nobody needs them."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubeai.torch.copy_files import CopyFile, CopyFiles, is_taken_over, job_key, key_of
from kubeai.torch.moves import PartClaim

from tests.sdk.sdk_scripts import SDK

_KEY = key_of("a job")
_DAY = 24 * 3600.0
_CLAIM = PartClaim(step=7, parts=4, part=2, form=99)
_IN_ANOTHER_PROCESS = """
import os, signal, sys
from pathlib import Path
from kubeai.torch.copy_files import CopyFiles
from kubeai.torch.moves import PartClaim
files = CopyFiles.opened(Path(sys.argv[1]), sys.argv[2], 0, 1)
"""


_all: list[CopyFiles] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _all:
        _all.pop().close()


def _opened(parent: Path, local_rank: int = 0, local_size: int = 1, key: str = _KEY) -> CopyFiles:
    _all.append(CopyFiles.opened(parent, key, local_rank, local_size))
    return _all[-1]


def _directory(parent: Path, local_rank: int = 0) -> Path:
    return parent / f"kubeai-copies-{_KEY}-{local_rank}"


def _published(files: CopyFiles, rows: bytes, claim: PartClaim = _CLAIM) -> CopyFile:
    made = files.make(len(rows))
    made.memory[:] = rows
    made.publish(claim, b"all else")
    return made


def _found(parent: Path, local_rank: int = 0, local_size: int = 1) -> list[tuple[PartClaim, bytes, bytes]]:
    found = _opened(parent, local_rank, local_size).found()
    return [(each.claim, each.file.memory[:], each.rest) for each in found]


def test_a_part_that_was_published_is_found_with_all_that_it_has(tmp_path: Path) -> None:
    _published(_opened(tmp_path), b"rows")
    assert _found(tmp_path) == [(_CLAIM, b"rows", b"all else")]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in _directory(tmp_path).iterdir())
    assert _directory(tmp_path).stat().st_mode & 0o777 == 0o700


def test_a_part_whose_rows_change_is_not_found_and_its_memory_is_given_back(tmp_path: Path) -> None:
    """The older one is there as before."""
    files = _opened(tmp_path)
    _published(files, b"older")
    made = _published(files, b"newer")
    made.withdraw()
    made.memory[:2] = b"xx"
    files.make(3)
    assert [rows for _, rows, _ in _found(tmp_path)] == [b"older"]
    assert len(list(_directory(tmp_path).glob("*.rows"))) == 1


def test_what_is_made_of_a_part_that_was_found_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    _published(_opened(tmp_path), b"rows")
    (found,) = _opened(tmp_path).found()
    found.file.memory[:] = b"more"
    assert [rows for _, rows, _ in _found(tmp_path)] == [b"rows"]


def test_parts_of_a_process_that_was_killed_are_found_and_its_lock_is_not_held(tmp_path: Path) -> None:
    """Neither by the process nor by a child of it that lives on."""
    script = f"""{_IN_ANOTHER_PROCESS}
made = files.make(4)
made.memory[:] = b"rows"
made.publish(PartClaim(7, 4, 2, 99), b"all else")
files.make(4).memory[:] = b"torn"
if os.fork() == 0:
    os.read(0, 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    reading, writing = os.pipe()
    try:
        subprocess.run(_command(script, tmp_path), stdin=reading, env=_environment(), check=False, timeout=60)
        assert _found(tmp_path) == [(_CLAIM, b"rows", b"all else")]
    finally:
        os.close(writing)
        os.close(reading)


def test_two_processes_do_not_use_one_directory(tmp_path: Path) -> None:
    script = f"""{_IN_ANOTHER_PROCESS}
print("there", flush=True)
os.read(0, 1)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(_command(script, tmp_path), stdin=pipe, stdout=pipe, env=_environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        with pytest.raises(BlockingIOError, match="another process uses"):
            _opened(tmp_path)
        other.communicate(b"\n", timeout=60)
    assert _found(tmp_path) == []


def _command(script: str, parent: Path) -> list[str]:
    return [sys.executable, "-c", script, str(parent), _KEY]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SDK)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "malformed"),
        (b"kubeai copy 1\n\0", "malformed"),
        (b"kubeai copy 1\n" + b"\xff" * 60, "malformed"),
        (b"kubeai copy 1\n" + b"".join(each.to_bytes(8, "big") for each in (9, 7, 4, 2, 99)), "does not have 9 bytes"),
        (b"kubeai copy 1\n" + b"".join(each.to_bytes(8, "big") for each in (4, 7, 2, 2, 99)), "malformed"),
        (b"kubeai copy 1\n" + b"".join(each.to_bytes(8, "big") for each in (4, 7, 1 << 60, 2, 99)), "malformed"),
    ],
)
def test_a_malformed_part_costs_a_line_and_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    files = _opened(tmp_path)
    _published(files, b"rows")
    _published(files, b"good")
    bad = next(path for path in _directory(tmp_path).glob("*.rows") if path.read_bytes() == b"rows")
    bad.with_suffix(".part").write_bytes(content)
    assert [rows for _, rows, _ in _found(tmp_path)] == [b"good"]
    assert said in capsys.readouterr().err
    assert not bad.exists()


def test_what_others_could_have_written_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is unpickled. That goes for a directory, for a file and for a link."""
    _published(_opened(tmp_path), b"rows")
    (part,) = _directory(tmp_path).glob("*.part")
    part.chmod(0o620)
    assert _found(tmp_path) == []
    assert "is not this user's alone" in capsys.readouterr().err
    _directory(tmp_path).chmod(0o770)
    with pytest.raises(PermissionError, match="is not this user's alone"):
        _opened(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    _directory(tmp_path).rename(elsewhere)
    _directory(tmp_path).symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        _opened(tmp_path)


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path: Path) -> None:
    _published(_opened(tmp_path), b"rows")
    (part,) = _directory(tmp_path).glob("*.part")
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    assert _found(tmp_path) == []
    assert (tmp_path / "elsewhere").exists()


def test_too_little_room_is_an_error_before_anything_is_written_and_leaves_no_file(tmp_path: Path) -> None:
    """Writing to mapped memory that is not there would end the process."""
    files = _opened(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            files.make(8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in _directory(tmp_path).iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("number", "local_size", "taker"), [(0, 2, None), (1, 2, None), (2, 2, 0), (3, 2, 1), (7, 3, 1), (1, 1, 0)]
)
def test_files_of_a_process_that_its_host_has_no_more_have_one_taker(
    number: int, local_size: int, taker: int | None
) -> None:
    takers = [local_rank for local_rank in range(local_size) if is_taken_over(number, local_rank, local_size)]
    assert takers == ([] if taker is None else [taker])


def test_a_host_with_fewer_processes_finds_all_parts_once(tmp_path: Path) -> None:
    for number in range(4):
        claim = PartClaim(7, 4, number, 99)
        _published(_opened(tmp_path, number, 4), str(number).encode(), claim)
    assert [rows for _, rows, _ in _found(tmp_path, 0, 3)] == [b"0", b"3"]
    assert [rows for _, rows, _ in _found(tmp_path, 1, 3)] == [b"1"]


def test_only_those_that_are_kept_remain_and_in_the_end_nothing(tmp_path: Path) -> None:
    files = _opened(tmp_path)
    kept, other = _published(files, b"kept"), _published(files, b"other")
    files.keep_only([kept])
    assert other.memory[:] == b"other"
    assert [rows for _, rows, _ in _found(tmp_path)] == [b"kept"]
    kept.remove()
    assert _found(tmp_path) == []
    files.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_has_used_for_a_day_is_removed_whatever_job_it_is_of(tmp_path: Path) -> None:
    """But for what is in use, and what is not ours."""
    of_others = tmp_path / "kubeai-copies-of-others"
    of_others.mkdir()
    keys = [key_of(name) for name in ("old", "new")]
    for key in keys:
        _published(_opened(tmp_path, key=key), b"rows")
    old, new = (tmp_path / f"kubeai-copies-{key}-0" for key in keys)
    for path in (of_others, old):
        os.utime(path, (path.stat().st_mtime - 2 * _DAY,) * 2)
    _opened(tmp_path)
    assert not old.exists()
    assert new.exists()
    assert of_others.exists()


def test_a_job_is_known_by_what_its_launcher_was_given_and_by_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that was given nothing is known by itself: another training with the same script is another job."""
    monkeypatch.setenv("KUBEAI_DIR", str(tmp_path / "none"))
    named = job_key({"TORCHELASTIC_RUN_ID": "x"}, "checkpoints")
    assert named == job_key({"TORCHELASTIC_RUN_ID": "x"}, Path("checkpoints").absolute())
    assert named != job_key({"TORCHELASTIC_RUN_ID": "y"}, "checkpoints")
    assert named != job_key({"TORCHELASTIC_RUN_ID": "x"}, "others")
    script = "import sys; from kubeai.torch.copy_files import job_key; print(job_key({}, 'checkpoints'))"
    own = [
        subprocess.run(
            [sys.executable, "-c", script], env=_environment(), capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()
        for _ in range(2)
    ]
    assert own[0] == own[1] != job_key({}, "checkpoints")
