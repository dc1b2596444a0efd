from pathlib import Path

import pytest

from tests.frameworks.frameworks_installation import (
    FRAMEWORKS,
    JAX,
    MEGATRON,
    RAY,
    TENSORFLOW,
    TORCHTITAN,
    FrameworksEnvironment,
    FrameworksNotInstallable,
    installed,
)


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The environment that has PyTorch and its frameworks."""
    return _installed(FRAMEWORKS)


@pytest.fixture(scope="session")
def jax() -> Path:
    """The environment that has JAX and Orbax."""
    return _installed(JAX)


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """The environment that has TensorFlow and Keras."""
    return _installed(TENSORFLOW)


@pytest.fixture(scope="session")
def megatron() -> Path:
    """The environment that has Megatron-core with PyTorch."""
    return _installed(MEGATRON)


@pytest.fixture(scope="session")
def torchtitan() -> Path:
    """The environment that has TorchTitan with PyTorch."""
    return _installed(TORCHTITAN)


@pytest.fixture(scope="session")
def ray() -> Path:
    """The environment that has Ray Train and PyTorch."""
    return _installed(RAY)


def _installed(environment: FrameworksEnvironment) -> Path:
    try:
        return installed(environment)
    except FrameworksNotInstallable as reason:
        pytest.skip(f"{environment.name} cannot be installed here: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {value}")
