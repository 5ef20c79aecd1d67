"""compute-manager as a real process: over HTTPS, with signals, leases and probes."""

import platform
import re
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from datum_compute import __version__
from datum_compute.admission.webhook import VALIDATE
from datum_compute.api.instance import AVAILABLE, INSTANCE
from datum_compute.api.karmada import execution_space
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.api.permissions import CELL_LEASE, MANAGEMENT_LEASE
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import Endpoint, write_kubeconfig
from datum_compute.kube.authority import CLIENT, Pair, issue, new_authority
from datum_compute.kube.kinds import LEASE, NAMESPACE
from datum_compute.kube.meta import as_dict
from datum_compute.kube.tracing import ANNOTATION
from datum_compute.operator import process
from datum_compute.operator.assembly import Assembly
from datum_compute.operator.metrics import METRICS
from tests.metrics import differences
from tests.operator.processes import CELL_NAME, CITY, HOST_NAMESPACE, PROJECT_NAME, Manager, Site, until
from tests.scenarios.federation import is_ready, placement, template
from tests.tracing import Collector

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., Manager]
NETWORKING = "--feature-gates=NetworkingIntegration=true"


def _management(
    start: Start, site: Site, name: str = "management", *flags: str, metrics: str = "", **environment: str
) -> Manager:
    config = f"""
discovery:
  mode: milo
  discoveryKubeconfigPath: {site.directory}/root.kubeconfig
  projectKubeconfigPath: {site.directory}/root.kubeconfig
{metrics}"""
    return start(
        name,
        config,
        f"--kubeconfig={site.directory}/root.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-management-controllers",
        "--builtins=quota,entitlement,locations",
        *flags,
        **environment,
    )


def _cell(start: Start, site: Site, *flags: str, **environment: str) -> Manager:
    config = f"""
discovery:
  clusterName: {CELL_NAME}
  quotaKubeconfigPath: {site.directory}/root.kubeconfig
"""
    return start(
        "cell",
        config,
        f"--kubeconfig={site.directory}/{CELL_NAME}.kubeconfig",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-cell-controllers",
        "--provider=simulated",
        *flags,
        **environment,
    )


def _deploy(site: Site, replicas: int, **annotations: str) -> None:
    site.entitle()

    async def offered() -> bool:
        return bool((await site.client(PROJECT_NAME).list(LOCATION_BINDING)).items)

    async def create() -> None:
        spec = {"template": template(), "placements": [placement("main", [CITY], replicas)]}
        body = WORKLOAD.body("web", "default", annotations=annotations)
        await site.client(PROJECT_NAME).create(WORKLOAD, body | {"spec": spec})

    site.until(offered, "the city is offered")
    site.do(create)


def _until_available(site: Site, replicas: int) -> None:
    async def available() -> bool:
        client = site.client(PROJECT_NAME)
        workload = await client.get(WORKLOAD, "web", "default")
        ready = sum(map(is_ready, (await client.list(INSTANCE)).items))
        status = workload.status
        return status is not None and conditions.is_true(status.conditions, AVAILABLE) and ready == replicas

    site.until(available, "the workload is available in the project")


@pytest.mark.parametrize("flags", [[], [NETWORKING, "--builtins=network,locations"]], ids=["plain", "networking"])
def test_management_and_a_cell_as_two_processes_bring_a_workload_up(site: Site, start: Start, flags: list[str]) -> None:
    management, cell = _management(start, site, "management", *flags[:1]), _cell(start, site, *flags)
    management.until_ready()
    cell.until_ready()
    _deploy(site, 2)
    _until_available(site, 2)
    assert management.terminate() == 0
    assert cell.terminate() == 0


def test_two_processes_send_their_spans_of_one_trace_to_a_collector(site: Site, start: Start) -> None:
    trace, root = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with Collector() as collector:
        management = _management(start, site, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        cell = _cell(start, site, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SERVICE_NAME="cell-dfw")
        management.until_ready()
        cell.until_ready()
        _deploy(site, 1, **{ANNOTATION: f"00-{trace}-{root}-01"})
        _until_available(site, 1)
        assert management.terminate() == cell.terminate() == 0  # the last spans are sent before the end
    spans = [span for span in collector.spans if span.trace_id.hex() == trace]
    assert {span.parent_span_id.hex() for span in spans} == {root}
    assert {span.name for span in spans} >= {
        *("workload", "workload-deployment-federator", "instance-projector"),
        *("workloaddeployment", "instance", "quota-gate", "write-back"),
    }
    assert collector.services == {"compute-manager", "cell-dfw"}


def test_a_collector_that_is_down_holds_up_neither_work_nor_the_end(site: Site, start: Start) -> None:
    management = _management(start, site, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    management.until_ready()
    until(lambda: any(line["event"] == "spans not sent" for line in management.lines()), "it is logged")
    assert management.terminate() == 0
    assert len([line for line in management.lines() if line["event"] == "spans not sent"]) == 1


def test_management_starts_without_a_cell_name(site: Site, start: Start) -> None:
    management = start(
        "management",
        f"discovery: {{mode: milo, discoveryKubeconfigPath: {site.directory}/root.kubeconfig, "
        f"projectKubeconfigPath: {site.directory}/root.kubeconfig}}",
        f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
        "--enable-management-controllers",
    )
    management.until_ready()
    until(lambda: any(line.get("plane") == "demo" for line in management.lines()), "the project is engaged")


def test_probes_and_metrics_are_served(site: Site, start: Start) -> None:
    insecure = 'metricsServer: {secureServing: false, bindAddress: "127.0.0.1:0"}'
    management = _management(start, site, metrics=insecure)
    management.until_ready()
    assert management.get("/healthz")[0] == 200
    assert management.get("/nothing")[0] == 404
    code, figures = management.get("/metrics", "metrics")
    assert code == 200
    assert 'controller_runtime_reconcile_total{controller="workload",result="success"}' in figures
    assert 'compute_planes_engaged{kind="project"} 1.0' in figures
    assert "workqueue_depth" in figures
    assert f'compute_build_info{{python_version="{platform.python_version()}",version="{__version__}"}} 1.0' in figures
    assert re.search(r'rest_client_requests_total\{code="200",method="GET",role="hub"\} [1-9]', figures)
    assert differences(figures, METRICS) == set()
    assert management.get("/metrics")[0] == 404, "figures are not for everybody who may probe"


def test_metrics_are_secured_by_default(site: Site, start: Start) -> None:
    management = _management(start, site, metrics='metricsServer: {bindAddress: "127.0.0.1:0"}')
    assert management.get("/metrics", "metrics", tls=True)[0] == 401
    code, _ = management.get("/metrics", "metrics", tls=True, token="whoever")
    assert code == 503, "this host cannot review tokens, and nobody is let in unreviewed"


def test_a_second_replica_stands_by_until_the_first_has_gone(site: Site, start: Start) -> None:
    elect = ("--leader-elect", f"--leader-elect-namespace={HOST_NAMESPACE}")
    first = _management(start, site, "first", *elect)
    first.until_ready()
    until(lambda: _says(first, "leading"), "the first leads")
    second = _management(start, site, "second", *elect)
    second.until_ready()
    cell = _cell(start, site)
    _deploy(site, 1)
    _until_available(site, 1)
    assert any(line.get("plane") == PROJECT_NAME for line in second.lines()), "its caches are warm"
    assert not _says(second, "leading")
    assert first.terminate() == 0
    until(lambda: _says(second, "leading"), "the second took over")
    _scale(site, 2)
    _until_available(site, 2)
    assert cell.process.poll() is None


def _says(manager: Manager, event: str) -> bool:
    return any(line.get("event") == event for line in manager.lines())


def _scale(site: Site, replicas: int) -> None:
    async def patch() -> None:
        change = {"spec": {"placements": [placement("main", [CITY], replicas)]}}
        await site.client(PROJECT_NAME).merge_patch(WORKLOAD, "web", "default", change)

    site.do(patch)


def test_a_lost_lease_ends_the_process_with_one_line(site: Site, start: Start) -> None:
    manager = _management(start, site, "first", "--leader-elect", f"--leader-elect-namespace={HOST_NAMESPACE}")
    until(lambda: _says(manager, "leading"), "it leads")

    async def usurp() -> None:
        stolen = {"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 3600}}
        await site.client("root").merge_patch(LEASE, MANAGEMENT_LEASE, HOST_NAMESPACE, stolen)

    site.do(usurp)
    assert manager.ended() == 1
    assert manager.lines()[-1]["event"] == (
        f"compute-manager: lease {HOST_NAMESPACE}/{MANAGEMENT_LEASE} is held by somebody-else now"
    )


def test_a_stopped_process_releases_its_lease(site: Site, start: Start) -> None:
    manager = _cell(start, site, "--leader-elect", f"--leader-elect-namespace={HOST_NAMESPACE}")
    until(lambda: _says(manager, "leading"), "it leads")
    assert manager.terminate() == 0

    async def holder() -> str:
        lease = await site.client(CELL_NAME).get(LEASE, CELL_LEASE, HOST_NAMESPACE)
        return str(as_dict(lease.spec_json)["holderIdentity"])

    assert site.do(holder) == ""
    assert _says(manager, "stopped")


def test_a_cell_whose_name_another_cluster_holds_is_ready_and_says_so(site: Site, start: Start) -> None:
    async def space_exists() -> bool:
        return any(
            found.name == execution_space(CELL_NAME) for found in (await site.client("hub").list(NAMESPACE)).items
        )

    async def occupy() -> None:
        body = LEASE.body(CELL_NAME, execution_space(CELL_NAME))
        spec = {"holderIdentity": "another-cluster", "leaseDurationSeconds": 3600}
        await site.client("hub").create(LEASE, body | {"spec": spec})

    site.until(space_exists, "the hub has a namespace for the cell")
    site.do(occupy)
    cell = _cell(start, site)
    cell.until_ready()
    until(lambda: "another-cluster" in cell.get("/readyz?verbose")[1], "the holder is named")
    code, text = cell.get("/readyz?verbose")
    assert code == 200
    assert f'[!]cell-name: The cell name "{CELL_NAME}" is held by another cluster' in text
    assert [line["level"] for line in cell.lines() if line.get("holder") == "another-cluster"] == ["warning"]


def test_a_replica_that_stops_is_not_ready_for_a_while_and_answers_meanwhile(site: Site, start: Start) -> None:
    credentials = site.background.credentials
    tls = f"{{certDir: {credentials.directory}, certName: server.crt, keyName: server.key}}"
    webhook = f"webhookServer: {{host: 127.0.0.1, port: 0, tls: {tls}}}"
    elect = ("--leader-elect", f"--leader-elect-namespace={HOST_NAMESPACE}")
    management = _management(start, site, "first", "--shutdown-delay-seconds=3600", *elect, metrics=webhook)
    management.until_ready()
    until(lambda: _says(management, "leading"), "it leads")
    management.process.send_signal(signal.SIGTERM)
    until(lambda: management.get("/readyz")[0] == 500, "it is not ready any more")
    assert "[-]shutdown failed: the process is stopping" in management.get("/readyz")[1]
    assert management.get("/healthz")[0] == 200
    user = {"username": "ada", "extra": {"iam.miloapis.com/parent-name": [PROJECT_NAME]}}
    request = {"uid": "1", "operation": "CREATE", "namespace": "default", "name": "web", "object": {}, "userInfo": user}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    answer = management.post(VALIDATE, "webhook", review)["response"]
    assert answer["status"]["code"] == 422, "it looked at the object, as ever"
    assert management.terminate() == 0, "a second request is not kept waiting"


def test_the_wait_before_a_stop_ends_by_itself(site: Site, start: Start) -> None:
    management = _management(start, site, "management", "--shutdown-delay-seconds=0.5")
    management.until_ready()
    assert management.terminate() == 0


def test_projects_come_from_a_directory_of_kubeconfigs(site: Site, start: Start) -> None:
    directory = site.directory / "projects"
    directory.mkdir()
    config = f"""
discovery:
  mode: kubeconfigs
  kubeconfigDir: {directory}
  clusterName: {CELL_NAME}
"""
    hub = f"--federation-kubeconfig={site.directory}/hub.kubeconfig"
    builtins = "--builtins=quota,entitlement,locations"
    management = start("management", config, hub, "--enable-management-controllers", builtins)
    cell = start(
        "cell",
        config,
        hub,
        f"--kubeconfig={site.directory}/{CELL_NAME}.kubeconfig",
        "--enable-cell-controllers",
        "--provider=simulated",
    )
    management.until_ready()
    cell.until_ready()
    site.kubeconfig(PROJECT_NAME, directory / f"{PROJECT_NAME}.yaml")
    _deploy(site, 1)
    _until_available(site, 1)


def test_admission_is_served_to_api_servers(site: Site, start: Start) -> None:
    credentials = site.background.credentials
    tls = f"{{certDir: {credentials.directory}, certName: server.crt, keyName: server.key}}"
    webhook = f"webhookServer: {{host: 127.0.0.1, port: 0, tls: {tls}}}"
    management = _management(start, site, metrics=webhook)
    management.until_ready()
    site.entitle()

    async def offered() -> bool:
        return bool((await site.client(PROJECT_NAME).list(LOCATION_BINDING)).items)

    site.until(offered, "the city is offered")
    spec = {"template": template(), "placements": [placement("main", [CITY, "XXX"], 1)]}
    request = {
        "uid": "1",
        "operation": "CREATE",
        "namespace": "default",
        "name": "web",
        "object": WORKLOAD.body("web", "default") | {"spec": spec},
        "userInfo": {"username": "ada", "extra": {"iam.miloapis.com/parent-name": [PROJECT_NAME]}},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}

    def refused(of_project: str = "") -> dict[str, str]:
        path = f"/validate-compute-datumapis-com-v1alpha-workload{of_project}"
        answer = management.post(path, "webhook", review)
        return {cause["field"]: cause["reason"] for cause in answer["response"]["status"]["details"]["causes"]}

    expected = {
        "spec.placements[0].cityCodes[1]": "FieldValueNotSupported",
        "spec.template.spec.networkInterfaces[0].network": "FieldValueForbidden",  # only its own user is let in there
    }
    until(lambda: refused() == expected, "the city that is offered is known")
    request["userInfo"] = {"username": "ada"}
    assert refused(f"/projects/{PROJECT_NAME}") == expected


def test_replicas_serve_the_certificate_that_one_of_them_issued(site: Site, start: Start) -> None:
    config = """
webhookServer: {host: 127.0.0.1, port: 0, tls: {selfSigned: {}}}
metricsServer: {secureServing: false, bindAddress: "127.0.0.1:0"}
"""
    flags = (f"--leader-elect-namespace={HOST_NAMESPACE}",)
    replicas = [_management(start, site, name, *flags, metrics=config) for name in ("first", "second")]
    certificates = [ssl.get_server_certificate(("127.0.0.1", replica.port("webhook"))) for replica in replicas]
    assert certificates[0] == certificates[1]
    expiry = x509.load_pem_x509_certificate(certificates[0].encode()).not_valid_after_utc.timestamp()
    for replica in replicas:
        name = 'compute_certificate_expiry_timestamp_seconds{certificate="webhook"}'
        lines = [line.partition(f"{name} ") for line in replica.get("/metrics", "metrics")[1].splitlines()]
        assert [float(value) for before, found, value in lines if found and not before] == [expiry]


OPEN = "admission answers anybody who reaches its port"


def test_admission_is_served_to_clients_signed_by_the_client_authority(site: Site, start: Start) -> None:
    directory = site.background.credentials.directory
    tls = f"{{certDir: {directory}, certName: server.crt, keyName: server.key}}"
    webhook = f"webhookServer: {{host: 127.0.0.1, port: 0, tls: {tls}}}"
    everybody = _management(start, site, "open", metrics=webhook)
    closed = _management(start, site, "closed", f"--webhook-client-ca={directory}/ca.crt", metrics=webhook)
    for manager in (everybody, closed):
        manager.until_ready()
    assert everybody.post("/nothing", "webhook", {})["code"] == 404
    with pytest.raises((ssl.SSLError, ConnectionError)):
        closed.post("/nothing", "webhook", {})
    ours = new_authority("others", datetime.now(UTC), 1), _authority(directory)
    others, known = (_client(authority, directory / f"{number}.pem") for number, authority in enumerate(ours))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        closed.post("/nothing", "webhook", {}, certificate=others)
    assert closed.post("/nothing", "webhook", {}, certificate=known)["code"] == 404
    assert [sum(OPEN in str(line.get("event")) for line in each.lines()) for each in (everybody, closed)] == [1, 0]


def _authority(directory: Path) -> Pair:
    key = load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Pair(x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()), key)


def _client(authority: Pair, file: Path) -> Path:
    made = issue(authority, "kube-apiserver", datetime.now(UTC), 1, purposes=[CLIENT])
    file.write_bytes(made.key_pem + made.certificate_pem)
    return file


def test_a_process_starts_where_nothing_can_be_written(site: Site, start: Start, tmp_path: Path) -> None:
    """As on a read-only root without a folder for temporary files."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(READ_ONLY)
    directory = site.background.credentials.directory
    tls = f"{{certDir: {directory}, certName: server.crt, keyName: server.key}}"
    servers = f"""
metricsServer: {{bindAddress: "127.0.0.1:0"}}
webhookServer: {{host: 127.0.0.1, port: 0, tls: {tls}}}
"""
    environment = {"PYTHONPATH": str(folder), "TMPDIR": "/nowhere"}
    management = _management(start, site, metrics=servers, **environment)
    management.until_ready()
    assert management.get("/metrics", "metrics", tls=True)[0] == 401
    assert management.post("/nothing", "webhook", {})["code"] == 404
    assert management.terminate() == 0


READ_ONLY = """
import builtins, os, errno
def refuse(*arguments, **named):
    raise OSError(errno.EROFS, "Read-only file system")
def guarded(function):
    def call(file, flags, *arguments, **named):
        return refuse() if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) and file != os.devnull else function(
            file, flags, *arguments, **named)
    return call
os.open, os.mkdir, os.makedirs = guarded(os.open), refuse, refuse
def opened(file, mode="r", *arguments, **named):
    named_file = not isinstance(file, int) and file != os.devnull
    return refuse() if named_file and set(mode) & set("wax+") else builtin(file, mode, *arguments, **named)
builtin, builtins.open = builtins.open, opened
"""


def test_both_groups_run_in_one_process_on_one_api_server(tmp_path: Path, start: Start) -> None:
    site = Site(tmp_path, cell=PROJECT_NAME)
    try:
        manager = start(
            "both",
            "discovery: {mode: single}",
            f"--kubeconfig={site.directory}/{PROJECT_NAME}.kubeconfig",
            f"--federation-kubeconfig={site.directory}/hub.kubeconfig",
            "--enable-management-controllers",
            "--enable-cell-controllers",
            "--provider=simulated",
            "--builtins=quota,entitlement,locations",
        )
        manager.until_ready()
        _deploy(site, 2)

        async def all_ready() -> bool:
            found = (await site.client(PROJECT_NAME).list(INSTANCE)).items
            return len(found) == 4 and all(map(is_ready, found))

        site.until(all_ready, "two instances run, and two are shown")

        async def hub_namespaces() -> list[str]:
            return [
                item.name for item in (await site.client("hub").list(NAMESPACE)).items if item.name.startswith("ns-")
            ]

        assert len(site.do(hub_namespaces)) == 1, "what was delivered is not federated again"

        async def claims() -> int:
            return len((await site.client(PROJECT_NAME).list(RESOURCE_CLAIM)).items)

        assert site.do(claims) == 2, "what is shown claims nothing"
        assert manager.terminate() == 0
    finally:
        site.close()


HEAD = "apiVersion: apiserver.config.datumapis.com/v1alpha1\nkind: WorkloadOperator\n"


@pytest.mark.parametrize(
    ("config", "flags", "code", "sentence"),
    [
        ("", [], 2, "--server-config is required: name the config file; see compute-manager --help"),
        ("", ["--nonsense"], 2, "unrecognized arguments: --nonsense; see compute-manager --help"),
        (
            "discovery: {}\ndiscovery: {}\n",
            ["--server-config"],
            1,
            "config file {file}, line 4: discovery is there twice",
        ),
        (
            "",
            ["--server-config", "--enable-management-controllers"],
            1,
            "the management controllers need the hub: name",
        ),
        (
            "discovery: {mode: kubeconfigs, kubeconfigDir: /tmp}",
            ["--server-config", "--enable-management-controllers", "--federation-kubeconfig=/nowhere/hub"],
            1,
            "--federation-kubeconfig: kubeconfig /nowhere/hub cannot be read: No such file or directory",
        ),
        (
            "",
            ["--server-config", "--enable-cell-controllers", "--stand-alone-cell"],
            1,
            "--kubeconfig: this process does not run in a cluster",
        ),
        ("discovery: {mode: milo}", ["--server-config"], 0, ""),
        (
            "discovery: {mode: kubeconfigs, kubeconfigDir: /nowhere}",
            ["--server-config"],
            1,
            "discovery.kubeconfigDir: /nowhere is not a directory",
        ),
        (
            'discovery: {quotaKubeconfigPath: "{kubeconfig}", projectURLTemplate: "/p/{who}"}',
            ["--server-config"],
            1,
            "discovery.projectURLTemplate: the URL template /p/{who} names {who}",
        ),
        (
            'discovery: {quotaKubeconfigPath: "{kubeconfig}", projectURLTemplate: /all}',
            ["--server-config"],
            1,
            "discovery.projectURLTemplate: /all has no {project}: all would be one plane",
        ),
        (
            "webhookServer: {port: 0, tls: {certDir: /nowhere}}\ndiscovery: {mode: kubeconfigs, kubeconfigDir: /tmp}",
            ["--server-config"],
            1,
            "certificate file /nowhere/tls.crt cannot be read: No such file or directory",
        ),
        (
            'metricsServer: {bindAddress: "203.0.113.1:1", secureServing: false}',
            ["--server-config"],
            1,
            "metrics cannot",
        ),
    ],
)
def test_an_impossible_configuration_is_one_sentence_and_an_exit_code(
    config: str,
    flags: list[str],
    code: int,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "config.yaml"
    kubeconfig = tmp_path / "kubeconfig"
    write_kubeconfig(kubeconfig, {"any": Endpoint("https://127.0.0.1:1")}, "any")
    file.write_text(HEAD + config.replace("{kubeconfig}", str(kubeconfig)))
    given = [f"--server-config={file}" if flag == "--server-config" else flag for flag in flags]
    monkeypatch.setattr(Assembly, "run", _nothing)  # a start that is not refused
    with _logs_untouched():
        assert process.start([*given, "--health-probe-bind-address=0", "--log-level=error"], {}) == code
    errors = capsys.readouterr().err
    if code:
        assert errors.startswith(f"compute-manager: {sentence.replace('{file}', str(file))}")
        assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("words", [[], ["check"]], ids=["start", "check"])
def test_spans_without_the_extra_are_one_sentence_and_an_exit_code(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setattr(Assembly, "run", _nothing)
    file = tmp_path / "config.yaml"
    file.write_text(f"{HEAD}discovery: {{mode: milo}}")
    flags = [*words, f"--server-config={file}", "--health-probe-bind-address=0", "--log-level=error"]
    with _logs_untouched():
        assert process.start(flags, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) == 1
        assert process.start(flags, {}) == 0
    found = capsys.readouterr()
    sentence = "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed; install it with pip install"
    assert sentence in " ".join((found.out + found.err).split())


async def _nothing(self: Assembly) -> None:
    return None


@contextmanager
def _logs_untouched() -> Iterator[None]:
    before = structlog.get_config()
    try:
        yield
    finally:
        structlog.configure(**before)
