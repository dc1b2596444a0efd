"""The torch of a Python that is not ours, such as that of a machine with GPUs."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ASKED = """
import json, sys, torch
gpus = torch.cuda.device_count()
name = torch.cuda.get_device_name() if gpus else ""
print(json.dumps([torch.__version__, "%d.%d" % sys.version_info[:2], sys.prefix, gpus, name]))
"""


@dataclass(frozen=True, slots=True)
class ForeignTorch:
    """A torch and its environment.

    Attributes:
        version: Its version.
        python: That of its Python, such as 3.12.
        home: The environment that has it.
        gpus: How many GPUs it finds.
        gpu: The name of the first one, "" without.
    """

    version: str
    python: str
    home: Path
    gpus: int
    gpu: str

    @classmethod
    def of(cls, python: str) -> "ForeignTorch | None":
        """The torch of this command, None if it has none."""
        said = subprocess.run([python, "-c", _ASKED], capture_output=True, text=True, check=False)
        if said.returncode:
            return None
        version, release, home, gpus, gpu = json.loads(said.stdout)
        return cls(version, release, Path(home), gpus, gpu)
