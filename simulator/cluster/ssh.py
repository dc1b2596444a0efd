"""`python -m simulator.cluster.ssh -- COMMAND`: run a command on the host that HOROVOD_HOSTNAME names.

It stands for ssh into a worker pod: the process has the launcher's environment, and the files of its own pod.
"""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

HOSTS = "SIM_HOSTS"
PATIENCE_SECONDS = 30.0
"""A host that ssh cannot reach for so long has failed."""
_POLL_SECONDS = 0.05
_UNREACHABLE = 255


def main() -> NoReturn:
    """Becomes the command; ends with 255 where there is no such host."""
    home = Path(os.environ[HOSTS]) / os.environ["HOROVOD_HOSTNAME"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not home.is_dir():
        if time.monotonic() > deadline:
            sys.stderr.write(f"ssh: no route to host {home.name}\n")
            sys.exit(_UNREACHABLE)
        time.sleep(_POLL_SECONDS)
    command = sys.argv[sys.argv.index("--") + 1 :]
    # The pod's own files, and not those that a later pod of its name will have.
    os.environ["KUBEAI_DIR"] = str(home.resolve() / "kubeai")
    os.execvp(command[0], command)  # noqa: S606 - the user's own command


if __name__ == "__main__":
    main()
