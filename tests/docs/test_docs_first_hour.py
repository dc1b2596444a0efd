"""The runner of README.md's first hour: what it runs, in which environment, and what it refuses."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.docs_first_hour import ONE_MACHINE, ROOT, FirstHourError, blocks, first_hour


def _repository(directory: Path, *commands: str) -> Path:
    """A repository whose README has a block for each of these."""
    page = "".join(f"<!-- first hour: {ONE_MACHINE} -->\n```sh\n{each}\n```\n" for each in commands)
    directory.mkdir()
    (directory / "README.md").write_text(f"# Title\n\n```sh\nfalse\n```\n{page}", "utf-8")
    git = ["git", "-C", str(directory), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "--quiet"], ["add", "-A"], ["commit", "--quiet", "-m", "All"]):
        subprocess.run([*git, *command], check=True)
    return directory


@pytest.mark.parametrize("mark", [ONE_MACHINE, "cluster"])
def test_the_readme_has_commands_for_the_first_hour(mark: str) -> None:
    assert blocks((ROOT / "README.md").read_text("utf-8"), mark)


def test_the_marked_blocks_run_in_a_clone_with_an_empty_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LEAKED", "yes")
    present = _repository(tmp_path / "a", 'echo "${LEAKED-no} $PWD" && touch made', "ls made && echo saved")
    assert first_hour(present, tmp_path / "clone") > 0
    assert capfd.readouterr().out == f"no {tmp_path}/clone\nmade\nsaved\n"
    assert not (present / "made").exists()


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    present = _repository(tmp_path / "a", "echo saved\nfalse | cat\necho saved")
    with pytest.raises(FirstHourError, match="exit code 1 of: echo saved"):
        first_hour(present, tmp_path / "clone")


def test_a_first_hour_that_saves_nothing_fails(tmp_path: Path) -> None:
    with pytest.raises(FirstHourError, match="nothing was saved"):
        first_hour(_repository(tmp_path / "a", "echo trained"), tmp_path / "clone")
