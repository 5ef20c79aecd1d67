"""The forms in which a client takes an answer: whole, as a table, or metadata alone. Entry points: `asked`, `Form`."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import get_args

import msgspec

from datum_compute.embedded.https.table import Include, table_event, table_of
from datum_compute.embedded.kinds.served import Served
from datum_compute.kube.errors import BadRequest, NotAcceptable
from datum_compute.kube.meta import Json, encode

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

_META = "meta.k8s.io/v1"
_JSON = ("application/json", "application/*", "*/*")


class Form(Enum):
    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"

    def shown(self, served: Served, body: bytes, now: datetime, include: Include) -> bytes:
        """An answer, which is one object or a list of them, in this form."""
        match self:
            case Form.WHOLE:
                return body
            case Form.TABLE:
                return table_of(served, body, now, include)
        value: Json = msgspec.json.decode(body)
        if value.get("kind") != served.list_kind or "items" not in value:
            return encode(_metadata(value))
        items = [_metadata(item) for item in value["items"]]
        head = {"kind": "PartialObjectMetadataList", "apiVersion": _META, "metadata": value["metadata"]}
        return encode(head | {"items": items})

    def event(self, served: Served, line: bytes, now: datetime, include: Include) -> bytes:
        """The same for one event of a watch."""
        match self:
            case Form.WHOLE:
                return line
            case Form.TABLE:
                return table_event(served, line, now, include)
        event: Json = msgspec.json.decode(line)
        return line if event["type"] == "ERROR" else encode(event | {"object": _metadata(event["object"])})


def _metadata(value: Json) -> Json:
    if value.get("kind") == "Status":  # of a delete, which tells of what is gone
        return value
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": value["metadata"]}


def asked(accept: str) -> Form:
    """What the client would rather have, of the forms there are."""
    for media_type, given in _wanted(accept):
        if media_type not in _JSON:
            continue
        if "as" not in given:
            return Form.WHOLE
        if (given.get("g"), given.get("v")) == ("meta.k8s.io", "v1"):
            for form in Form:
                if given["as"] == form.value:
                    return form
    raise NotAcceptable("only the following media types are accepted: application/json")


def aggregated(accept: str) -> bool:
    """Whether discovery is wanted in one document before it is wanted in many."""
    for media_type, given in _wanted(accept):
        if "as" not in given:
            return False
        if media_type == "application/json" and (given.get("g"), given.get("v")) == ("apidiscovery.k8s.io", "v2"):
            return given["as"] == "APIGroupDiscoveryList"
    return False


def included(query: Mapping[str, str]) -> Include:
    """What of each object goes along with its row."""
    asked = query.get("includeObject") or "Metadata"
    for include in get_args(Include):
        if asked == include:
            return include  # type: ignore[no-any-return]
    raise BadRequest(f'includeObject is "{asked}"; it must be None, Metadata or Object')


def _wanted(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for wanted in accept.split(",") if accept else ["*/*"]:
        media_type, *parameters = (part.strip() for part in wanted.split(";"))
        yield media_type, dict(parameter.partition("=")[::2] for parameter in parameters)
