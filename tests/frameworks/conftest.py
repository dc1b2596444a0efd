from pathlib import Path

import pytest

from tests.frameworks.frameworks_installation import JAX, FrameworksNotInstallable, installed


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The environment that has torch and the training frameworks."""
    try:
        return installed()
    except FrameworksNotInstallable as reason:
        pytest.skip(f"the training frameworks cannot be installed here: {reason}")


@pytest.fixture(scope="session")
def jax() -> Path:
    """The environment that has JAX and Orbax."""
    try:
        return installed(JAX)
    except FrameworksNotInstallable as reason:
        pytest.skip(f"JAX cannot be installed here: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {value}")
