from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.monitoring.monitoring_programs import MonitoringProgram, ProgramUnavailable, Schemas, programs, schemas


@pytest.fixture(scope="session", name="programs")
def _programs() -> Mapping[MonitoringProgram, Path]:
    try:
        return programs()
    except ProgramUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", name="schemas")
def _schemas() -> Schemas:
    try:
        return schemas()
    except ProgramUnavailable as reason:
        pytest.skip(str(reason))
