"""Reads directives from an annotation of the pod, which a downward-API volume shows as a file.

This second path needs no network in the pod. The kubelet updates the file within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .values import Directive, DirectiveKind

if TYPE_CHECKING:
    from pathlib import Path

    from .monitor import Monitor

FILE = "annotations"
KEY = "job-supervisor.kube-ai.io/directive"

_POLL_SECONDS = 1.0
_MAX_BYTES = 1024 * 1024  # Kubernetes allows 256 KiB of annotations; here they are escaped
_FIELDS = 3
_MAX_DIGITS = 16  # what every JSON parser keeps; Python refuses to parse thousands of digits


class AnnotationWatch:
    """Polls the annotations file and passes this process's directive to the monitor.

    A directive that was there before this process started may be for an earlier process in the same pod. It counts only
    after the supervisor has confirmed that this process belongs to that run.
    """

    def __init__(self, directory: Path, monitor: Monitor) -> None:
        self._path = directory / FILE
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
                    self._directive = parse(file.read(_MAX_BYTES).decode(errors="replace"))
                self._version = version
        except OSError:
            return False
        return True


def parse(text: str) -> Directive | None:
    """Return the directive in annotations as the kubelet writes them (one `key="value"` per line), or None."""
    for line in text.splitlines():
        key, _, quoted = line.partition("=")
        if key == KEY:
            return _parse_directive(quoted)
    return None


def _parse_directive(quoted: str) -> Directive | None:
    """Parse `"RUN GENERATION STOP|LEAVE REASON"`."""
    words = quoted[1:-1].split(" ", _FIELDS)
    if not (len(quoted) > 1 and quoted[0] == quoted[-1] == '"' and len(words) >= _FIELDS):
        return None
    run, generation, kind = words[:_FIELDS]
    if not (_is_number(run) and _is_number(generation) and kind in ("STOP", "LEAVE")):
        return None
    reason = words[_FIELDS].replace('\\"', '"') if len(words) > _FIELDS else "the pod's annotation asks for it"
    return Directive(DirectiveKind(kind), job="", run=int(run), generation=int(generation), reason=reason)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS
