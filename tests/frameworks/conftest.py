from pathlib import Path

import pytest

from tests.frameworks.frameworks_installation import (
    CHOSEN,
    CHOSEN_FSDP2,
    JAX,
    MEGATRON,
    OLDEST,
    RAY,
    TENSORFLOW,
    TORCHTITAN,
    TRL,
    FrameworksEnvironment,
    FrameworksNotInstallable,
    installed,
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has nothing to do with the oldest versions: it has an environment of its own, or none."""
    if CHOSEN is OLDEST:
        others = [item for item in items if not {"frameworks", "fsdp2"} & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The environment that has PyTorch and its frameworks: the newest, or the oldest."""
    return _installed(CHOSEN)


@pytest.fixture(scope="session")
def fsdp2() -> Path:
    """The environment that has an FSDP2 for CPUs: the newest, or the oldest, which is of a later torch."""
    return _installed(CHOSEN_FSDP2)


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
def trl() -> Path:
    """The environment that has TRL with PyTorch and Transformers."""
    return _installed(TRL)


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
