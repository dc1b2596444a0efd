"""`elastic-node-agent`: runs the agent with the settings of the environment."""

import argparse
import os
import sys

from node_agent.notices import AgentFailpoint
from node_agent.settings import PREFIX, AgentSettings, load
from servicekit import failpoints
from servicekit.commands import SuggestingParser, SysExit
from servicekit.logs import configure
from servicekit.settings import SettingsError, describe

_EXIT_CODES = """\
exit codes:
  0   stopped by a signal
  1   failed; see the log
  3   a newer agent speaks for this node
  64  wrong usage
  78  wrong settings
"""


def main() -> None:
    parser = SuggestingParser(
        prog="elastic-node-agent",
        description="Watches one node for reclaims and reports them to a supervisor.",
        epilog=f"{_EXIT_CODES}\nSettings, from the environment:\n\n{describe(AgentSettings, PREFIX)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version()
    parser.parse_args()
    # gRPC's own log lines would mix with ours, and the status of a call tells the same.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported only after gRPC's variable is set; a usage message needs neither.
    from node_agent.app import run  # noqa: PLC0415
    from servicekit import lifecycle  # noqa: PLC0415

    try:
        settings = load(os.environ)
    except SettingsError as error:
        print(f"elastic-node-agent: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        sys.exit(SysExit.CONFIG)
    configure(settings.log_format, settings.log_level)
    failpoints.arm(failpoints.parse(settings.failpoint, AgentFailpoint))
    sys.exit(lifecycle.run(lambda: run(settings)))


if __name__ == "__main__":
    main()
