"""What a command says whose packages are not installed."""

import sys
from types import SimpleNamespace

import pytest

from elastic_job_supervisor import commands


def _import_of(name: str) -> object:
    def fails(_module: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    return fails


def test_a_service_without_its_packages_says_which_extra_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra `cli` alone was installed, which brings the services' commands with it."""
    monkeypatch.setattr(sys, "argv", ["/bin/elastic-node-agent"])
    monkeypatch.setattr(commands, "import_module", _import_of("grpc"))
    with pytest.raises(SystemExit) as ended:
        commands.node_agent()
    assert str(ended.value).startswith("elastic-node-agent: the package grpc is not installed here.")
    assert "elastic-job-supervisor[server]" in str(ended.value)


def test_packages_that_are_missed_later_are_named_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """`elastic-job-supervisor` imports a subcommand's packages when that is run."""
    main = _import_of("uvloop")
    monkeypatch.setattr(sys, "argv", ["elastic-job-supervisor"])
    monkeypatch.setattr(commands, "import_module", lambda _: SimpleNamespace(main=lambda **_: main(""), COMMAND=None))  # type: ignore[operator]
    with pytest.raises(SystemExit, match="uvloop is not installed"):
        commands.supervisor()


def test_a_missing_module_of_ours_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "import_module", _import_of("supervisor.gone"))
    with pytest.raises(ModuleNotFoundError):
        commands.supervisor()
