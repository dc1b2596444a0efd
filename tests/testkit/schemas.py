"""Checks objects against the schemas of a version of Kubernetes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # It has no stubs.
from kubernetes_validate import utils

# It would read all definitions of the version, more than a megabyte, for each object.
utils.schema_contents = cache(utils.schema_contents)


def validate(made: Mapping[str, Any], version: str) -> None:
    """Accepts no field that the version does not know.

    Raises:
        kubernetes_validate.ValidationError: The object does not fit its schema.
    """
    kubernetes_validate.validate(made, version, strict=True)
