"""The real kubectl, as its users have it."""

import asyncio
import os
from pathlib import Path

from tests.testkit.controlplane.binaries import Tool, client_path
from tests.testkit.controlplane.running import RunningCluster


async def kubectl(cluster: RunningCluster, home: Path, *arguments: str) -> str:
    """Run kubectl, which must succeed, and return its output; it caches discovery in that directory."""
    environment = {**os.environ, "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig), "TZ": "UTC"}
    process = await asyncio.create_subprocess_exec(
        client_path(Tool.KUBECTL),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, wrong = await process.communicate()
    assert process.returncode == 0, f"kubectl {' '.join(arguments)}: {wrong.decode()}"
    return said.decode()


def columns(table: str) -> list[dict[str, str]]:
    """The rows of `kubectl get`, by column: each begins where its name does."""
    head, *rows = table.splitlines()
    names = head.split("  ")
    begins = {name.strip(): head.index(name.strip()) for name in names if name.strip()}
    ends = [*list(begins.values())[1:], None]
    return [
        {name: row[begin:end].strip() for (name, begin), end in zip(begins.items(), ends, strict=True)} for row in rows
    ]
