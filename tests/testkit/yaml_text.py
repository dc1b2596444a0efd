"""Reads YAML with libyaml, ten times as fast as in Python: the definitions of an operator have ten thousand lines."""

from typing import Any

import yaml  # type: ignore[import-untyped]  # Its stubs would be one more package for two calls.


def document(text: str | bytes) -> Any:
    """The only document of the text."""
    return yaml.load(text, Loader=yaml.CSafeLoader)


def documents(text: str | bytes) -> list[Any]:
    """The documents of the text that are not empty."""
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]
