"""How fast are objects read and written, and how large are they in a cache? Prints one table.

Run with `.venv/bin/python -m bench.api`. Rates are medians of several rounds on one core. Memory is what the process
really grew by (RSS) and what Python counts, over 20,000 objects that each arrived in their own buffer.
"""

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from bench import parser
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.kube.meta import Json, decode, encode

SIZE = 4096
ROUNDS = 5
OBJECTS = 20_000
PER_ROUND = 20_000


def condition(type_: str, reason: str, message: str) -> Json:
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-06-10T12:00:00Z",
        "observedGeneration": 2,
    }


def instance(number: int) -> bytes:
    """As a cell's API server sends it: two containers with an environment that fills it up to its size."""
    namespace, deployment = "ns-11111111-2222-3333-4444-555555555555", f"web-main-dfw-{number:05}"
    prefix = "compute.datumapis.com"
    labels = {
        "app": "web",
        f"{prefix}/workload-uid": f"aaaaaaaa-0000-0000-0000-{number:012}",
        f"{prefix}/workload-deployment-uid": f"bbbbbbbb-0000-0000-0000-{number:012}",
        f"{prefix}/workload-deployment-name": deployment,
        f"{prefix}/workload-name": f"web-{number:05}",
        f"{prefix}/placement-name": "main",
        f"{prefix}/city-code": "DFW",
        f"{prefix}/instance-index": "0",
    }
    owner = {
        "apiVersion": INSTANCE.api_version,
        "kind": "WorkloadDeployment",
        "name": deployment,
        "uid": f"bbbbbbbb-0000-0000-0000-{number:012}",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    body = INSTANCE.body(
        f"{deployment}-0",
        namespace,
        uid=f"cccccccc-0000-0000-0000-{number:012}",
        resourceVersion=str(1_000_000 + number),
        generation=2,
        creationTimestamp="2026-06-10T12:00:00Z",
        labels=labels,
        finalizers=[f"{prefix}/instance-controller", f"quota.{prefix}/claim-cleanup", f"{prefix}/simulated-provider"],
        ownerReferences=[owner],
    )
    containers: list[Json] = [
        {
            "name": name,
            "image": f"registry.example/{name}:1.27.{number}",
            "env": [{"name": f"SETTING_{index}", "value": f"value {index} of {name}"} for index in range(8)],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        }
        for name in ("web", "proxy")
    ]
    spec: Json = {
        "runtime": {
            "resources": {"instanceType": "datumcloud/d1-standard-2"},
            "sandbox": {"containers": containers},
        },
        "networkInterfaces": [{"network": {"name": "default"}}],
        "controller": {"templateHash": "7f9c6b5d84", "schedulingGates": []},
    }
    status = {
        "conditions": [
            condition("Programmed", "Programmed", "The instance is available"),
            condition("Available", "Available", "The instance is available"),
            condition("QuotaGranted", "QuotaAvailable", "All requested resources are available"),
            condition("Ready", "Available", "Instance is ready"),
        ],
        "networkInterfaces": [{"assignments": {"networkIP": "10.128.0.7", "externalIP": "203.0.113.7"}}],
        "controller": {"observedTemplateHash": "7f9c6b5d84"},
    }
    whole = body | {"spec": spec, "status": status}
    missing = SIZE - len(encode(whole))
    containers[0]["env"].append({"name": "FILLER", "value": "x" * (missing - 29)})
    return encode(whole)


def cached(data: bytes) -> Instance:
    return decode(data, Instance)


def looked_at(data: bytes) -> Instance:
    """With what controllers look at again and again: gates and conditions."""
    found = cached(data)
    assert found.spec.controller is not None
    assert found.status is not None
    return found


def read_all(data: bytes) -> Instance:
    """With everything typed."""
    found = looked_at(data)
    assert found.spec.runtime.sandbox is not None
    return found


RATES: dict[str, Callable[[bytes], object]] = {
    "decode, as a cache does": cached,
    "decode with gates and conditions": looked_at,
    "decode with everything typed": read_all,
    "decode with everything and encode": lambda data: encode(read_all(data)),
    "plain values, decode and encode": lambda data: encode(decode(data, object)),
}
KEPT: dict[str, Callable[[bytes], Instance]] = {
    "cached, nothing looked at": cached,
    "cached, gates and conditions": looked_at,
    "cached, everything typed": read_all,
}


def rate(act: Callable[[bytes], object]) -> float:
    data = instance(0)
    results = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(PER_ROUND):
            act(data)
        results.append(PER_ROUND / (time.process_time() - began))
    return statistics.median(results)


def memory(label: str, counted: bool) -> float:
    """kB per object in a dictionary like an informer's."""
    act = KEPT[label]
    act(instance(0))
    gc.collect()
    if counted:
        tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] if counted else _resident()
    cache: dict[tuple[str, str], Instance] = {}
    for number in range(OBJECTS):
        found = act(bytes(bytearray(instance(number))))  # a buffer of its own, of exactly its size
        cache[found.metadata.namespace, found.metadata.name] = found
    gc.collect()
    after = tracemalloc.get_traced_memory()[0] if counted else _resident()
    assert len(cache) == OBJECTS
    return (after - before) / OBJECTS / 1000


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def main() -> None:
    print(f"{f'one Instance of {len(instance(0))} bytes':36}{'per second':>12}")
    for label, act in RATES.items():
        print(f"{label:36}{rate(act):>12,.0f}")
    print(f"\n{f'{OBJECTS:,} of them, kB each':36}{'RSS':>12}{'counted':>12}")
    for label in KEPT:
        # Each in a process of its own: what one leaves behind would be taken for free by the next.
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
            resident, counted = fresh.map(memory, [label, label], [False, True])
        print(f"{label:36}{resident:>12.1f}{counted:>12.1f}")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
