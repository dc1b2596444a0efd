"""The images of a release."""

import hashlib
from pathlib import Path

import pytest

from release.checkout import Checkout
from release.images import NoImagesError, archives
from tests.images.images_building import CHECKOUT, Image, Images, registry_answers

_EPOCH = 1_767_225_600


def _sums(directory: Path) -> dict[str, str]:
    directory.mkdir()
    paths = archives(Checkout(CHECKOUT, _EPOCH, "none"), directory, stand_in=True, wanted=[Image.AGENT])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.long
@pytest.mark.usefixtures("images")
def test_two_builds_of_an_image_are_equal_byte_by_byte(tmp_path: Path) -> None:
    """Nothing is taken from the cache the second time."""
    first, second = _sums(tmp_path / "first"), _sums(tmp_path / "second")
    assert len(first) == 2
    assert first == second


def test_a_release_is_not_built_on_a_stand_in(images: Images, tmp_path: Path) -> None:
    if registry_answers() or not images.stand_in:
        pytest.skip("an image registry answers")
    with pytest.raises(NoImagesError, match="no image registry can be reached"):
        archives(Checkout(CHECKOUT, _EPOCH, "none"), tmp_path, stand_in=False)
    assert list(tmp_path.iterdir()) == []
