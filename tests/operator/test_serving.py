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
from datum_compute.operator.config import API_VERSION, KIND, SecretRef, Tls, WebhookServer, WorkloadOperator
from datum_compute.operator.flags import Flags
from datum_compute.operator.planes import Endpoints
from datum_compute.operator.serving import Servers
from datum_compute.operator.settings import settled
from datum_compute.runtime.clock import SystemClock
from tests.https import Scripted, answering


@pytest.mark.parametrize(
    ("authority", "refusal"),
    [("", ""), ("clients", 'has no "clients", which webhookServer.clientCAName says clients are signed by')],
)
def test_admission_is_not_served_to_anybody_when_the_authority_of_clients_is_missing(
    tmp_path: Path, authority: str, refusal: str
) -> None:
    ours = Credentials.ensure(tmp_path)
    pair = {"tls.crt": ours.certificate.read_bytes(), "tls.key": ours.key.read_bytes()}
    data = {key: base64.b64encode(value).decode() for key, value in pair.items()}
    host = Scripted(answering(encode(SECRET.body("webhook", "compute-system") | {"data": data})))
    asked = WebhookServer(
        "127.0.0.1", 0, Tls(secret_ref=SecretRef("webhook", "compute-system")), client_ca_name=authority
    )
    config = WorkloadOperator(API_VERSION, KIND, webhook_server=asked)

    async def told() -> str:
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

    said = asyncio.run(told())
    assert refusal in said
    assert bool(refusal) == bool(said)
