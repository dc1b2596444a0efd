"""Waits until CRDs are deleted from an API server."""

import itertools
from collections.abc import Collection
from contextlib import suppress

from tests.testkit.controlplane.api import Api, ObjectRefused
from tests.testkit.waiting import until

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_REMINDER_SECONDS = 1.0


async def until_gone(api: Api, names: Collection[str]) -> None:
    """Return when these definitions are gone, whose deletion is asked for already or in the meantime.

    The API server fails to empty a definition that was just marked as deleted ("storage is (re)initializing"), and
    tries again after 5 ms. About once in sixty times it then sees its own note of the failure as a conflict, and does
    not look at the definition again for five minutes, unless somebody changes it.
    """
    changes = itertools.count()

    async def gone() -> bool:
        left = [each["metadata"] for each in (await api.get(DEFINITIONS))["items"] if each["metadata"]["name"] in names]
        for each in left:
            if "deletionTimestamp" in each:
                reminder = {"metadata": {"annotations": {"reminder": str(next(changes))}}}
                with suppress(ObjectRefused):  # It is gone.
                    await api.patch(f"{DEFINITIONS}/{each['name']}", reminder)
        return not left

    await until(gone, f"{', '.join(names)} to be gone", every=_REMINDER_SECONDS)
