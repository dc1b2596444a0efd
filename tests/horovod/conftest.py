from pathlib import Path

import pytest

from tests.horovod.horovod_installation import HorovodNotInstallable, compiled, installed


@pytest.fixture(scope="session")
def horovod() -> Path:
    try:
        return installed()
    except HorovodNotInstallable as reason:
        pytest.skip(f"Horovod 0.28.1 cannot be installed here: {reason}")


@pytest.fixture(scope="session")
def gloo() -> Path:
    """The environment that has Horovod compiled with gloo against torch."""
    try:
        return compiled()
    except HorovodNotInstallable as reason:
        pytest.skip(f"Horovod 0.28.1 cannot be compiled here: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {value}")
