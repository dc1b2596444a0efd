"""`elastic-state-keeper`: runs the keeper with the settings of the environment."""

import argparse
import os
import sys

from node_agent.keeper.settings import PREFIX, KeeperSettings, load
from servicekit.commands import SuggestingParser, SysExit
from servicekit.logs import configure
from servicekit.settings import SettingsError, describe

_EXIT_CODES = """\
exit codes:
  0   stopped by a signal
  1   failed; see the log
  64  wrong usage
  78  wrong settings
"""


def main() -> None:
    parser = SuggestingParser(
        prog="elastic-state-keeper",
        description="Keeps the state of stopped jobs in the memory of this host.",
        epilog=f"{_EXIT_CODES}\nSettings, from the environment:\n\n{describe(KeeperSettings, PREFIX)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version()
    parser.parse_args()
    # Imported only here: a usage message needs no library of the network.
    from node_agent.keeper.app import run  # noqa: PLC0415
    from servicekit import lifecycle  # noqa: PLC0415

    try:
        settings = load(os.environ)
    except SettingsError as error:
        print(f"elastic-state-keeper: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        sys.exit(SysExit.CONFIG)
    configure(settings.log_format, settings.log_level)
    sys.exit(lifecycle.run(lambda: run(settings)))


if __name__ == "__main__":
    main()
