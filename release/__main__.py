"""`python -m release VERSION`: builds a release into dist/VERSION/."""

import argparse
import hashlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from release import chart, distributions, images, provenance, version
from release.checkout import Checkout
from release.errors import NoReleaseError
from release.notes import notes
from release.signing import sign

_ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 1 if there is no release."""
    given = _parser().parse_args(arguments)
    try:
        paths = build(given.version, given.out.resolve() / given.version, given.images)
        if given.sign is not None:
            paths.append(sign(paths[-1], given.sign))
    except NoReleaseError as error:
        sys.stderr.write(f"no release: {error}\n")
        return 1
    for path in paths:
        sys.stdout.write(f"{path}\n")
    return 0


def build(number: str, directory: Path, wanted: str) -> list[Path]:
    """Writes every file of the release and returns their paths, the last of which is that of the checksums.

    Raises:
        NoReleaseError: The checkout is not clean, or not of this version, or a part cannot be built.
    """
    checkout = Checkout.clean(_ROOT)
    version.check(_ROOT, number)
    text = notes((_ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    paths = [*distributions.build(checkout, directory)]
    paths += [chart.package(checkout, number, directory, name) for name in (chart.NAME, chart.HUB_NAME)]
    paths += distributions.bills(checkout, number, directory)
    paths += _images(checkout, directory, wanted)
    paths.append(directory / "RELEASE_NOTES.md")
    paths[-1].write_text(text, encoding="utf-8")
    paths.append(provenance.write(checkout, number, paths, directory))
    return [*paths, _sums(paths, directory)]


def _images(checkout: Checkout, directory: Path, wanted: str) -> list[Path]:
    if wanted == "none":
        return []
    try:
        return images.archives(checkout, directory, stand_in=wanted == "stand-in")
    except images.NoImagesError as error:
        if wanted == "required":
            raise NoReleaseError(f"no images: {error}") from error
        sys.stderr.write(f"this release has no images: {error}\n")
        return []


def _sums(paths: Sequence[Path], directory: Path) -> Path:
    """Writes the checksums, as `sha256sum --check` reads them."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths)]
    (directory / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return directory / "SHA256SUMS"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make release", description="Builds a release. Publishes nothing.")
    parser.add_argument("version", help="the version, as in the changelog")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder (default: %(default)s)")
    parser.add_argument(
        "--images",
        choices=("auto", "required", "none", "stand-in"),
        default="auto",
        help="whether to build images (default: where that is possible); stand-in: a rehearsal without a registry",
    )
    parser.add_argument(
        "--sign", type=Path, metavar="KEY", help="a private key of OpenSSH, with which SHA256SUMS is signed"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
