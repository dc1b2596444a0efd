import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.images_building import Images, build
from tests.images.images_containers import PACKAGES, Engine
from tests.testkit.packages import PackageUnavailable, require


@pytest.fixture(scope="session")
def images() -> Images:
    """Both images, built. The tests are skipped if this machine cannot build them, and fail if a build fails."""
    try:
        return build()
    except PackageUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def engine(images: Images) -> Iterator[Engine]:
    try:
        require(PACKAGES)
    except PackageUnavailable as reason:
        pytest.skip(str(reason))
    with tempfile.TemporaryDirectory(prefix="images-") as directory:
        present = Engine(images, Path(directory))
        try:
            yield present
        finally:
            present.clean_up()
