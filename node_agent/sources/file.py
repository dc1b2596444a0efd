"""Source `file`: a file that another program writes, for drills, tests and clouds without a source of their own here.

Absent or empty: nothing is announced. A UTC timestamp: the node will be gone at that instant.
"""

import os
import stat
from pathlib import Path

from node_agent.notices import SourceName
from node_agent.sources import Answer, Clear, NodeIdentity, Noticed, SourceUnavailable
from node_agent.sources.announcement import MAX_BYTES, parse
from servicekit.clock import Clock

NAME = SourceName("file")


class FileSource:
    """Reads the file at each poll, on the loop: it is small and on a local disk."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    @property
    def name(self) -> SourceName:
        return NAME

    async def identify(self) -> NodeIdentity | None:
        return None

    async def poll(self) -> Answer:
        announced = parse(_content(self._path))
        if announced is None:
            return Clear()
        return Noticed(announced, announced.timestamp() - self._clock.wall(), "announced in a file")

    async def close(self) -> None:
        """Nothing is held open."""


def _content(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK, a pipe in place of the file would block the whole agent until somebody writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise SourceUnavailable(f"unreadable file: {error.strerror}") from error
    try:
        return _regular_content(descriptor)
    except OSError as error:
        raise SourceUnavailable(f"unreadable file: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _regular_content(descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise SourceUnavailable("not a regular file")
    content = os.read(descriptor, MAX_BYTES + 1)
    # If the file were cut, many blanks would read as clear, and a timestamp with text behind it as a notice.
    if len(content) > MAX_BYTES:
        raise SourceUnavailable(f"file larger than {MAX_BYTES} bytes")
    return content
