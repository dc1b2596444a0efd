"""The images contain what they need and nothing else."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.images import images_bill
from tests.images.images_building import BASE, Image, Images, version
from tests.images.images_containers import Engine

_EACH = pytest.mark.parametrize("image", Image)
# Of packages that are installed, from where the image's own command imports.
_INSTALLED = """
import importlib.metadata as m
print("\\n".join(sorted(f"{d.name.lower().replace('_', '-')} {d.version}" for d in m.distributions())))
"""


@_EACH
def test_an_image_says_what_it_is(images: Images, image: Image) -> None:
    """Labels have the project's version and licence, and it is run by a number that is not root's."""
    config = images.config(image)["config"]
    assert config["User"] == "65532:65532"
    assert config["Labels"]["org.opencontainers.image.version"] == version()
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert config["Labels"]["org.opencontainers.image.title"] == image.reference.split("/")[1].split(":")[0]
    assert len(config["Labels"]["org.opencontainers.image.revision"]) == 40
    assert datetime.fromisoformat(config["Labels"]["org.opencontainers.image.created"]) < datetime.now(UTC)
    assert config["Labels"]["org.opencontainers.image.vendor"] == "The Elastic Job Supervisor authors"
    assert config["Labels"]["org.opencontainers.image.base.name"] == BASE
    assert set(config["Labels"]) >= {f"org.opencontainers.image.{name}" for name in ("source", "url", "documentation")}


@_EACH
def test_nothing_in_it_builds_or_installs(engine: Engine, image: Image) -> None:
    """Neither a compiler nor pip is there, nor what Python would make a pip of."""
    programs = engine.shell(image, "for name in pip pip3 uv gcc cc make git curl; do command -v $name; done; true")
    modules = engine.shell(image, "for name in pip setuptools wheel; do python -m $name --version && echo $name; done")
    archives = engine.shell(image, "find /usr /opt -xdev -name '*.whl'")
    assert (programs.returncode, programs.stdout) == (0, "")
    assert modules.stdout == ""
    assert (archives.returncode, archives.stdout) == (0, ""), archives.stderr


def test_the_agent_finds_the_systems_cas_without_keeping_them(engine: Engine) -> None:
    """None are in its memory; those of the base are in the directory where OpenSSL looks for them one by one."""
    code = "import ssl; print(ssl.create_default_context().cert_store_stats()['x509'])"
    kept = engine.shell(Image.AGENT, f'python -c "{code}"')
    assert kept.stdout.strip() == "0", kept.stderr
    where = "import ssl; print(ssl.get_default_verify_paths().capath)"
    found = engine.shell(Image.AGENT, f'ls $(python -c "{where}")')
    assert any(name.endswith(".0") for name in found.stdout.split()), found.stderr


@_EACH
def test_nothing_in_it_is_for_trying_things(engine: Engine, image: Image) -> None:
    """The project's packages are in it, and of the two services only its own."""
    said = engine.shell(image, "ls /opt/*/lib/python3*/site-packages/elastic_job_supervisor/_packages")
    service = {
        Image.SERVER: ["job_supervisor", "node_agent", "reclaim", "servicekit", "supervisor", "trainingjob_operator"]
    }
    assert said.stdout.split() == service.get(image, ["node_agent", "reclaim", "servicekit"]), said.stderr
    absent = engine.shell(image, 'for name in simulator tests; do python -c "import $name"; done')
    assert absent.stderr.count("ModuleNotFoundError") == 2


def test_the_agents_image_has_no_client_library(engine: Engine) -> None:
    """The supervisor connects to clusters with kubernetes-asyncio, which is more than all that the agent needs."""
    code = "import importlib.util; print(importlib.util.find_spec('kubernetes_asyncio') is not None)"
    found = {image: engine.shell(image, f'python -c "{code}"').stdout.strip() for image in Image}
    assert found == {Image.SERVER: "True", Image.AGENT: "False"}


def test_the_agents_image_refuses_the_other_commands(engine: Engine) -> None:
    refused = engine.shell(Image.AGENT, "job-supervisor status")
    assert "the agent's image has the agent only" in refused.stderr
    assert refused.returncode == 1


@_EACH
def test_it_runs_as_nobody_on_a_root_that_cannot_be_written(engine: Engine, image: Image) -> None:
    """It is user 65532 without a capability, and can write neither the system nor the program."""
    said = engine.shell(
        image,
        "id -u; grep CapEff /proc/self/status; "
        "for place in / /tmp /opt/* /opt/*/bin /var/lib; do touch $place/x 2>/dev/null && echo $place; done; true",
    )
    assert said.stdout.split() == ["65532", "CapEff:", "0000000000000000"], said.stderr


@_EACH
def test_nothing_in_it_gives_root_to_who_is_not(engine: Engine, image: Image) -> None:
    """No file of the program is another user's to write, and none in it runs as its owner."""
    said = engine.shell(image, "find /opt -xdev -not -type l \\( -perm /7000 -o -perm /0022 -o -not -user 0 \\)")
    assert (said.returncode, said.stdout) == (0, "")


@_EACH
def test_the_bill_of_materials_names_what_is_installed(
    engine: Engine, images: Images, image: Image, tmp_path: Path
) -> None:
    """Each package of Python's and of the base's is in it at the same version, the former with hashes, and no other."""
    installed = engine.once(image, "-c", _INSTALLED, more=["--entrypoint=python"])
    of_base = engine.shell(image, "dpkg-query --show --showformat '${Package} ${Version}\\n'")
    components = json.loads(images_bill.write(images, image, tmp_path).read_bytes())["components"]
    python = [one for one in components if one.get("purl", "").startswith("pkg:pypi/")]
    debian = [one for one in components if _is_binary(one.get("purl", ""))]
    named = {f"{one['name'].replace('_', '-')} {one['version']}" for one in python}
    assert named | {f"elastic-job-supervisor {version()}"} == set(installed.stdout.splitlines())
    assert all(one["externalReferences"][0]["hashes"] for one in python)
    assert {f"{one['name']} {one['version']}" for one in debian} == set(of_base.stdout.splitlines()), of_base.stderr
    assert len(debian) > 50


def _is_binary(purl: str) -> bool:
    """Of a Debian package that is installed, and not of its source."""
    return purl.startswith("pkg:deb/") and not purl.endswith("arch=source")
