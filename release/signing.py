"""Signs the checksums of a release with a key of OpenSSH, as `ssh-keygen -Y verify` reads it."""

import subprocess
from pathlib import Path

from release.errors import NoReleaseError

NAMESPACE = "elastic-job-supervisor"
"""The purpose that a signature names. A signature that names another one does not verify."""
_SECONDS = 60.0


def sign(sums: Path, key: Path) -> Path:
    """Writes the signature beside the checksums, and returns its path. A key that is locked asks for its passphrase.

    Raises:
        NoReleaseError: There is no ssh-keygen, or it cannot sign with the key.
    """
    command = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(sums)]
    try:
        done = subprocess.run(  # noqa: S603 - the command is ours
            command, check=False, stderr=subprocess.PIPE, text=True, timeout=_SECONDS
        )
    except FileNotFoundError as error:
        raise NoReleaseError("there is no ssh-keygen to sign with") from error
    except subprocess.TimeoutExpired as error:
        raise NoReleaseError(f"ssh-keygen had not signed after {_SECONDS:g} s") from error
    if done.returncode:
        raise NoReleaseError(f"cannot sign with {key}: {' '.join(done.stderr.split())}")
    return sums.with_name(f"{sums.name}.sig")
