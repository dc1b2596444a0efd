"""Builds one CycloneDX document for an image, from its lock file and its base distribution's packages.

Run as a module, with a directory: writes one document for each image there.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from tests.images.images_building import CHECKOUT, Image, ImageNotBuilt, Images, build, buildah
from tests.testkit.packages import PackageUnavailable

_STATUS = "var/lib/dpkg/status"


def write(images: Images, image: Image, directory: Path) -> Path:
    title, bill = image.reference.split("/")[1].split(":")[0], directory / f"{image}.cdx.json"
    with tempfile.TemporaryDirectory() as scratch:
        packages, base = Path(scratch) / "packages.cdx.json", Path(scratch) / "base.cdx.json"
        _run(
            *("cyclonedx-py", "requirements", "--pyproject", "pyproject.toml", "--mc-type", "application"),
            *("--output-reproducible", "-o", str(packages), f"requirements/{image}.txt"),
        )
        root = _installed(images, image, Path(scratch) / "root")
        _run("debsbom", "generate", "-t", "cdx", "-r", str(root), "--distro-name", "base", "-o", str(base))
        same = _reproducible(images, image, packages.read_bytes() + (root / _STATUS).read_bytes())
        _run("debsbom", "merge", "-t", "cdx", "--distro-name", title, *same, "-o", str(bill), str(packages), str(base))
    return bill


def _reproducible(images: Images, image: Image, contents: bytes) -> tuple[str, ...]:
    """The document's time and number: those of the image and of what is in it, not of the moment."""
    created = str(images.config(image)["created"])
    number = uuid.uuid5(uuid.NAMESPACE_OID, hashlib.sha256(contents).hexdigest())
    return "--timestamp", created, "--cdx-serialnumber", str(number)


def _installed(images: Images, image: Image, root: Path) -> Path:
    """A directory that has of the image's root only what the base's package manager knows."""
    container = buildah(images.storage, "from", "--pull-never", image.reference)
    status = root / _STATUS
    status.parent.mkdir(parents=True)
    try:
        known = buildah(images.storage, "run", "--isolation", "chroot", container, "cat", f"/{_STATUS}")
        status.write_text(known + "\n", encoding="utf-8")
    finally:
        buildah(images.storage, "rm", container)
    return root


def _run(tool: str, *arguments: str) -> None:
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    if done.returncode:
        raise ImageNotBuilt(f"{tool} {arguments[0]}: {' '.join(done.stderr.split())[-600:]}")


def _main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    images = build()
    for image in Image:
        sys.stdout.write(f"{write(images, image, directory)}\n")


if __name__ == "__main__":
    try:
        _main(Path(sys.argv[1]))
    except (PackageUnavailable, ImageNotBuilt) as reason:
        sys.exit(f"no bill of materials: {reason}")
