"""Without any option, the command finds a running `elastic-job-supervisor dev`, and nothing else takes its place."""

from pathlib import Path

import msgspec
import pytest

from job_supervisor.cli.data_dir import default_directory
from job_supervisor.cli.errors import CliExitCode
from job_supervisor.dev.scene import claimed
from tests.job_supervisor.cli.cli_running import RunHere

ASKING = "Asking the supervisor of `elastic-job-supervisor dev`"


def _serve_nowhere(directory: Path) -> None:
    (directory / "endpoints.json").write_bytes(msgspec.json.encode({"http": "http://127.0.0.1:1"}))


def test_a_running_dev_is_found_and_named(run_here: RunHere, tmp_path: Path) -> None:
    with claimed(default_directory({"HOME": str(tmp_path)})) as workspace:
        workspace.prepare(("host-1",))
        _serve_nowhere(workspace.directory)
        said = run_here("status", cwd=tmp_path, HOME=str(tmp_path))
        assert said.code is CliExitCode.UNREACHABLE
        assert "http://127.0.0.1:1" in said.err
        assert ASKING not in said.err  # Nothing else could be meant.
        beside = run_here("status", cwd=tmp_path, HOME=str(tmp_path), KUBECONFIG="config")
        assert f"{ASKING} in {workspace.directory}, not the cluster.\n" in beside.err


def test_one_that_has_ended_is_not_asked(run_here: RunHere, tmp_path: Path) -> None:
    with claimed(default_directory({"HOME": str(tmp_path)})) as workspace:
        workspace.prepare(("host-1",))
        _serve_nowhere(workspace.directory)
    said = run_here("status", cwd=tmp_path, HOME=str(tmp_path), KUBECONFIG="config")
    assert ASKING not in said.err
    assert "config" in said.err


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--data-dir", "other"], {}),
        (["--kubeconfig", "none"], {}),
        (["--namespace", "ml"], {}),
        (["--address", "https://127.0.0.1:1", "--token-file", "token"], {}),
        ([], {"JOB_SUPERVISOR_DATA_DIR": "other"}),
        ([], {"SUPERVISOR_CLI_ADDRESS": "https://127.0.0.1:1", "SUPERVISOR_CLI_TOKEN_FILE": "token"}),
    ],
)
def test_whatever_is_named_wins(
    run_here: RunHere, tmp_path: Path, arguments: list[str], variables: dict[str, str]
) -> None:
    (tmp_path / "token").write_text("secret")
    with claimed(default_directory({"HOME": str(tmp_path)})) as workspace:
        workspace.prepare(("host-1",))
        said = run_here("status", *arguments, cwd=tmp_path, **{"HOME": str(tmp_path), **variables})
        assert said.code != CliExitCode.DONE
        assert ASKING not in said.err
        assert ("asking the cluster, not the running `elastic-job-supervisor dev`" in said.err) is ("ml" in arguments)
