"""Events read back from a plane, and a refusal that is worded differently each time.

Entry points: `events`, `warnings`, `ChangingRefusal`.
"""

from msgspec import field

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import EVENT, Kind
from datum_compute.kube.meta import Json, KubeObject


class ChangingRefusal(Forbidden):
    """A refusal whose message differs with each request, like that of a webhook that names the request."""

    def __init__(self) -> None:
        super().__init__("denied")
        self.times = 0

    def status(self) -> Json:
        self.times += 1
        return Forbidden(f"denied, request {self.times}").status()


class Event(KubeObject, frozen=True):
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    about: Json = field(default_factory=dict, name="involvedObject")


_EVENT = Kind(EVENT.group, EVENT.version, EVENT.name, EVENT.plural, Event)


async def events(client: Client, namespace: str = "") -> list[Event]:
    return (await client.list(_EVENT, namespace)).items


async def warnings(client: Client, name: str, namespace: str = "default") -> list[Event]:
    """Warnings about the objects of this name, oldest first."""
    about = [event for event in await events(client, namespace) if event.about.get("name") == name]
    return sorted((event for event in about if event.type == "Warning"), key=lambda event: event.metadata.revision)
