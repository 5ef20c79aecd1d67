"""The webhook certificate that replicas issue and renew themselves."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from datum_compute.api.permissions import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, WEBHOOK_SECRET
from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden, Unavailable
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Answer, Call
from datum_compute.local.engine import compute_engine
from datum_compute.operator.certificates import SECRET, Pair, ServingError
from datum_compute.operator.config import SelfSigned
from datum_compute.operator.issuer import VALID_DAYS, VALIDATING, Issuer, contents_of, data_of, new_certificate
from datum_compute.operator.rotation import Contents
from datum_compute.runtime.testing.simulation import START, Simulation
from tests.conftest import count
from tests.operator.registrations import HOST, HOST_NAMESPACE, Host

HOUR, DAY = 3600, 24 * 3600
SERVICE = f"webhook-service.{HOST_NAMESPACE}.svc"


async def host_of(simulation: Simulation) -> Host:
    host = Host(compute_engine(clock=simulation, generator=simulation.random))
    await host.prepare()
    return host


def issuer_of(host: Host, simulation: Simulation, **settings: Any) -> Issuer:
    return Issuer(host.client, HOST_NAMESPACE, SelfSigned(**settings), simulation)


async def stored(host: Host) -> Contents:
    return contents_of((await host.client.get(SECRET, WEBHOOK_SECRET, HOST_NAMESPACE)).data)


def bundle(contents: Contents) -> str:
    return base64.b64encode(b"".join(contents.trusted)).decode()


def hosts_of(pair: Pair) -> list[str]:
    names = x509.load_pem_x509_certificate(pair.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return [*names.value.get_values_for_type(x509.DNSName), *map(str, names.value.get_values_for_type(x509.IPAddress))]


async def test_the_first_replica_issues_a_certificate_and_lets_every_webhook_trust_it(simulation: Simulation) -> None:
    host = await host_of(simulation)
    await host.register()
    pair = await issuer_of(host, simulation).read()
    contents = await stored(host)
    assert contents.current is not None
    assert (pair.certificate, pair.key) == (contents.current.certificate, contents.current.key)
    assert hosts_of(pair) == [SERVICE]
    assert contents.current.ends == simulation.now() + timedelta(days=VALID_DAYS)
    for name in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        assert await host.trusted(name) == [bundle(contents)] * 2
    secret = await host.client.get(SECRET, WEBHOOK_SECRET, HOST_NAMESPACE)
    assert sorted(secret.data) == ["ca.crt", "tls.crt", "tls.key"], "the authority's key is not kept"


async def test_replicas_that_start_together_serve_the_same_certificate(simulation: Simulation) -> None:
    host = await host_of(simulation)
    await host.register()
    pairs = await asyncio.gather(*(issuer_of(host, simulation).read() for _ in range(3)))
    assert len({pair.certificate for pair in pairs}) == 1
    assert await host.trusted() == [bundle(await stored(host))] * 2


async def test_at_rest_nothing_is_written(simulation: Simulation) -> None:
    host = await host_of(simulation)
    await host.register()
    issuer = issuer_of(host, simulation)
    first = await issuer.read()
    secret, registration = await _versions(host)
    for _ in range(3):
        await simulation.advance(HOUR)
        assert await issuer.read() == first
    assert await _versions(host) == (secret, registration)


async def _versions(host: Host) -> tuple[str, str]:
    secret = await host.client.get(SECRET, WEBHOOK_SECRET, HOST_NAMESPACE)
    registration = await host.client.get(VALIDATING, VALIDATING_WEBHOOKS)
    return secret.metadata.resource_version, registration.metadata.resource_version


async def test_a_renewal_trusts_both_authorities_while_certificates_change(simulation: Simulation) -> None:
    host = await host_of(simulation)
    await host.register()
    issuer = issuer_of(host, simulation)
    old = await issuer.read()
    before = await stored(host)
    await simulation.advance(VALID_DAYS * 2 / 3 * DAY)
    assert await issuer.read() == old
    both = await stored(host)
    assert both.trusted[1:] == before.trusted
    assert await host.trusted() == [bundle(both)] * 2
    await simulation.advance(HOUR - 1)
    assert await issuer.read() == old, "API servers have an hour to notice"
    await simulation.advance(1)
    new = await issuer.read()
    assert new != old
    assert (await stored(host)).trusted == both.trusted
    await simulation.advance(HOUR - 1)
    await issuer.read()
    assert (await stored(host)).trusted == both.trusted, "so have replicas"
    await simulation.advance(1)
    assert await issuer.read() == new
    assert (await stored(host)).trusted == both.trusted[:1]
    assert await host.trusted() == [bundle(await stored(host))] * 2


async def test_a_renewal_that_waits_is_reported(simulation: Simulation) -> None:
    registry = CollectorRegistry()
    host = await host_of(simulation)
    settings = SelfSigned(mutating_webhooks=(), validating_webhooks=(), overlap_seconds=14 * DAY)
    issuer = Issuer(host.client, HOST_NAMESPACE, settings, simulation, registry)

    async def waits() -> bool:
        await issuer.read()
        return registry.get_sample_value("compute_webhook_certificate_prepared") == 1

    assert not await waits()
    await simulation.advance(VALID_DAYS * 2 / 3 * DAY)
    assert await waits()
    await simulation.advance(14 * DAY - 1)
    assert await waits()
    await simulation.advance(1)
    assert not await waits(), "it is served"


async def test_a_new_certificate_is_not_served_before_webhooks_trust_it(simulation: Simulation) -> None:
    host = await host_of(simulation)
    await host.register()
    old = await issuer_of(host, simulation).read()
    trusted = await host.trusted()
    await simulation.advance(VALID_DAYS * 2 / 3 * DAY)
    refusing = Refusing(host, lambda call: call.method == "PATCH" and "webhookconfigurations" in call.path)
    issuer = Issuer(Client(HOST, refusing), HOST_NAMESPACE, SelfSigned(), simulation)
    with capture_logs() as logs:
        for _ in range(5):
            assert await issuer.read() == old
            await simulation.advance(HOUR)
    assert await host.trusted() == trusted
    problems = [line["place"] for line in logs if line["log_level"] == "warning"]
    assert problems == [
        f"MutatingWebhookConfiguration {MUTATING_WEBHOOKS}",
        f"ValidatingWebhookConfiguration {VALIDATING_WEBHOOKS}",
    ], "each is reported once"


class Refusing:
    """A host that refuses some calls."""

    def __init__(self, host: Host, refuses: Callable[[Call], bool], code: int = 403) -> None:
        self._host = host
        self._refuses = refuses
        self._code = code

    async def call(self, call: Call) -> Answer:
        if self._refuses(call):
            raise Forbidden("no role allows it") if self._code == 403 else Unavailable("it is busy")
        return await self._host.transport.call(call)

    def stream(self, call: Call) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError


async def test_webhooks_that_are_registered_later_or_again_are_given_the_authority(simulation: Simulation) -> None:
    host = await host_of(simulation)
    issuer = issuer_of(host, simulation)
    await issuer.read()
    await host.register()
    assert await host.trusted() == ["", ""]
    await issuer.read()
    assert await host.trusted() == [bundle(await stored(host))] * 2
    await host.client.delete(VALIDATING, VALIDATING_WEBHOOKS)
    await host.register(VALIDATING_WEBHOOKS)
    await issuer.read()
    assert await host.trusted() == [bundle(await stored(host))] * 2


async def test_everything_else_about_a_registered_webhook_stays(simulation: Simulation) -> None:
    host = await host_of(simulation)
    webhook: Json = {"name": "v", "clientConfig": {"url": "https://compute.example/"}, "timeoutSeconds": 7}
    body = VALIDATING.body(VALIDATING_WEBHOOKS, annotations={"a": "b"})
    await host.client.create(VALIDATING, body | {"webhooks": [webhook]})
    await issuer_of(host, simulation).read()
    found = await host.client.get(VALIDATING, VALIDATING_WEBHOOKS)
    authority = found.webhooks[0]["clientConfig"].pop("caBundle")
    assert authority == bundle(await stored(host))
    assert found.webhooks == [webhook]
    assert found.metadata.annotations == {"a": "b"}


async def test_hosts_are_added_to_the_certificate_by_a_renewal(simulation: Simulation) -> None:
    host = await host_of(simulation)
    old = await issuer_of(host, simulation).read()
    issuer = issuer_of(host, simulation, hosts=("compute.example", "192.0.2.1", "2001:db8::1"), overlap_seconds=60)
    assert await issuer.read() == old
    await simulation.advance(60)
    assert sorted(hosts_of(await issuer.read())) == ["192.0.2.1", "2001:db8::1", "compute.example", SERVICE]


@pytest.mark.parametrize("part", ["tls.crt", "tls.key", "ca.crt"])
async def test_a_secret_that_lost_a_part_is_filled_again(simulation: Simulation, part: str) -> None:
    host = await host_of(simulation)
    await host.register()
    issuer = issuer_of(host, simulation)
    old = await issuer.read()
    garbage = base64.b64encode(b"garbage").decode()
    await host.client.merge_patch(SECRET, WEBHOOK_SECRET, HOST_NAMESPACE, {"data": {part: garbage}})
    assert await issuer.read() != old
    assert await host.trusted() == [bundle(await stored(host))] * 2


async def test_deleting_the_secret_ends_the_trust_in_its_certificate(simulation: Simulation) -> None:
    host = await host_of(simulation)
    await host.register()
    issuer = issuer_of(host, simulation)
    await issuer.read()
    before = await stored(host)
    await host.client.delete(SECRET, WEBHOOK_SECRET, HOST_NAMESPACE)
    await issuer.read()
    contents = await stored(host)
    assert not set(before.trusted) & set(contents.trusted)
    assert await host.trusted() == [bundle(contents)] * 2


async def test_a_secret_of_somebody_else_is_left_alone(simulation: Simulation) -> None:
    host = await host_of(simulation)
    data = data_of(Contents(new_certificate(frozenset({SERVICE}), simulation.now())))
    await host.client.create(SECRET, SECRET.body(WEBHOOK_SECRET, HOST_NAMESPACE) | {"data": data})
    sentence = rf"Secret {HOST_NAMESPACE}/{WEBHOOK_SECRET} was not created by compute-manager: delete it, name another"
    with pytest.raises(ServingError, match=sentence):
        await issuer_of(host, simulation).read()
    assert (await host.client.get(SECRET, WEBHOOK_SECRET, HOST_NAMESPACE)).data == data


@pytest.mark.parametrize(
    ("method", "sentence"), [("GET", "cannot be read: no role"), ("POST", "cannot be written: no")]
)
async def test_without_the_role_it_does_not_start(simulation: Simulation, method: str, sentence: str) -> None:
    host = await host_of(simulation)
    refusing = Refusing(host, lambda call: call.method == method and "secrets" in call.path)
    with pytest.raises(ServingError, match=f"Secret {HOST_NAMESPACE}/{WEBHOOK_SECRET} {sentence}"):
        await Issuer(Client(HOST, refusing), HOST_NAMESPACE, SelfSigned(), simulation).read()


async def test_a_renewal_that_cannot_be_stored_leaves_the_certificate_in_use(simulation: Simulation) -> None:
    host = await host_of(simulation)
    old = await issuer_of(host, simulation).read()
    await simulation.advance(VALID_DAYS * 2 / 3 * DAY)
    refusing = Refusing(host, lambda call: call.method == "PATCH")
    with capture_logs() as logs:
        issuer = Issuer(Client(HOST, refusing), HOST_NAMESPACE, SelfSigned(), simulation)
        assert await issuer.read() == old
        assert await issuer.read() == old
    assert [line["problem"] for line in logs] == ["cannot be written: no role allows it"]


def test_replicas_read_several_times_per_overlap() -> None:
    client = Client(HOST, Refusing(None, lambda call: True))  # type: ignore[arg-type]
    seconds = [
        Issuer(client, "ns", SelfSigned(overlap_seconds=overlap), None).seconds_between_reads  # type: ignore[arg-type]
        for overlap in (6, 3600)
    ]
    assert seconds == [2, 10]


class Api:
    """An API server that learns of changed webhooks late."""

    def __init__(self) -> None:
        self.trusted = b""

    def accepts(self, pair: Pair, now: datetime) -> bool:
        begins, ends = _validity(self.trusted, pair.certificate)
        return begins <= now < ends


@cache
def _validity(trusted: bytes, certificate: bytes) -> tuple[datetime, datetime]:
    """From when and until when a certificate is accepted; never if no trusted authority has signed it."""
    leaf = x509.load_pem_x509_certificate(certificate)
    if any(_has_signed(authority, leaf) for authority in x509.load_pem_x509_certificates(trusted)):
        return leaf.not_valid_before_utc, leaf.not_valid_after_utc
    return START, START


def _has_signed(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):
        return False
    return True


@pytest.mark.parametrize("seed", range(count(5, 100)))
async def test_no_call_fails_in_two_years_with_late_servers_restarts_and_errors(
    simulation: Simulation, seed: int
) -> None:
    """Everybody looks at least three times per overlap, and one call in ten to the cluster fails."""
    host, generator = await host_of(simulation), random.Random(seed)
    await host.register()
    settings = SelfSigned(overlap_seconds=10 * DAY)
    look = settings.overlap_seconds / 3
    unreliable = Client(HOST, Refusing(host, lambda call: generator.random() < 0.1, 503))
    served: dict[int, Pair] = {}
    authorities: set[bytes] = set()
    servers = [Api(), Api()]

    def call_everybody() -> None:
        for pair in served.values():
            for server in servers:
                assert server.accepts(pair, simulation.now()), f"{pair} is not accepted at {simulation.now()}"

    async def serve(replica: int) -> None:
        issuer = Issuer(unreliable, HOST_NAMESPACE, settings, simulation)
        while True:
            await asyncio.sleep(generator.uniform(0, look))
            if generator.random() < 0.02:
                issuer = Issuer(unreliable, HOST_NAMESPACE, settings, simulation)  # a restart
            try:
                served[replica] = await issuer.read()
            except ServingError:
                continue  # what is in use stays valid for a while
            authorities.update((await stored(host)).trusted)
            call_everybody()

    async def follow(server: Api) -> None:
        while True:
            await asyncio.sleep(generator.uniform(0, look))
            server.trusted = base64.b64decode((await host.trusted())[0])
            call_everybody()

    pair = await issuer_of(host, simulation).read()
    served |= {0: pair, 1: pair}
    for server in servers:
        server.trusted = base64.b64decode((await host.trusted())[0])
    tasks = [asyncio.create_task(serve(replica)) for replica in range(2)]
    tasks += [asyncio.create_task(follow(server)) for server in servers]
    await asyncio.wait(tasks, timeout=2 * 365 * DAY, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results if not isinstance(result, asyncio.CancelledError)] == []
    assert len(authorities) >= 3, "it was renewed at least twice"
