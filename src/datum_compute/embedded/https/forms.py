"""The forms of an answer: whole, as a table, or metadata alone. Entry points: `accepted`, `Form`."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from typing import get_args

import msgspec

from datum_compute.embedded.https.table import Include, table_event, table_of
from datum_compute.embedded.kinds.served import ServedKind
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

    def answer(self, served: ServedKind, body: bytes, now: datetime, include: Include) -> bytes:
        """An answer, which is one object or a list, in this form."""
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

    def event(self, served: ServedKind, line: bytes, now: datetime, include: Include) -> bytes:
        """An event of a watch in this form."""
        match self:
            case Form.WHOLE:
                return line
            case Form.TABLE:
                return table_event(served, line, now, include)
        event: Json = msgspec.json.decode(line)
        return line if event["type"] == "ERROR" else encode(event | {"object": _metadata(event["object"])})


def _metadata(value: Json) -> Json:
    if value.get("kind") == "Status":  # the answer to a delete
        return value
    return {"kind": "PartialObjectMetadata", "apiVersion": _META, "metadata": value["metadata"]}


def accepted(accept: str) -> Form:
    """The form that an Accept header prefers. Raises `NotAcceptable`."""
    for media_type, parameters in _media_types(accept):
        if media_type not in _JSON:
            continue
        if "as" not in parameters:
            return Form.WHOLE
        if (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1"):
            for form in Form:
                if parameters["as"] == form.value:
                    return form
    raise NotAcceptable("only the following media types are accepted: application/json")


def aggregated(accept: str) -> bool:
    """Whether an Accept header prefers aggregated discovery."""
    for media_type, parameters in _media_types(accept):
        if "as" not in parameters:
            return False
        group_version = parameters.get("g"), parameters.get("v")
        if media_type == "application/json" and group_version == ("apidiscovery.k8s.io", "v2"):
            return parameters["as"] == "APIGroupDiscoveryList"
    return False


def included(query: Mapping[str, str]) -> Include:
    """The part of each object that its row in a table includes."""
    value = query.get("includeObject") or "Metadata"
    for include in get_args(Include):
        if value == include:
            return include  # type: ignore[no-any-return]
    raise BadRequest(f'includeObject is "{value}"; it must be None, Metadata or Object')


def _media_types(accept: str) -> Iterator[tuple[str, dict[str, str]]]:
    for part in accept.split(",") if accept else ["*/*"]:
        media_type, *parameters = (text.strip() for text in part.split(";"))
        yield media_type, dict(parameter.partition("=")[::2] for parameter in parameters)
