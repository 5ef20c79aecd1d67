"""The metadata that clients may set, and its validation. Entry points: `RequestMetadata`, `violations`."""

import re

from msgspec import Struct

from datum_compute.embedded.kinds.served import ServedKind
from datum_compute.kube.errors import Cause
from datum_compute.kube.labels import key_problem, value_problem
from datum_compute.kube.meta import Json

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST_NAME = 253
_ANNOTATIONS_BYTES = 256 * 1024  # all keys and values together


class Owner(Struct, frozen=True, rename="camel"):
    """An owner reference as it was sent; missing fields are empty, so that violations can name them."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class RequestMetadata(Struct, frozen=True, rename="camel"):
    """The part of metadata that a client may set, with the types the server insists on."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[Owner] | None = None


def violations(served: ServedKind, metadata: Json) -> list[Cause]:
    causes = []
    name = metadata["name"]
    if served.kind == "Namespace" and not _DNS_LABEL.fullmatch(name):
        causes.append(_bad(name[:260], "metadata.name", "a lowercase RFC 1123 label of at most 63 characters"))
    elif len(name) > LONGEST_NAME or not _DNS_SUBDOMAIN.fullmatch(name):
        causes.append(_bad(name[:260], "metadata.name", "a lowercase RFC 1123 subdomain of at most 253 characters"))
    for label, value in metadata.get("labels", {}).items():
        if key_problem(label):
            causes.append(
                _bad(label[:260], "metadata.labels", "a label key: an optional DNS prefix, / and a name of at most 63")
            )
        if value_problem(value):
            causes.append(_bad(value[:80], "metadata.labels", "a label value: at most 63 letters, digits, -, _ or ."))
    annotations = metadata.get("annotations", {})
    for annotation in annotations:
        if key_problem(annotation.lower()):
            causes.append(
                _bad(
                    annotation[:260], "metadata.annotations", "an annotation key: an optional DNS prefix, / and a name"
                )
            )
    if sum(len(text.encode()) for pair in annotations.items() for text in pair) > _ANNOTATIONS_BYTES:
        sentence = f"Too long: may not be more than {_ANNOTATIONS_BYTES} bytes"
        causes.append(Cause("FieldValueTooLong", sentence, "metadata.annotations"))
    for finalizer in metadata.get("finalizers", ()):
        if key_problem(finalizer):
            causes.append(
                _bad(finalizer[:260], "metadata.finalizers", "a finalizer: an optional DNS prefix, / and a name")
            )
    for owner in metadata.get("ownerReferences", ()):
        causes += [_empty(f"metadata.ownerReferences.{key}") for key in _OWNER if not owner[key]]
    if sum(bool(owner.get("controller")) for owner in metadata.get("ownerReferences", ())) > 1:
        causes.append(_bad("true", "metadata.ownerReferences", "only one reference can have controller set to true"))
    return causes


_OWNER = ("apiVersion", "kind", "name", "uid")


def _empty(field: str) -> Cause:
    return Cause("FieldValueInvalid", 'Invalid value: "": must not be empty', field)


def _bad(value: str, field: str, wanted: str) -> Cause:
    return Cause("FieldValueInvalid", f'Invalid value: "{value}": must be {wanted}', field)
