"""The original `kubeai` from PyPI in a virtual environment outside the checkout, which is kept between runs."""

import asyncio
import os
import sys
from pathlib import Path

DISTRIBUTION = "kubeai==0.1.0"


async def interpreter() -> Path | None:
    """Return its Python, or None if it cannot be installed. `kubeai.elastic` needs none of its dependencies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "elastic-job-supervisor" / DISTRIBUTION.replace("==", "-")
    python = home / "bin" / "python"
    if await _run(str(python), "-c", "import kubeai.elastic") == 0:
        return python
    if await _run(sys.executable, "-m", "venv", "--clear", str(home)) != 0:
        return None
    installed = await _run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", DISTRIBUTION)
    return python if installed == 0 else None


async def _run(*command: str) -> int:
    quiet = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    except OSError:
        return -1
    return await process.wait()
