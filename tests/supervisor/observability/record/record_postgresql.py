"""A real PostgreSQL in a directory, which answers on a socket there, if this machine has one."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 60.0
_USERS = ("postgres", "nobody")


class NoPostgresqlError(Exception):
    """This machine has none; the message says what is missing."""


@contextmanager
def postgresql(directory: Path) -> Iterator[str]:
    """Runs it; yields the URL of a database.

    Raises:
        NoPostgresqlError: It is not installed.
    """
    programs = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)), None)
    found = programs or (Path(path) if (path := shutil.which("postgres")) else None)
    if found is None:
        raise NoPostgresqlError("there is no PostgreSQL: Debian's package is postgresql")
    owner = _owner(directory)
    data, log = directory / "data", directory / "log"
    # By the command itself: as a service it would outlive the test.
    initialise = [
        str(found.with_name("initdb")),
        "-D",
        str(data),
        "-U",
        "postgres",
        "-A",
        "trust",
        "--no-sync",
        "-E",
        "UTF8",
    ]
    subprocess.run(initialise, check=True, capture_output=True, timeout=_SECONDS, user=owner)
    with log.open("wb") as written:
        server = subprocess.Popen(
            [str(found), "-D", str(data), "-k", str(directory), "-c", "listen_addresses=", "-c", "fsync=off"],
            stdout=written,
            stderr=written,
            user=owner,
        )
    try:
        ready = [str(found.with_name("pg_isready")), "-h", str(directory), "-U", "postgres", "-t", "1"]
        while subprocess.run(ready, check=False, capture_output=True).returncode:
            assert server.poll() is None, log.read_text("utf-8")
        yield f"postgresql://postgres@/postgres?host={directory}"
    finally:
        server.terminate()
        server.wait(_SECONDS)


def _owner(directory: Path) -> str | None:
    """Whom it runs as: it refuses to run as root."""
    if os.geteuid():
        return None
    name = next(each for each in _USERS if _exists(each))
    shutil.chown(directory, name)
    for parent in (directory, *directory.parents):  # They are root's alone.
        parent.chmod(parent.stat().st_mode | 0o011)
        if parent.parent == Path("/tmp"):  # noqa: S108 - pytest's own
            break
    return name


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
