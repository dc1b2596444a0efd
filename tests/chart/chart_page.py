"""Reads commands and files from a page, by default the install page, so that tests can follow the page."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.chart.chart_rendering import CHART
from tests.testkit.controlplane.binaries import Tool, client_path
from tests.testkit.controlplane.running import RunningCluster

CHECKOUT = CHART.parents[1]
ARENA, INSTALL, PROTECT = "Where Arena is installed", "Install", "Protect a job"
INSTALL_PAGE = CHECKOUT / "docs" / "guide" / "install.md"
NOT_RUN = "<!-- not run: "
"""Begins the line above a block that no test follows, with the reason."""
# A rollout pulls and starts containers.
_COMMAND_SECONDS = 240.0


def sections(page: Path = INSTALL_PAGE) -> Sequence[str]:
    return re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)


def commands(section: str, page: Path = INSTALL_PAGE) -> Sequence[str]:
    """The command lines of a section, without those that the page says no test runs."""
    return [line for block in _blocks(page, section, "sh") for line in block.splitlines() if line]


def write_files(section: str, directory: Path) -> None:
    """Save what a section shows as a file: a block whose first line is a comment with the file's name."""
    for block in _blocks(INSTALL_PAGE, section, "yaml"):
        first, _, rest = block.partition("\n")
        if named := re.fullmatch(r"# (\S+\.yaml)", first):
            (directory / named[1]).write_text(rest, "utf-8")


def desk(directory: Path) -> Path:
    """The working directory of a person who follows a page, with the charts and the examples in it."""
    for name in ("charts", "examples"):
        (directory / name).symlink_to(CHECKOUT / name)
    return directory


def follow(line: str, cluster: RunningCluster, directory: Path) -> str:
    """Run a command there, which must succeed, and return its output."""
    homes = {f"HELM_{kind}_HOME": str(directory / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    tools = ":".join(str(client_path(tool).parent) for tool in (Tool.HELM, Tool.KUBECTL))
    environment = {
        **os.environ,
        **homes,
        "HOME": str(directory),  # kubectl keeps what it has discovered there.
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{tools}:{os.environ['PATH']}",
    }
    command = ["bash", "-o", "pipefail", "-c", line]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment,
        timeout=_COMMAND_SECONDS,
    )
    assert done.returncode == 0, f"{line}: {done.stderr}"
    return done.stdout


def _blocks(page: Path, section: str, language: str) -> Sequence[str]:
    text = page.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = re.finditer(rf"^({NOT_RUN}[^\n]*\n)?( *)```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{each[2]}", "", each[3], flags=re.MULTILINE) for each in found if not each[1]]
