"""The version, on its own so that nothing has to be imported to know it."""

__version__ = "0.2.0"
