import os
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
    chosen,
    installed,
)
from tests.frameworks.frameworks_rounds import BACKEND, DEVICE
from tests.testkit.torches import ForeignTorch

_WITH_OLDEST = {"frameworks", "fsdp2", "jax", "tensorflow", "trl"}
"""The fixtures that give the oldest versions if these are wanted."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has nothing to do with the oldest versions: it has an environment of its own, or none."""
    if CHOSEN is OLDEST:
        others = [item for item in items if not _WITH_OLDEST & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The environment that has PyTorch and its frameworks: the newest, or the oldest."""
    return _of_other_python() or _installed(CHOSEN)


@pytest.fixture(scope="session")
def fsdp2() -> Path:
    """The environment that has an FSDP2 for CPUs: the newest, or the oldest, which is of a later torch."""
    if (DEVICE, BACKEND) == ("cuda", "gloo"):
        pytest.skip("FSDP2 on GPUs is for NCCL")
    return _of_other_python() or _installed(CHOSEN_FSDP2)


@pytest.fixture(scope="session")
def jax() -> Path:
    """The environment that has JAX and Orbax: the newest, or the oldest."""
    return _installed(chosen(JAX))


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """The environment that has TensorFlow and Keras: the newest, or the oldest."""
    return _installed(chosen(TENSORFLOW))


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
    """The environment that has TRL with PyTorch and Transformers: the newest, or the oldest."""
    return _installed(chosen(TRL))


@pytest.fixture(scope="session")
def ray() -> Path:
    """The environment that has Ray Train and PyTorch."""
    return _installed(RAY)


def _of_other_python() -> Path | None:
    """The environment of FRAMEWORKS_PYTHON, whose torch may have GPUs; None if no other Python is given."""
    python = os.environ.get("FRAMEWORKS_PYTHON")
    if python is None:
        return None
    found = ForeignTorch.of(python)
    if found is None:
        pytest.skip(f"{python} has no torch")
    if DEVICE == "cuda" and not found.gpus:
        pytest.skip(f"torch {found.version} of {python} finds no GPU")
    return found.home


def _installed(environment: FrameworksEnvironment) -> Path:
    try:
        return installed(environment)
    except FrameworksNotInstallable as reason:
        pytest.skip(f"{environment.name} cannot be installed here: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} {value}")
