"""Which controllers a process runs."""

import random
from typing import Any

import pytest

from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.config import API_VERSION, KIND, WorkloadOperator
from datum_compute.operator.flags import Flags, parse
from datum_compute.operator.planes import Endpoints
from datum_compute.operator.settings import settled
from datum_compute.runtime.clock import SystemClock

SOMEWHERE = Endpoint("https://127.0.0.1:1")
MANAGEMENT = {"workload", "workload-deployment-federator", "instance-projector", "sites", "handover", "hub-sweeper"}
CELL = {"workloaddeployment", "instance", "quota-gate", "write-back", "former-provider", "former-network"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, set()),
        ({"enable_management_controllers": True}, MANAGEMENT),
        ({"enable_cell_controllers": True}, CELL),
        ({"enable_management_controllers": True, "enable_cell_controllers": True}, MANAGEMENT | CELL),
    ],
)
async def test_only_the_enabled_controllers_run(flags: dict[str, Any], expected: set[str]) -> None:
    assert parse([], {}, "") == Flags(), "both groups are off by default"
    chosen = settled(Flags(federation_kubeconfig="/hub", **flags), WorkloadOperator(API_VERSION, KIND))
    endpoints = Endpoints(host=SOMEWHERE, hub=SOMEWHERE)
    assembly = Assembly(chosen, endpoints, clock=SystemClock(), generator=random.Random(1))
    assert set(assembly.manager.controllers) == expected
    await assembly.close()
