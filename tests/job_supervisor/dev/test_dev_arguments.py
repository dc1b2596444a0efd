"""What `dev` refuses before it starts anything."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from job_supervisor.cli.data_dir import LOCK_FILE, default_directory, is_running
from job_supervisor.dev.options import COMMAND, DevOptions, instructions
from job_supervisor.dev.scene import DevProcess, DevScene, claimed
from supervisor.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "0"], "--hosts must be between 1 and 32."),
        (["--hosts", "33"], "--hosts must be between 1 and 32."),
        (["--min-workers", "5"], "--min-workers must be at least 1 and at most --hosts."),
        (["--min-workers", "0"], "--min-workers must be at least 1 and at most --hosts."),
        (["--no-job", "--", "true"], "--no-job and a command exclude each other."),
        (["--drill", "--no-job"], "--drill works with the sample job"),
        (["--drill", "--", "true"], "--drill works with the sample job"),
        (["--drill", "--hosts", "1"], "--min-workers must be below --hosts."),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dev", "--data-dir", str(tmp_path / "new"), *arguments], [COMMAND]) == 64
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("x")
    assert main(["dev", "--data-dir", str(tmp_path)], [COMMAND]) == 64
    assert "contains files that are not of `dev`" in capsys.readouterr().err
    assert main(["dev", "--data-dir", str(precious)], [COMMAND]) == 64
    assert "is not a directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_directory_is_claimed_once_and_emptied_of_an_earlier_dev(tmp_path: Path) -> None:
    directory = tmp_path / "dev"
    assert not is_running(directory)
    with claimed(directory) as workspace:
        workspace.prepare(("host-1",))
        assert is_running(directory)
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not is_running(directory)
    with claimed(directory):
        assert [path.name for path in directory.iterdir()] == [LOCK_FILE]


def test_its_place_is_the_state_directory_of_the_user() -> None:
    assert default_directory({"HOME": "/home/a"}) == Path("/home/a/.local/state/elastic-job-supervisor/dev")
    assert default_directory({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/elastic-job-supervisor/dev")


def _typed(tmp_path: Path) -> list[str]:
    chosen = DevOptions(hosts=("host-1",), min_workers=1, directory=tmp_path, command=(), drill=False)
    shown = instructions(chosen, "http://127.0.0.1:8471", tmp_path / "token")
    return [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]


def test_what_it_prints_to_type_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout, whose commands are not on the user's path, they are named by their path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert all(Path(command).name == "job-supervisor" and Path(command).is_file() for command in _typed(tmp_path))
    there = tmp_path / "job-supervisor"
    there.write_text("")
    there.chmod(0o755)
    assert set(_typed(tmp_path)) == {"job-supervisor"}


@pytest.mark.parametrize(("code", "stopped"), [(0, False), (1, False), (143, True)])
def test_a_job_that_somebody_stopped_is_no_crash(code: int, stopped: bool) -> None:  # noqa: FBT001  # pytest names it.
    """Such as by `job-supervisor stop`: kubeai-run then ends with 143."""
    nothing: Any = None
    with subprocess.Popen(["sh", "-c", f"exit {code}"]) as process:  # noqa: S607
        process.wait()
    job = DevProcess("kubeai-run", process, None)
    scene = DevScene(options=nothing, workspace=nothing, url="", backend=nothing, supervisor=nothing, hosts=[], job=job)
    assert scene.was_job_stopped is stopped
