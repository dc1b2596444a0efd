"""Builds both images with buildah from the Dockerfiles, with a cache outside the checkout.

Run as a module: builds them, and prints their names and sizes.
"""

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.testkit.caches import alone, cache
from tests.testkit.packages import PackageUnavailable, require

CHECKOUT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim-bookworm"
_REGISTRY = "https://registry-1.docker.io/v2/"
_REGISTRY_SECONDS = 5.0
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PACKAGES = {"buildah": "buildah", "runc": "runc", "mmdebstrap": "mmdebstrap"}
# What the base that is stood in for consists of, as far as it matters here.
_STAND_IN = ("python3", "python3-venv", "ca-certificates")
_WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
# The stand-in takes half a minute to two, each image about one where nothing is cached.
_SECONDS = 900.0
_MEGABYTES = {"KB": 1e-3, "MB": 1.0, "GB": 1e3}


class Image(StrEnum):
    SERVER = "server"
    AGENT = "agent"

    @property
    def reference(self) -> str:
        return f"localhost/{_NAMES[self]}:{version()}"


_NAMES = {Image.SERVER: "elastic-job-supervisor", Image.AGENT: "elastic-job-supervisor-agent"}


class ImageNotBuilt(Exception):  # noqa: N818  # It names what is so.
    """An image cannot be built; the message has the last words."""


@dataclass(frozen=True, slots=True)
class Images:
    storage: Path
    stand_in: bool
    """The base is made of Debian's packages, as no image registry can be reached."""

    def config(self, image: Image) -> Mapping[str, Any]:
        """The image's configuration by the OCI image specification."""
        said = buildah(self.storage, "inspect", "--type", "image", image.reference)
        config: Mapping[str, Any] = json.loads(said)["OCIv1"]
        return config

    def size(self, reference: str) -> float:
        number, unit = json.loads(buildah(self.storage, "images", "--json", reference))[0]["size"].split()
        return float(number) * _MEGABYTES[unit]


def version() -> str:
    with (CHECKOUT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def build(epoch: int | None = None, wanted: Iterable[Image] = Image) -> Images:
    """Returns the images, and builds them if something has changed.

    With an `epoch` they are built anew, and all their files are of that time.

    Raises:
        PackageUnavailable: This machine cannot build any.
        ImageNotBuilt: One cannot be built.
    """
    require(_PACKAGES)
    with alone(cache("images")):
        storage = cache("images") / "storage"
        stand_in = not registry_answers()
        if stand_in:
            _stand_in(storage)
        for image in wanted:
            _build(storage, image, epoch, pull=not stand_in)
    return Images(storage, stand_in)


def buildah(storage: Path, *arguments: str) -> str:
    """Run buildah and return its output; its mounts end with it.

    Raises:
        ImageNotBuilt: It failed.
    """
    where = ("--root", str(storage / "root"), "--runroot", str(storage / "run"))
    command = ["unshare", "--mount", "--propagation", "private", "buildah", *where, *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS, cwd=CHECKOUT)
    except subprocess.CalledProcessError as error:
        raise ImageNotBuilt(f"buildah {arguments[0]}: {' '.join(error.stderr.split())[-600:]}") from error
    except subprocess.TimeoutExpired as error:
        raise ImageNotBuilt(f"buildah {arguments[0]} had not ended after {_SECONDS:g} s") from error
    return done.stdout.strip()


def _build(storage: Path, image: Image, epoch: int | None, *, pull: bool) -> None:
    sys.stderr.write(f"building {image.reference}\n")
    given = {"VERSION": version(), "REVISION": _git("rev-parse", "HEAD"), "CREATED": _git("log", "-1", "--format=%cI")}
    given |= {"BASE": BASE, "BASE_DIGEST": _base_digest(storage, pull=pull)}
    # buildah reuses a cached LABEL although its arguments have changed.
    labels = [f"--label=org.opencontainers.image.{name.lower()}={given[name]}" for name in ("REVISION", "CREATED")]
    dated = [] if epoch is None else ["--no-cache", f"--timestamp={epoch}"]
    options = [f"--tag={image.reference}", f"--pull={str(pull).lower()}", *dated, *labels]
    _build_from(storage, Path(f"Dockerfile.{image}"), given, options)


def build_example(storage: Path, example: str, base: str = BASE) -> str:
    """Build the image of a tutorial's job upon a base in the storage, such as what `build` has left there.

    Returns its name.

    Raises:
        ImageNotBuilt: It cannot be built.
    """
    reference = f"localhost/{example}:1"
    sys.stderr.write(f"building {reference}\n")
    options = [f"--tag={reference}", "--pull=false", "--timestamp=0"]
    _build_from(storage, Path("examples/Dockerfile"), {"BASE": base, "EXAMPLE": example}, options)
    return reference


def _build_from(storage: Path, recipe: Path, given: Mapping[str, str], options: Sequence[str]) -> None:
    trusted = []
    if _CERTIFICATES.exists():
        # A registry behind a company's authority: the machine knows it, a base image does not.
        given = {**given, "PIP_CERT": str(_CERTIFICATES)}
        trusted = ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
    buildah(
        storage,
        *("build", "--isolation", "chroot", "--layers", "--file", str(recipe), *trusted, *options),
        *(f"--build-arg={name}={value}" for name, value in given.items()),
        ".",
    )


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=CHECKOUT)  # noqa: S607  # The PATH's.
    return done.stdout.strip() or "unknown"


def _base_digest(storage: Path, *, pull: bool) -> str:
    """The digest of the base in its registry; the stand-in has none there."""
    if not pull:
        return ""
    buildah(storage, "pull", "--quiet", BASE)
    return str(json.loads(buildah(storage, "images", "--json", BASE))[0]["digest"])


def registry_answers() -> bool:
    try:
        urllib.request.urlopen(_REGISTRY, timeout=_REGISTRY_SECONDS).close()
    except urllib.error.HTTPError:
        return True  # It asks who we are.
    except OSError:
        return False
    return True


def _stand_in(storage: Path) -> None:
    recipe = "\n".join([*_STAND_IN, *_WITHOUT, platform.machine()])
    tag = f"localhost/stand-in:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not buildah(storage, "images", "--quiet", "--filter", f"reference={tag}"):
        sys.stderr.write(f"no image registry can be reached: a stand-in for {BASE}, made of Debian's packages\n")
        with tempfile.TemporaryDirectory(dir=storage.parent) as directory:
            rootfs = Path(directory) / "rootfs.tar"
            _bootstrap(rootfs)
            container = buildah(storage, "from", "scratch")
            buildah(storage, "add", "--quiet", container, str(rootfs), "/")
            buildah(storage, "commit", "--quiet", "--rm", container, tag)
    buildah(storage, "tag", tag, BASE)


def _bootstrap(rootfs: Path) -> None:
    # The archive is worth nothing before it is complete: no package needs to reach the disk on its own.
    options = ["force-unsafe-io", *(f"path-exclude={path}" for path in _WITHOUT)]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_STAND_IN)}"]
    command += [*(f"--dpkgopt={option}" for option in options), "bookworm", str(rootfs)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.CalledProcessError as error:
        raise ImageNotBuilt(f"mmdebstrap: {' '.join(error.stderr.split())[-600:]}") from error
    except subprocess.TimeoutExpired as error:
        raise ImageNotBuilt(f"mmdebstrap had not ended after {_SECONDS:g} s") from error


def _main() -> None:
    images = build()
    base = images.size(BASE)
    told = f"{BASE}{' (a stand-in made of Debian packages)' if images.stand_in else ''}"
    sys.stdout.write(f"{base:6.0f} MB  {told}\n")
    for image in Image:
        whole = images.size(image.reference)
        sys.stdout.write(f"{whole:6.0f} MB  {image.reference} (of its own: {whole - base:.0f} MB)\n")


if __name__ == "__main__":
    try:
        _main()
    except (PackageUnavailable, ImageNotBuilt) as reason:
        sys.exit(f"no images: {reason}")
