"""The operator's host list: its source and its format.

``kubeai-discover-hosts`` starts every second, so this module imports nothing that reading a file does not need
(``dataclasses`` alone would double the start-up time of the interpreter).
"""

from __future__ import annotations

# pathlib would make the start of a command that runs every second a third slower.
# ruff: noqa: PTH100, PTH116, PTH123
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Mapping

DEFAULT_FILE = "/etc/edl/hostfile"
FILE_VARIABLE = "KUBEAI_HOSTS_FILE"
SCRIPT_VARIABLE = "KUBEAI_HOSTS_SCRIPT"
PORT_VARIABLE = "KUBEAI_HOSTS_PORT"
DEFAULT_PORT = 22
HIGHEST_PORT = 65535

SCRIPT_SECONDS = 5.0
# The operator rewrites the file in place by exec (0.15 s per call). A file that changed less than this ago may be half
# written, and one that became empty less than a second ago is probably being rewritten.
_SETTLING_SECONDS = 0.05
_SETTLING_READS = 4
_EMPTY_SECONDS = 1.0


class Unreadable(Exception):  # noqa: N818 - the name describes the list.
    """The operator's list cannot be read now. The caller continues with the last good one."""


class HostSource:
    """The source of the operator's list: a script if one is named, otherwise a file."""

    def __init__(self, file: str, script: str | None = None) -> None:
        self.file = os.path.abspath(file)
        self.script = script

    def read(self) -> dict[str, str]:
        """Read the present list.

        Returns:
            The operator's lines (``host`` or ``host:slots``) by host name, in the operator's order.

        Raises:
            Unreadable: There is no usable list at the moment.
        """
        return parse(_output_of(self.script) if self.script else _settled_text(self.file))


def source(file: str | None, script: str | None, environ: Mapping[str, str]) -> HostSource:
    """Choose the source: arguments take precedence over the environment, the script over the file."""
    chosen_script = script if script is not None or file is not None else environ.get(SCRIPT_VARIABLE)
    return HostSource(file or environ.get(FILE_VARIABLE) or DEFAULT_FILE, chosen_script or None)


def parse(text: str) -> dict[str, str]:
    """Parse hostfile lines into a dict of host name to line. Blank lines and ``#`` comments are skipped."""
    lines = (line.strip() for line in text.splitlines())
    return {name_of(line): line for line in lines if line and not line.startswith("#")}


def name_of(line: str) -> str:
    """Return the host name of a ``host``, ``host:slots`` or ``host slots=N`` line."""
    word = line.split(None, 1)[0]
    host, colon, slots = word.rpartition(":")
    return host if colon and slots.isdigit() else word


def read_text(path: str) -> str:
    """Read a small text file. Bytes that are not UTF-8 are preserved."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _settled_text(path: str) -> str:
    try:
        for _ in range(_SETTLING_READS):
            text = read_text(path)
            age = time.time() - os.stat(path).st_mtime
            if not 0 <= age < _SETTLING_SECONDS:
                break
            time.sleep(_SETTLING_SECONDS)
    except OSError as error:
        raise Unreadable(f"hosts file {path}: {error.strerror}") from error
    if not text and 0 <= age < _EMPTY_SECONDS:
        raise Unreadable(f"hosts file {path}: being rewritten")
    return text


def _output_of(script: str) -> str:
    # Imported here, because the usual source is a file and subprocess takes a third of this command's start-up time.
    import shlex  # noqa: PLC0415
    import signal  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command line.
            shlex.split(script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable(f"hosts script: {error}") from error
    with process:
        try:
            output, _ = process.communicate(timeout=SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            # Kill the whole session, because a grandchild that keeps the pipe open would block us too.
            os.killpg(process.pid, signal.SIGKILL)
            raise Unreadable(f"hosts script: no answer within {SCRIPT_SECONDS:g} s") from None
    if process.returncode != 0:
        raise Unreadable(f"hosts script: exit code {process.returncode}")
    return output.decode("utf-8", "surrogateescape")
