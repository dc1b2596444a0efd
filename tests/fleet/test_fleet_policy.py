"""The policy that users apply at their hub."""

from pathlib import Path

import pytest

from tests.fleet.fleet_world import FleetTeam
from tests.testkit.controlplane.hub import CLUSTERS
from tests.testkit.waiting import until
from tests.testkit.yaml_text import document

pytestmark = pytest.mark.long

_POLICY = Path(__file__).parents[2] / "examples" / "fleet" / "policy.yaml"


async def test_the_example_places_a_job_in_one_member(jobs: FleetTeam) -> None:
    """The hub takes every field of it, and keeps the pods of a job together."""
    policy = document(_POLICY.read_text(encoding="utf-8"))
    accepted = await jobs.apply_policy({"spec": policy["spec"]})
    assert accepted["spec"]["failover"] == policy["spec"]["failover"]
    for member in jobs.members.values():
        await member.nodes(3)
    await jobs.hub.submit("j", 3)
    placed = await jobs.placed("j")
    await jobs.members[placed].runs("j", 3)
    clusters = [each["name"] for each in (await jobs.binding("j"))["spec"]["clusters"]]
    assert clusters == [placed]

    async def shows_running() -> bool:
        return bool((await jobs.binding("j"))["status"]["aggregatedStatus"][0].get("applied"))

    await until(shows_running, "the hub knows that the job is applied")


async def test_a_user_of_the_hub_reads_the_objects_of_all_members_in_one_list(jobs: FleetTeam) -> None:
    """Through the hub's proxy, which passes requests on in the user's name."""
    for name, member in jobs.members.items():
        await member.submit(name, 1)
    path = f"{CLUSTERS}/*/proxy/apis/kubeflow.org/v1/namespaces/{jobs.name}/pytorchjobs"
    listed = await jobs.api.get(path)
    assert {each["metadata"]["name"] for each in listed["items"]} == set(jobs.members)
