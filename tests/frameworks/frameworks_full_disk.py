"""The example with saves in the background, on whose rank 1 the disk is full at the first save.

… frameworks_full_disk.py DIRECTORY STEPS background
"""

import errno
import os
import runpy
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemWriter

_EXAMPLE = Path(__file__).parents[2] / "sdk" / "examples" / "fsdp.py"
_write_data = FileSystemWriter.write_data
_saves = 0


def _write_first_to_full_disk(self: FileSystemWriter, *arguments: Any, **named: Any) -> Any:
    global _saves  # noqa: PLW0603 - counted over all writers
    _saves += 1
    if _saves == 1 and os.environ["RANK"] == "1":
        raise OSError(errno.ENOSPC, "No space left on device")
    return _write_data(self, *arguments, **named)


FileSystemWriter.write_data = _write_first_to_full_disk
runpy.run_path(str(_EXAMPLE), run_name="__main__")
