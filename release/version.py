"""The version, in each file that declares it."""

import re
from collections.abc import Mapping
from pathlib import Path

from release.errors import NoReleaseError

_DECLARATIONS: Mapping[str, tuple[str, ...]] = {
    "pyproject.toml": (r'^version = "(.+)"$',),
    "sdk/kubeai/elastic/version.py": (r'^__version__ = "(.+)"$',),
    "charts/elastic-job-supervisor/Chart.yaml": (r"^version: (.+)$", r"^appVersion: (.+)$"),
    "charts/job-supervisor-hub/Chart.yaml": (r"^version: (.+)$", r"^appVersion: (.+)$"),
}
_FORM = re.compile(r"\d+\.\d+\.\d+(?:-?(?:rc|a|b)\.?\d+)?")


def declared(root: Path) -> Mapping[str, list[str]]:
    """Returns the versions that each file declares."""
    return {
        name: [found for pattern in patterns for found in re.findall(pattern, _text(root / name), re.MULTILINE)]
        for name, patterns in _DECLARATIONS.items()
    }


def check(root: Path, version: str) -> None:
    """Checks that every file declares this version.

    Raises:
        NoReleaseError: It is not a version, or a file declares another one.
    """
    if not _FORM.fullmatch(version):
        raise NoReleaseError(f"{version!r} is not a version such as 1.2.3")
    for name, versions in declared(root).items():
        if versions != [version] * len(_DECLARATIONS[name]):
            raise NoReleaseError(f"{name} declares {', '.join(versions) or 'no version'} and not {version}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
