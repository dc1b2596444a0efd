"""Why `dev` cannot start, or ends."""


class DevError(Exception):
    """The message is a whole sentence for the user."""


class UsageError(DevError):
    """The command line cannot be used as it is."""


class ChildEnded(DevError):  # noqa: N818 - the name describes what happened
    """A process ended that should run. The message names it and contains its last output."""
