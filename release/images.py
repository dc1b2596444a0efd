"""The container images as archives, each with a bill of materials that includes its base."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import archive
from release.checkout import Checkout
from tests.images import images_bill
from tests.images.images_building import Image, ImageNotBuilt, Images, build, buildah, registry_answers
from tests.testkit.packages import PackageUnavailable


class NoImagesError(Exception):
    """This machine cannot build them; the message says why."""


def archives(
    checkout: Checkout, directory: Path, *, stand_in: bool, wanted: Sequence[Image] = tuple(Image)
) -> list[Path]:
    """Builds the images and writes them as OCI archives, and their bills of materials.

    Raises:
        NoImagesError: There is no builder, or a build fails. Without `stand_in`, also if the base cannot be had.
    """
    if not stand_in and not registry_answers():
        raise NoImagesError("no image registry can be reached, and a release is not built on a stand-in for the base")
    try:
        images = build(checkout.epoch, wanted)
        paths = []
        for image in wanted:
            name = image.reference.rpartition("/")[2].replace(":", "-")
            paths.append(directory / f"{name}.oci.tar")
            _pack(images, image, paths[-1], checkout.epoch)
            paths.append(images_bill.write(images, image, directory).rename(directory / f"{name}.image.cdx.json"))
    except (PackageUnavailable, ImageNotBuilt) as error:
        raise NoImagesError(str(error)) from error
    return paths


def _pack(images: Images, image: Image, path: Path, epoch: int) -> None:
    """Writes the image as an OCI archive. buildah's own archives have the time at which they are written."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch, path.open("wb") as out:
        buildah(images.storage, "push", image.reference, f"oci:{scratch}:{image.reference}")
        files = sorted(file for file in Path(scratch).rglob("*") if file.is_file())
        archive.write(out, {str(file.relative_to(scratch)): file for file in files}, epoch)
