"""Reads the facts about the checkout that a release needs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from release.errors import NoReleaseError


@dataclass(frozen=True, slots=True)
class Checkout:
    """A clean checkout.

    Attributes:
        root: Its folder.
        epoch: The time of its commit, in Unix seconds; the time of everything that is built.
        commit: The hash of its commit.
    """

    root: Path
    epoch: int
    commit: str

    @classmethod
    def clean(cls, root: Path) -> "Checkout":
        """Reads the checkout.

        Raises:
            NoReleaseError: It has changes that are not committed, or is none.
        """
        changed = _git(root, "status", "--porcelain").splitlines()
        if changed:
            raise NoReleaseError(f"the checkout has changes that are not committed: {changed[0].strip()}")
        epoch, commit = _git(root, "log", "-1", "--format=%ct %H").split()
        return cls(root, int(epoch), commit)

    def files(self, folder: str) -> list[Path]:
        """Returns the tracked files below a folder, in order."""
        return [self.root / name for name in sorted(_git(self.root, "ls-files", "--", folder).splitlines())]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=root)  # noqa: S603, S607  # The PATH's.
    if done.returncode:
        raise NoReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout
