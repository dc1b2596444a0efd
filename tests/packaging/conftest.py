import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.packaging_environment import ROOT, PackagingEnvironment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(home.glob("*.whl"))


@pytest.fixture
def environment(tmp_path: Path) -> PackagingEnvironment:
    return PackagingEnvironment.create(tmp_path / "venv")
