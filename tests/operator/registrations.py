"""A plane with registered webhooks, which clusters have and the embedded engine has not. Entry point: `Host`."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from datum_compute.api.permissions import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from datum_compute.embedded import engine
from datum_compute.embedded.engine import Engine
from datum_compute.embedded.kinds.catalog import plane_kinds
from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.federation.roles import ROOT
from datum_compute.kube.client import Client
from datum_compute.kube.inprocess import InProcess
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.operator.issuer import MUTATING, VALIDATING, Registration

HOST, HOST_NAMESPACE = "host", "compute-system"
REGISTERED = {MUTATING_WEBHOOKS: MUTATING, VALIDATING_WEBHOOKS: VALIDATING}

_OPEN: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _served(kind: Kind[Registration]) -> ServedKind:
    names = {"kind": kind.name, "plural": kind.plural}
    return ServedKind(kind.group, kind.version, names, namespaced=False, schema=_OPEN, status=False, builtin=True)


@contextmanager
def with_registrations() -> Iterator[None]:
    """Planes opened within it serve the configurations of webhooks; nobody calls those."""
    served = tuple(map(_served, (MUTATING, VALIDATING)))
    with patch.object(engine, "plane_kinds", lambda definitions: (*plane_kinds(definitions), *served)):
        yield


class Host:
    """The cluster of a process, with a namespace for it."""

    def __init__(self, engine: Engine) -> None:
        with with_registrations():
            self.transport = InProcess(engine.serve(HOST, ROOT))
        self.client = Client(HOST, self.transport)

    async def prepare(self) -> None:
        await self.client.create(NAMESPACE, NAMESPACE.body(HOST_NAMESPACE))

    async def register(self, *names: str) -> None:
        for name in names or REGISTERED:
            webhooks = [
                {"name": f"{number}.{name}", "clientConfig": {"service": {"name": "webhook-service", "path": "/"}}}
                for number in range(2)
            ]
            await self.client.create(REGISTERED[name], REGISTERED[name].body(name) | {"webhooks": webhooks})

    async def trusted(self, name: str = VALIDATING_WEBHOOKS) -> list[str]:
        """What each webhook trusts, in base64; empty for nothing."""
        webhooks = (await self.client.get(REGISTERED[name], name)).webhooks
        return [webhook["clientConfig"].get("caBundle", "") for webhook in webhooks]
