"""`python -m simulator.cluster.ssh -- COMMAND`: runs a command on the host that HOROVOD_HOSTNAME names.

It replaces ssh into a worker pod: the process has the launcher's environment and the files of its own pod.
"""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

HOSTS = "SIM_HOSTS"
PATIENCE_SECONDS = 30.0
"""A host that is unreachable for this long has failed."""
_POLL_SECONDS = 0.05
_UNREACHABLE = 255


def main() -> NoReturn:
    """Execute the command; exit with 255 if there is no such host."""
    home = Path(os.environ[HOSTS]) / os.environ["HOROVOD_HOSTNAME"]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not home.is_dir():
        if time.monotonic() > deadline:
            sys.stderr.write(f"ssh: no route to host {home.name}\n")
            sys.exit(_UNREACHABLE)
        time.sleep(_POLL_SECONDS)
    command = sys.argv[sys.argv.index("--") + 1 :]
    # Resolve the link, so that a later pod of the same name does not replace the files.
    os.environ["KUBEAI_DIR"] = str(home.resolve() / "kubeai")
    os.execvp(command[0], command)  # noqa: S606 - the user's own command


if __name__ == "__main__":
    main()
