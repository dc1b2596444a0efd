"""The identity of this process and the address of its supervisor, as a few files in one directory.

Training processes are often started over ssh and do not inherit our environment variables, so everything they need is
in files at a fixed path. The files are replaced while the process lives (a new address, a new token), so they are read
again for each connection.

The files are not replaced together. A writer writes `run` before `token`, and `read` reads `token` before `run`. A
process of an older run may then see its own token with the new run number, and stop. It never sees the new token with
its own run number, which would let it speak for another run.

In a pod the directory has neither `job` nor `run`. The token names the pod, which implies both, and expires with it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_DIRECTORY = "/var/run/kubeai"


@dataclass(frozen=True)
class Identity:
    """A snapshot of the identity directory. `job` and `run` are None if the pod is the identity."""

    directory: Path
    address: str
    token: str = field(repr=False)
    job: str | None
    run: int | None
    ca: Path | None


def directory() -> Path:
    """Return the identity directory: KUBEAI_DIR if set, otherwise the fixed path."""
    return Path(os.environ.get("KUBEAI_DIR") or DEFAULT_DIRECTORY)


def read(directory: Path) -> Identity | None:
    """Read the files. Return None (not configured) if one is missing, empty or malformed."""
    try:
        token = _text(directory / "token")
        address = _text(directory / "address")
        job, run = _run(directory)
        ca = directory / "ca.crt"
        return Identity(directory, address, token, job, run, ca if ca.exists() else None)
    except (OSError, ValueError):
        return None


def absence(directory: Path) -> str:
    """Return why `read` has found nothing, as the rest of a line that begins with "no supervisor: "."""
    try:
        for path in (directory / name for name in ("token", "address", "job", "run")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.read_bytes()
    except OSError as error:
        return f"user {os.geteuid()} cannot read {error.filename}: {error.strerror}"
    return f"none is configured in {directory}"


def write(identity: Identity) -> None:
    """Write the files of one run in the order that readers rely on. The CA file is copied. Raises OSError."""
    home = identity.directory
    if identity.run is not None:
        write_atomically(home / "run", f"{identity.run}\n")
    if identity.job is not None:
        write_atomically(home / "job", f"{identity.job}\n")
    write_atomically(home / "address", f"{identity.address}\n")
    if identity.ca is not None:
        write_atomically(home / "ca.crt", identity.ca.read_text(encoding="ascii"))
    write_atomically(home / "token", f"{identity.token}\n")


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file so that a reader sees either the old or the new content. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        _remove(draft)
        raise


def _run(directory: Path) -> tuple[str | None, int | None]:
    """Return job and run, or neither. One without the other is a half-written state and raises."""
    if not (directory / "job").exists() and not (directory / "run").exists():
        return None, None
    return _text(directory / "job"), int(_text(directory / "run"))


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip()
    if not text:
        raise ValueError(f"{path} is empty")
    return text


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
