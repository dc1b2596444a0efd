"""Why there is no release."""


class NoReleaseError(Exception):
    """The checkout cannot be released; the message says why."""
