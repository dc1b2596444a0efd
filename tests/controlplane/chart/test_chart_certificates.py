"""A real API server accepts the chart's cert-manager objects against cert-manager's own CRDs."""

from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import pytest

from tests.chart.chart_rendering import NAMESPACE, Helm, Values
from tests.controlplane.chart.chart_cert_manager import CertManagerUnavailable, definitions
from tests.testkit.controlplane.api import Api, ObjectRefused
from tests.testkit.controlplane.binaries import Tool, client_path
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.waiting import until

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"
_ISSUERS: Sequence[Values] = (
    {"name": "our-issuer"},
    {"name": "our-issuer", "kind": "ClusterIssuer"},
    {"name": "vault", "kind": "VaultIssuer", "group": "issuers.example.com"},
)
_NAMES = ["supervisor.example.com", "10.0.0.7", "fd00::7"]


@pytest.fixture
async def api(here: InstalledPlace) -> Api:
    """An API server that knows cert-manager's resources, and nobody who makes certificates."""
    try:
        wanted = definitions()
    except CertManagerUnavailable as reason:
        pytest.skip(str(reason))
    for path, one in [
        ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
        *((_DEFINITIONS, each) for each in wanted),
    ]:
        with suppress(ObjectRefused):  # There from another test; nobody minds them.
            await here.api.create(path, one)

    async def served() -> bool:
        with suppress(ObjectRefused):  # 404 and then 429 for as long as they are being prepared.
            await here.api.get(_CERTIFICATES)
            return True
        return False

    await until(served, "certificates are served")
    return here.api


def _certificate(issuer: Values, names: Sequence[str]) -> dict[str, Any]:
    values = {
        "tls": {"mode": "certManager", "certManager": {"issuerRef": issuer}, "caConfigMap": "ours", "extraNames": names}
    }
    [found] = [each for each in Helm(client_path(Tool.HELM)).render(values) if each["kind"] == "Certificate"]
    return found


async def _admitted(api: Api, certificate: dict[str, Any]) -> Any:
    """Nothing unknown, and nothing that the definition's rules do not want."""
    return await api.create(f"{_CERTIFICATES}?fieldValidation=Strict&dryRun=All", certificate)


async def test_cert_manager_would_take_the_charts_certificate(api: Api) -> None:
    """From each kind of issuer, with names and addresses of one's own; and nothing of it is dropped."""
    for issuer in _ISSUERS:
        for names in ([], _NAMES):
            wanted = _certificate(issuer, names)
            assert (await _admitted(api, wanted))["spec"] == wanted["spec"]
            assert wanted["spec"].get("ipAddresses", []) == [each for each in names if not each.endswith(".com")]


async def test_what_is_no_certificate_to_cert_manager_is_refused(api: Api) -> None:
    sound = _certificate(_ISSUERS[0], [])
    for broken in ({"usages": ["to serve"]}, {"dnsName": "one"}, {"privateKey": {"algorithm": "ECDH"}}):
        with pytest.raises(ObjectRefused) as refused:
            await _admitted(api, {**sound, "spec": {**sound["spec"], **broken}})
        assert refused.value.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
