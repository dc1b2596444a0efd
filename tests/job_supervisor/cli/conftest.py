import os
from pathlib import Path

import pytest

from job_supervisor.cli.command import main
from tests.job_supervisor.cli.cli_running import RunHere, Said, environment


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunHere:
    """The command in this process: a twentieth of the time, where nothing of the process itself is at stake."""

    def call(*arguments: str | Path, cwd: Path | None = None, **variables: str) -> Said:
        with monkeypatch.context() as context:
            context.setattr(os, "environ", environment({"HOME": "/nonexistent", **variables}))
            context.chdir(cwd or Path.cwd())
            try:
                code = main([str(each) for each in arguments])
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Said(code, *capsys.readouterr())

    return call
