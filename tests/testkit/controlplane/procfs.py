"""Reads the state of processes from /proc."""

from pathlib import Path


def processes(directory: Path) -> dict[int, list[str]]:
    """The commands of all processes that name the directory, by process id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(str(directory) in word for word in command):
            found[int(entry.parent.name)] = command
    return found


def waits_for_a_lock(pid: int) -> bool:
    """Whether a process is blocked because another has the lock that it wants."""
    lines = (line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines())
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)
