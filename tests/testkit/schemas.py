"""Checks objects against the schemas of a version of Kubernetes."""

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

# When jsonschema is imported, it compiles 38 grammars of this one, in 1.1 s of each process of tests. They check
# addresses that are not ASCII, and no schema here asks for one. With None it counts as not installed.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
import kubernetes_validate  # type: ignore[import-untyped]  # noqa: E402  # It has no stubs.
from jsonschema import Draft4Validator  # type: ignore[import-untyped]  # noqa: E402  # It has no stubs.
from kubernetes_validate import utils  # noqa: E402

__all__ = ["Draft4Validator", "validate"]

# It would read all definitions of the version, more than a megabyte, for each object.
utils.schema_contents = cache(utils.schema_contents)


def validate(made: Mapping[str, Any], version: str) -> None:
    """Accepts no field that the version does not know.

    Raises:
        kubernetes_validate.ValidationError: The object does not fit its schema.
    """
    kubernetes_validate.validate(made, version, strict=True)
