"""What compute-manager serves beside its work, as the config file asks for it."""

import asyncio
import base64
import random
from pathlib import Path

import pytest

from datum_compute.embedded.https.certificates import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.meta import encode
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.certificates import SECRET, ServingError
from datum_compute.operator.config import (
    API_VERSION,
    KIND,
    SecretRef,
    SelfSigned,
    WebhookServer,
    WebhookTls,
    WorkloadOperator,
)
from datum_compute.operator.flags import Flags
from datum_compute.operator.planes import Endpoints
from datum_compute.operator.serving import Servers
from datum_compute.operator.settings import Refused, settled
from datum_compute.runtime.clock import SystemClock
from tests.https import Scripted, answering


@pytest.mark.parametrize(
    ("authority", "refusal"),
    [("", ""), ("clients", 'has no "clients", which webhookServer.clientCAName says clients are signed by')],
)
def test_nobody_is_served_admission_while_the_client_authority_is_missing(
    tmp_path: Path, authority: str, refusal: str
) -> None:
    ours = Credentials.ensure(tmp_path)
    pair = {"tls.crt": ours.certificate.read_bytes(), "tls.key": ours.key.read_bytes()}
    data = {key: base64.b64encode(value).decode() for key, value in pair.items()}
    host = Scripted(answering(encode(SECRET.body("webhook", "compute-system") | {"data": data})))
    server = WebhookServer(
        "127.0.0.1", 0, WebhookTls(secret_ref=SecretRef("webhook", "compute-system")), client_ca_name=authority
    )
    config = WorkloadOperator(API_VERSION, KIND, webhook_server=server)

    async def outcome() -> str:
        async with host.listening():
            settings = settled(Flags(health_probe_bind_address="0"), config)
            endpoints = Endpoints(host=Endpoint(host.url))
            assembly = Assembly(settings, endpoints, clock=SystemClock(), generator=random.Random(1))
            servers = Servers(settings, assembly)
            try:
                await servers.start()
            except ServingError as error:
                return str(error)
            finally:
                await servers.stop()
                await assembly.close()
        return ""

    message = asyncio.run(outcome())
    assert refusal in message
    assert bool(refusal) == bool(message)


async def _refused() -> None:
    own = WebhookServer("127.0.0.1", 0, WebhookTls(self_signed=SelfSigned()))
    settings = settled(Flags(), WorkloadOperator(API_VERSION, KIND, webhook_server=own))
    host = Endpoint("https://127.0.0.1:1")
    assembly = Assembly(settings, Endpoints(host=host), clock=SystemClock(), generator=random.Random(1))
    try:
        Servers(settings, assembly)
    finally:
        await assembly.close()


def test_a_certificate_of_its_own_needs_a_namespace() -> None:
    with pytest.raises(Refused, match=r"selfSigned needs to know the namespace .* add --leader-elect-namespace"):
        asyncio.run(_refused())
