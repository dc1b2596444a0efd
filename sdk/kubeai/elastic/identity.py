"""Who this process is and whom it talks to: a few files in one directory.

Training processes are often started over ssh and see no environment of ours, so everything they need is in files at one
fixed path. They are replaced while the process lives (a new address, a new token), hence read again at each connection.

The files are not replaced together. Whoever writes them writes `run` before `token`, and `read` reads `token` before
`run`: a process of an older run may then see its own token beside the new number, and stop, but never the new token
beside its own number, with which it would speak for a run that is not its own.

In a pod the directory has neither `job` nor `run`. The token names the pod, which says the rest, and ends with its run.
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
    """What the identity directory said at one moment; `job` and `run` are None where the pod is the identity."""

    directory: Path
    address: str
    token: str = field(repr=False)
    job: str | None
    run: int | None
    ca: Path | None


def directory() -> Path:
    """The identity directory: the environment's KUBEAI_DIR, else the fixed path."""
    return Path(os.environ.get("KUBEAI_DIR") or DEFAULT_DIRECTORY)


def read(directory: Path) -> Identity | None:
    """What the files say now; None when one is missing, empty or malformed, which all mean: not configured."""
    try:
        token = _text(directory / "token")
        address = _text(directory / "address")
        job, run = _run(directory)
        ca = directory / "ca.crt"
        return Identity(directory, address, token, job, run, ca if ca.exists() else None)
    except (OSError, ValueError):
        return None


def write(identity: Identity) -> None:
    """Put the files of one run in place, in the order that readers rely on; `ca` is copied. Raises OSError."""
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
    """Replace the file's whole content, so that a reader sees the old text or the new one. Raises OSError."""
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
    """Job and run, or neither; one without the other is half written."""
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
