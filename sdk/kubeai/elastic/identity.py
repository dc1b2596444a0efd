"""The files of the identity directory: who this process is, its supervisor's address, and the pod's annotations.

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
from typing import TYPE_CHECKING

from .messages import Directive, DirectiveKind

if TYPE_CHECKING:
    from .monitor import Monitor

DEFAULT_DIRECTORY = "/var/run/kubeai"
ANNOTATIONS = "annotations"
_DIRECTIVE_KEY = "job-supervisor.kube-ai.io/directive"
_POLL_SECONDS = 1.0
_MAX_BYTES = 1024 * 1024  # Kubernetes allows 256 KiB of annotations; here they are escaped
_FIELDS = 3
_MAX_DIGITS = 16  # what every JSON parser keeps; Python refuses to parse thousands of digits


@dataclass(frozen=True)
class RunIdentity:
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


def read(directory: Path) -> RunIdentity | None:
    """Read the files. Return None (not configured) if one is missing, empty or malformed."""
    try:
        token = _text(directory / "token")
        address = _text(directory / "address")
        job, run = None, None
        if (directory / "job").exists() or (directory / "run").exists():
            # One without the other is a half-written state and raises.
            job, run = _text(directory / "job"), int(_text(directory / "run"))
        ca = directory / "ca.crt"
        return RunIdentity(directory, address, token, job, run, ca if ca.exists() else None)
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


def write(identity: RunIdentity) -> None:
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
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _text(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip()
    if not text:
        raise ValueError(f"{path} is empty")
    return text


class AnnotationWatch:
    """Passes the directive in the pod's annotations to the monitor.

    This second path needs no network in the pod: a downward-API volume shows the annotations as a file, which the
    kubelet updates within a second. A directive that was there before this process started may be for an earlier
    process in the same pod. It counts only after the supervisor has confirmed that this process belongs to that run.
    """

    def __init__(self, directory: Path, monitor: Monitor) -> None:
        self._path = directory / ANNOTATIONS
        self._monitor = monitor
        self._version: tuple[int, int] | None = None
        self._directive: Directive | None = None
        self._is_there = self._reread()
        self._initial = self._directive

    def poll(self) -> float | None:
        """Read the file once and return the seconds until the next poll, or None if there was no file at the start."""
        if not self._is_there:
            return None
        self._reread()
        if self._directive is not None:
            self._monitor.receive_annotation(self._directive, is_news=self._directive != self._initial)
        return _POLL_SECONDS

    def _reread(self) -> bool:
        try:
            found = self._path.stat()
            version = (found.st_ino, found.st_mtime_ns)
            if version != self._version:
                with self._path.open("rb") as file:
                    self._directive = parse_annotations(file.read(_MAX_BYTES).decode(errors="replace"))
                self._version = version
        except OSError:
            return False
        return True


def parse_annotations(text: str) -> Directive | None:
    """Return the directive in annotations as the kubelet writes them (one `key="value"` per line), or None.

    Its value is `RUN GENERATION STOP|LEAVE REASON`.
    """
    lines = (line.partition("=") for line in text.splitlines())
    quoted = next((value for key, _, value in lines if key == _DIRECTIVE_KEY), "")
    words = quoted[1:-1].split(" ", _FIELDS)
    if not (len(quoted) > 1 and quoted[0] == quoted[-1] == '"' and len(words) >= _FIELDS):
        return None
    run, generation, kind = words[:_FIELDS]
    are_numbers = all(number.isdecimal() and len(number) <= _MAX_DIGITS for number in (run, generation))
    if not are_numbers or kind not in ("STOP", "LEAVE"):
        return None
    reason = words[_FIELDS].replace('\\"', '"') if len(words) > _FIELDS else "the pod's annotation asks for it"
    return Directive(DirectiveKind(kind), job="", run=int(run), generation=int(generation), reason=reason)
