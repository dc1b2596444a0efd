from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.monitoring.monitoring_programs import CannotBeHad, Program, Schemas, programs, schemas


@pytest.fixture(scope="session", name="programs")
def _programs() -> Mapping[Program, Path]:
    try:
        return programs()
    except CannotBeHad as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session", name="schemas")
def _schemas() -> Schemas:
    try:
        return schemas()
    except CannotBeHad as reason:
        pytest.skip(str(reason))
