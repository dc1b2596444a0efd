"""`elastic-node-agent`: run the agent with the settings of the environment."""

import os
import sys

from node_agent.failpoints import At
from node_agent.settings import PREFIX, Settings, load
from servicekit import failpoints
from servicekit.logs import configure
from servicekit.settings import SettingsError, describe


def main() -> None:
    """Run until the agent is told to stop."""
    if sys.argv[1:]:
        sys.exit(_usage(sys.argv[1:]))
    # Its own lines would stand between ours; what it has to say comes back as the status of a call.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported after gRPC's variable is set, and not at all for a usage message.
    from node_agent.app import ExitCode, run  # noqa: PLC0415
    from servicekit import lifecycle  # noqa: PLC0415

    try:
        settings = load(os.environ)
    except SettingsError as error:
        print(f"elastic-node-agent: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        sys.exit(ExitCode.MISCONFIGURED)
    configure(settings.log_format, settings.log_level)
    failpoints.arm(failpoints.parse(settings.failpoint, At))
    sys.exit(lifecycle.run(lambda: run(settings)))


def _usage(arguments: list[str]) -> str | int:
    text = f"usage: elastic-node-agent\n\nSettings, from the environment:\n\n{describe(Settings, PREFIX)}"
    if arguments not in (["--help"], ["-h"]):
        return text
    print(text)  # noqa: T201 - what was asked for
    return 0


if __name__ == "__main__":
    main()
