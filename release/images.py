"""The container images as archives, each with a bill of materials that includes its base."""

from pathlib import Path

from release.checkout import Checkout
from tests.images import images_bill
from tests.images.images_building import Image, NotBuilt, build, buildah, registry_answers
from tests.testkit.packages import CannotBeHad


class NoImagesError(Exception):
    """This machine cannot build them; the message says why."""


def archives(checkout: Checkout, directory: Path, *, stand_in: bool) -> list[Path]:
    """Builds both images and writes them as OCI archives, and their bills of materials.

    Raises:
        NoImagesError: There is no builder, or a build fails. Without `stand_in`, also if the base cannot be had.
    """
    if not stand_in and not registry_answers():
        raise NoImagesError("no image registry can be reached, and a release is not built on a stand-in for the base")
    try:
        images = build(epoch=checkout.epoch)
        paths = []
        for image in Image:
            name = image.reference.rpartition("/")[2].replace(":", "-")
            paths.append(directory / f"{name}.oci.tar")
            buildah(images.storage, "push", image.reference, f"oci-archive:{paths[-1]}:{image.reference}")
            paths.append(images_bill.write(images, image, directory).rename(directory / f"{name}.image.cdx.json"))
    except (CannotBeHad, NotBuilt) as error:
        raise NoImagesError(str(error)) from error
    return paths
