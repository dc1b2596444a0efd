"""`trainingjob-operator`: runs the operator with the settings of the environment."""

import argparse
import os
import sys

from servicekit import lifecycle
from servicekit.commands import SuggestingParser, SysExit
from servicekit.logs import configure
from servicekit.settings import SettingsError, describe, load
from trainingjob_operator.settings import PREFIX, TrainingJobOperatorSettings

_EXIT_CODES = """\
exit codes:
  0   stopped by a signal
  1   failed; see the log
  64  wrong usage
  75  no longer the leader: start it again as a standby
  78  wrong settings
"""


def main() -> int:
    """Runs the command and returns its exit code, see `--help`."""
    parser = SuggestingParser(
        prog="trainingjob-operator",
        description="Runs the TrainingJobs, ScaleIns and ScaleOuts of a cluster.",
        epilog=f"{_EXIT_CODES}\nSettings, from the environment:\n\n{describe(TrainingJobOperatorSettings, PREFIX)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_version()
    parser.parse_args()
    try:
        settings = load(TrainingJobOperatorSettings, PREFIX, os.environ)
    except SettingsError as error:
        print(f"trainingjob-operator: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return SysExit.CONFIG
    configure(settings.log_format, settings.log_level)
    # Imported only now: a usage message needs no client.
    from trainingjob_operator.app import run  # noqa: PLC0415

    return lifecycle.run(lambda: run(settings))


if __name__ == "__main__":
    sys.exit(main())
