"""compute-manager as a real process that was told to remove nothing by itself."""

from collections.abc import Callable

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.karmada import MANAGED, ORIGINAL_UID
from datum_compute.api.labels import UPSTREAM_UID, WITHDRAWN_UIDS
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.withdrawals import Note, annotation
from datum_compute.kube.kinds import NAMESPACE
from tests.operator.processes import CELL_NAME, CITY, PROJECT_NAME, Manager, Site, until
from tests.scenarios.federation import placement, template

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Manager]
METRICS = 'metricsServer: {secureServing: false, bindAddress: "127.0.0.1:0"}'
SPEC = {
    "cityCode": CITY,
    "placementName": "main",
    "workloadRef": {"name": "web", "uid": "1"},
    "scaleSettings": placement("main", [CITY], 1)["scaleSettings"],
    "template": template(),
}


def _start(start: Start, site: Site, name: str, discovery: str, host: str, *flags: str) -> Manager:
    return start(
        name,
        f"discovery: {{{discovery}}}\n{METRICS}",
        f"--kubeconfig={site.directory}/{host}.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--remove-leftovers=false",
        "--leftover-grace-seconds=0.5",
        *flags,
    )


def _holds(manager: Manager, metric: str) -> bool:
    return f'{metric}{{reason="switched-off"}} 1.0' in manager.get("/metrics", "metrics")[1].splitlines()


def test_a_cell_that_may_remove_nothing_keeps_a_withdrawn_deployment(site: Site, start: Start) -> None:
    async def withdraw() -> None:
        notes = {key: value for key, value in annotation([Note("web", "original")]).items() if value}
        home = NAMESPACE.body("ns-1", labels=hub_labels(PROJECT_NAME, "default"), annotations=notes)
        await site.client("hub").create(NAMESPACE, home)

    async def is_delivered() -> bool:
        return await site.client(CELL_NAME).find(NAMESPACE, "ns-1") is not None

    async def leave_behind() -> None:
        copy = WORKLOAD_DEPLOYMENT.body("web", "ns-1", labels={MANAGED: "true"}, annotations={ORIGINAL_UID: "original"})
        await site.client(CELL_NAME).create(WORKLOAD_DEPLOYMENT, copy | {"spec": SPEC})

    site.do(withdraw)
    site.until(is_delivered, "the cell has the namespace")
    site.do(leave_behind)
    cell = _start(start, site, "cell", f"clusterName: {CELL_NAME}", CELL_NAME, "--enable-cell-controllers")
    until(lambda: _holds(cell, "compute_cell_deployments_held"), "the cell holds the deployment")

    async def is_left() -> bool:
        copy = await site.client(CELL_NAME).get(WORKLOAD_DEPLOYMENT, "web", "ns-1")
        return not copy.metadata.deleting

    assert site.do(is_left)


def test_management_that_may_remove_nothing_keeps_what_its_project_gave_up(site: Site, start: Start) -> None:
    async def leave_behind() -> None:
        project, hub = site.client(PROJECT_NAME), site.client("hub")
        gave_up = {"metadata": {"annotations": {WITHDRAWN_UIDS: '["original"]'}}}
        namespace = await project.merge_patch(NAMESPACE, "default", "", gave_up)
        home = f"ns-{namespace.metadata.uid}"
        await hub.create(NAMESPACE, NAMESPACE.body(home, labels=hub_labels(PROJECT_NAME, "default")))
        ghost = WORKLOAD_DEPLOYMENT.body("web", home, annotations={UPSTREAM_UID: "original"})
        await hub.create(WORKLOAD_DEPLOYMENT, ghost | {"spec": SPEC})

    site.do(leave_behind)
    root = f"{site.directory}/root.kubeconfig"
    discovery = f"mode: milo, discoveryKubeconfigPath: {root}, projectKubeconfigPath: {root}"
    management = _start(start, site, "management", discovery, "root", "--enable-management-controllers")
    until(lambda: _holds(management, "compute_hub_deployments_held"), "management holds the deployment")

    async def left() -> list[str]:
        return [copy.name for copy in (await site.client("hub").list(WORKLOAD_DEPLOYMENT)).items]

    assert site.do(left) == ["web"]
