"""Source `file`: reads a file that another program writes, for drills, tests and clouds without a source here.

Absent or empty: nothing is announced. A UTC timestamp: the node will be gone at that instant.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from node_agent.metadata import MAX_BYTES, parse_utc
from node_agent.notices import Answer, Clear, NodeIdentity, Noticed, SourceName, SourceUnavailable
from servicekit.clock import Clock


@dataclass(frozen=True)
class FileSource:
    """Reads the file at each poll, on the loop: it is small and on a local disk."""

    name = SourceName("file")
    path: Path
    clock: Clock

    async def identify(self) -> NodeIdentity | None:
        return None

    async def poll(self) -> Answer:
        try:
            # Without O_NONBLOCK, a pipe in place of the file would block the whole agent until somebody writes to it.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return Clear()
        except OSError as error:
            raise SourceUnavailable(f"unreadable file: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SourceUnavailable("not a regular file")
            content = os.read(descriptor, MAX_BYTES + 1)
        except OSError as error:
            raise SourceUnavailable(f"unreadable file: {error.strerror}") from error
        finally:
            os.close(descriptor)
        # If the file were cut, many blanks would read as clear, and a timestamp with text behind it as a notice.
        if len(content) > MAX_BYTES:
            raise SourceUnavailable(f"file larger than {MAX_BYTES} bytes")
        announced = parse_utc(content)
        if announced is None:
            return Clear()
        return Noticed(announced, announced.timestamp() - self.clock.wall(), "announced in a file")

    async def close(self) -> None:
        """Does nothing: no file stays open."""
