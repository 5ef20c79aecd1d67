"""Reviews as no API server sends them. Entry point: `malformed`."""

import json
import random
import string
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from datum_compute.admission.webhook import MUTATE, OF_PROJECT, VALIDATE, VALIDATE_DEPLOYMENT
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.meta import Json
from tests.scenarios.federation import placement, template

_PATHS = (MUTATE, VALIDATE, VALIDATE_DEPLOYMENT)
_DEPTHS = (10, 100, 1_000, 20_000)


class Sent(Struct, frozen=True):
    what: str
    path: str
    body: bytes


def review(project: str, city: str, name: str = "web") -> Json:
    """As an API server sends it."""
    spec = {"template": template(), "placements": [placement("main", [city], 1)]}
    workload = WORKLOAD.body(name, "default") | {"spec": spec}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": WORKLOAD.group, "version": WORKLOAD.version, "kind": WORKLOAD.name},
        "operation": "UPDATE",
        "namespace": "default",
        "name": name,
        "object": workload,
        "oldObject": WORKLOAD.body(name, "default") | {"spec": spec | {"placements": []}},
        "userInfo": {
            "username": "ada",
            "groups": ["system:authenticated"],
            "extra": {"iam.miloapis.com/parent-name": [project]},
        },
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def malformed(generator: random.Random, project: str, city: str) -> Sent:
    path = generator.choice(_PATHS)
    if generator.random() < 0.2:
        path += OF_PROJECT + generator.choice([project, "", "nobody", "%00", "../" * 9, "%C3%A9"])
    make = generator.choice(_MAKERS)
    good = review(project, city)
    if path.startswith(VALIDATE_DEPLOYMENT):
        good["request"]["object"] |= {"apiVersion": WORKLOAD_DEPLOYMENT.api_version, "kind": WORKLOAD_DEPLOYMENT.name}
    return Sent(make.__name__, path, make(generator, good))


def noise(generator: random.Random, good: Json) -> bytes:
    return generator.randbytes(generator.choice([0, 1, 10, 1_000, 50_000]))


def cut_off(generator: random.Random, good: Json) -> bytes:
    body = json.dumps(good).encode()
    return body[: generator.randrange(len(body))]


def flipped_bytes(generator: random.Random, good: Json) -> bytes:
    body = bytearray(json.dumps(good).encode())
    for _ in range(generator.randint(1, 20)):
        body[generator.randrange(len(body))] = generator.randrange(256)
    return bytes(body)


def replaced_value(generator: random.Random, good: Json) -> bytes:
    for _ in range(generator.randint(1, 5)):
        container, key = generator.choice(_places(good))
        container[key] = _junk(generator)
    return json.dumps(good).encode()


def removed_value(generator: random.Random, good: Json) -> bytes:
    for _ in range(generator.randint(1, 5)):
        if places := _places(good):
            container, key = generator.choice(places)
            del container[key]
    return json.dumps(good).encode()


def repeated_key(generator: random.Random, good: Json) -> bytes:
    body = json.dumps(good)
    junk = json.dumps(_junk(generator))
    return f'{{"request": {junk}, {body[1:-1]}, "kind": {junk}}}'.encode()


def deep(generator: random.Random, good: Json) -> bytes:
    """Deeper than any stack, in a place that is read."""
    depth, (opening, closing) = generator.choice(_DEPTHS), generator.choice([("[", "]"), ('{"a":', "}")])
    place = generator.choice(["object", "oldObject", "userInfo", "uid"])
    good["request"][place] = "here"
    return json.dumps(good).replace('"here"', opening * depth + "1" + closing * depth).encode()


def wide(generator: random.Random, good: Json) -> bytes:
    """With very many of what there should be a few of."""
    spec = good["request"]["object"]["spec"]
    number = 5_000 if generator.random() < 0.05 else 100
    match generator.randrange(3):
        case 0:
            spec["placements"] = [placement(f"p{index}", ["XXX"], 1) for index in range(number)]
        case 1:
            spec["template"]["metadata"] = {"labels": {f"l{index}/x": "?" for index in range(number)}}
        case 2:
            spec["template"]["spec"]["networkInterfaces"] = [{"network": {"name": f"n{n}"}} for n in range(number)]
    return json.dumps(good).encode()


def no_number(generator: random.Random, good: Json) -> bytes:
    good["request"]["object"]["spec"]["placements"][0]["scaleSettings"] = {"minReplicas": "here"}
    number = generator.choice(["NaN", "-Infinity", "1e999", "9" * 5_000, "-0", "0x10", "1_000", "٣"])
    return json.dumps(good).replace('"here"', number).encode()


def unpaired_surrogate(generator: random.Random, good: Json) -> bytes:
    good["request"][generator.choice(["uid", "name", "namespace"])] = "\ud800"
    good["request"]["userInfo"]["extra"]["iam.miloapis.com/parent-name"] = ["\udfff"]
    return json.dumps(good).encode()


_Maker = Callable[[random.Random, Json], bytes]
_MAKERS: tuple[_Maker, ...] = (
    *(noise, cut_off, flipped_bytes, replaced_value, replaced_value, replaced_value, removed_value, removed_value),
    *(repeated_key, deep, wide, no_number, unpaired_surrogate),
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container below a value, with each of its keys or indices."""
    keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    places = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            places += _places(value[key])
    return places


def _junk(generator: random.Random) -> Any:
    return generator.choice(
        [
            None,
            True,
            -1,
            2**63,
            10**400,
            1.5,
            "",
            "\x00",
            "x" * 300,
            "".join(generator.choices(string.printable, k=20)),
            [],
            {},
            [[]],
            {"": None},
            [None] * 50,
            {"name": {"name": []}},
        ]
    )
