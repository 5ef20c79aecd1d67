"""What flags and config file together mean, and every half configuration that is refused."""

from typing import Any

import pytest

from datum_compute.api.permissions import CELL_LEASE, MANAGEMENT_LEASE
from datum_compute.operator.config import (
    API_VERSION,
    KIND,
    Discovery,
    Grants,
    LogsServer,
    Loki,
    MetricsServer,
    Pods,
    SecretRef,
    SelfSigned,
    WebhookServer,
    WebhookTls,
    WorkloadOperator,
)
from datum_compute.operator.flags import Flags
from datum_compute.operator.settings import Address, Refused, Settings, address, settled

MANAGEMENT = {"enable_management_controllers": True, "federation_kubeconfig": "/hub"}
CELL = {"enable_cell_controllers": True, "federation_kubeconfig": "/hub"}


def _settled(flags: dict[str, Any], webhook: bool = False, metrics: str = "0", **discovery: Any) -> Settings:
    config = WorkloadOperator(
        API_VERSION,
        KIND,
        metrics_server=MetricsServer(bind_address=metrics),
        webhook_server=WebhookServer() if webhook else None,
        discovery=Discovery(**discovery),
    )
    return settled(Flags(**flags), config)


@pytest.mark.parametrize(
    ("flags", "discovery", "sentence"),
    [
        ({"enable_management_controllers": True}, {}, "the management controllers need the hub: .*--federation-kubeco"),
        ({"enable_cell_controllers": True}, {}, "the cell controllers need the hub: .*or say --stand-alone-cell"),
        ({**CELL, "stand_alone_cell": True}, {}, "--stand-alone-cell is for a cell without a hub"),
        (
            {"enable_management_controllers": True, "stand_alone_cell": True},
            {},
            "the management controllers need the hub",
        ),
        ({"federation_context": "hub"}, {}, "--federation-context names a context, but no --federation-kubeconfig"),
        ({**CELL, "feature_gates": "Teleport=true"}, {}, 'feature gate "Teleport" is not known; there is Networking'),
        ({**CELL, "feature_gates": "NetworkingIntegration"}, {}, "needs a value: NetworkingIntegration=true or"),
        ({**CELL, "feature_gates": "NetworkingIntegration=yes"}, {}, "needs a value: NetworkingIntegration=true or"),
        ({**CELL, "provider": "vms"}, {}, '--provider: "vms" is not known; choose one of none, simulated, pods'),
        ({**MANAGEMENT, "builtins": "quota,dns"}, {}, '--builtins: "dns" is not known; choose of quota, network, '),
        (
            {**MANAGEMENT, "provider": "simulated"},
            {},
            "--provider=simulated runs Instances of a cell: add --enable-cel",
        ),
        ({**CELL, "builtins": "quota"}, {}, "--builtins=quota works in projects: add --enable-management-controllers"),
        (
            {**MANAGEMENT, "builtins": "network"},
            {},
            "--builtins=network works in a cell: add --enable-cell-controllers",
        ),
        ({**CELL, "builtins": "network"}, {}, "--builtins=network does nothing without --feature-gates=Networking"),
        (CELL, {"mode": "milo"}, "discovery.clusterName is needed for a cell in mode milo"),
        (MANAGEMENT, {"mode": "kubeconfigs"}, "discovery.mode kubeconfigs needs discovery.kubeconfigDir"),
        (MANAGEMENT, {"mode": "milo", "kubeconfig_dir": "/d"}, "kubeconfigDir is only for mode kubeconfigs"),
        (
            {**CELL, "health_probe_bind_address": "8081"},
            {},
            '--health-probe-bind-address is "8081"; it must be host:po',
        ),
        (
            {**CELL, "shutdown_delay_seconds": "5s"},
            {},
            '--shutdown-delay-seconds is "5s"; it must be a number of seconds from 0 to 3600',
        ),
        ({**CELL, "shutdown_delay_seconds": "-1"}, {}, '--shutdown-delay-seconds is "-1"; it must be a number of sec'),
        (
            {"webhook_client_ca": "/ca.crt"},
            {},
            "--webhook-client-ca says who may ask for admission, and none is served: add webhookServer",
        ),
        ({**CELL, "webhook": True}, {}, "webhookServer admits the Workloads of projects, and a cell alone has none"),
        ({**CELL, "metrics": "nowhere"}, {}, 'metricsServer.bindAddress is "nowhere"; it must be host:port'),
    ],
)
def test_an_incomplete_configuration_is_refused(
    flags: dict[str, Any], discovery: dict[str, Any], sentence: str
) -> None:
    given = dict(flags)
    webhook, metrics = given.pop("webhook", False), given.pop("metrics", "0")
    with pytest.raises(Refused, match=sentence):
        _settled(given, webhook, metrics, **discovery)


@pytest.mark.parametrize(
    ("webhook", "sentence"),
    [
        (
            WebhookServer(tls=WebhookTls(self_signed=SelfSigned(), cert_dir="/certs")),
            r"webhookServer\.tls\.selfSigned and certDir both say where the certificate comes from: drop one",
        ),
        (
            WebhookServer(tls=WebhookTls(self_signed=SelfSigned(), secret_ref=SecretRef("a", "b"))),
            r"webhookServer\.tls\.selfSigned and secretRef both say",
        ),
        (
            WebhookServer(tls=WebhookTls(self_signed=SelfSigned()), client_ca_name="ca.crt"),
            "clientCAName .* selfSigned has neither: name the authority of clients with --webhook-client-ca",
        ),
        (
            WebhookServer(tls=WebhookTls(self_signed=SelfSigned(hosts=("compute.example", "https://me:443")))),
            r'selfSigned\.hosts has "https://me:443"; each must be the name or address of a host, without scheme',
        ),
    ],
)
def test_a_certificate_has_one_origin(webhook: WebhookServer, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence):
        settled(Flags(), WorkloadOperator(API_VERSION, KIND, webhook_server=webhook))


def test_a_certificate_of_its_own_needs_the_cluster() -> None:
    hosts = ("127.0.0.1", "2001:db8::1", "compute.example", "*.compute.example")
    webhook = WebhookServer(tls=WebhookTls(self_signed=SelfSigned(hosts=hosts)))
    elsewhere = Discovery(mode="milo")
    for given, needed in ((webhook, True), (WebhookServer(), False)):
        config = WorkloadOperator(API_VERSION, KIND, webhook_server=given, discovery=elsewhere)
        assert settled(Flags(), config).needs_host is needed


@pytest.mark.parametrize(
    ("discovery", "quota"),
    [
        ({}, False),
        ({"quota_kubeconfig_path": "/quota"}, True),
        ({"project_kubeconfig_path": "/project"}, True),
        ({"mode": "kubeconfigs", "kubeconfig_dir": "/d", "cluster_name": "dfw"}, True),
    ],
)
def test_quota_is_enforced_when_there_is_a_credential(discovery: dict[str, Any], quota: bool) -> None:
    assert _settled(CELL, **discovery).quota is quota


def test_a_cell_in_single_mode_is_called_single_unless_it_is_named() -> None:
    assert _settled(CELL).cluster_name == "single"
    assert _settled(CELL, cluster_name="dfw-1").cluster_name == "dfw-1"


def test_networking_is_off_unless_its_gate_is_opened() -> None:
    assert not _settled(CELL).networking
    assert _settled({**CELL, "feature_gates": "NetworkingIntegration=true"}).networking


def test_management_and_cells_have_leases_of_their_own() -> None:
    assert MANAGEMENT_LEASE == "e98b06c6.datumapis.com"
    assert _settled(MANAGEMENT).lease == MANAGEMENT_LEASE
    assert _settled(CELL).lease == CELL_LEASE
    assert _settled({**MANAGEMENT, **CELL}).lease == MANAGEMENT_LEASE


def test_with_both_groups_off_it_serves_probes_and_webhooks_only() -> None:
    settings = _settled({}, webhook=True)
    assert (settings.management, settings.cell, settings.projects) == (False, False, True)
    assert not _settled({}).projects


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", None),
        (":8081", Address("", 8081)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:8081", Address("::1", 8081)),
    ],
)
def test_addresses_are_written_as_in_go(text: str, expected: Address | None) -> None:
    assert address("here", text) == expected


@pytest.mark.parametrize("text", ["", "8081", "host:", "host:http", ":70000", "[::1:80"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"here is .* it must be host:port"):
        address("here", text)


def test_settings_of_pods_are_refused_where_there_are_none() -> None:
    flags: dict[str, Any] = dict(CELL)
    config = WorkloadOperator(API_VERSION, KIND, pods=Pods())
    assert settled(Flags(**flags, provider="pods"), config).config.pods == Pods()
    with pytest.raises(Refused, match="pods is only for --provider=pods, and the provider is simulated"):
        settled(Flags(**flags, provider="simulated"), config)


@pytest.mark.parametrize(("flag", "seconds"), [("", 7.5), ("0", 0), ("2.5", 2.5)])
def test_the_flag_for_the_delay_wins_over_the_config_file(flag: str, seconds: float) -> None:
    config = WorkloadOperator(API_VERSION, KIND, shutdown_delay_seconds=7.5)
    assert settled(Flags(shutdown_delay_seconds=flag), config).shutdown_delay == seconds


def test_default_grants_are_refused_where_nobody_grants_them() -> None:
    flags: dict[str, Any] = dict(MANAGEMENT)
    config = WorkloadOperator(API_VERSION, KIND, default_grants=Grants(instances=3))
    settled(Flags(**flags, builtins="entitlement"), config)
    with pytest.raises(Refused, match="defaultGrants is what --builtins=entitlement grants"):
        settled(Flags(**flags, builtins="quota"), config)


LOKI = Loki("https://loki.example:3100", "project")


@pytest.mark.parametrize(
    ("flags", "logs", "sentence"),
    [
        (CELL, LogsServer(), "logsServer serves the users of projects, and a cell alone has none"),
        ({}, LogsServer(), "logsServer finds the instances of a project on the hub: .*--federation-kubeconfig"),
        (MANAGEMENT, LogsServer(port=70000), "logsServer.port is 70000"),
        (MANAGEMENT, LogsServer(source="loki"), "logsServer.loki says where Loki is: it is needed for source loki"),
        (MANAGEMENT, LogsServer(loki=LOKI), "logsServer.loki says where Loki is: .* and for no other"),
        (MANAGEMENT, LogsServer(source="loki", loki=Loki("loki:3100", "a")), "loki.url must be an address such as"),
        (MANAGEMENT, LogsServer(source="loki", loki=Loki("https://u:p@loki", "a")), "must not contain a password"),
        (MANAGEMENT, LogsServer(source="loki", loki=Loki("https://loki", 'a="b"')), "which is no name of a label"),
        (
            MANAGEMENT,
            LogsServer(source="loki", loki=LOKI, cell_kubeconfig_dir="/cells"),
            "cellKubeconfigDir is for source cells and for exec",
        ),
    ],
)
def test_a_server_of_logs_that_could_not_work_is_refused(
    flags: dict[str, Any], logs: LogsServer, sentence: str
) -> None:
    config = WorkloadOperator(API_VERSION, KIND, logs_server=logs, discovery=Discovery(cluster_name="dfw"))
    with pytest.raises(Refused, match=sentence):
        settled(Flags(**flags), config)


def test_logs_can_be_served_without_controllers() -> None:
    config = WorkloadOperator(API_VERSION, KIND, logs_server=LogsServer())
    settings = settled(Flags(federation_kubeconfig="/hub"), config)
    assert settings.projects
    assert settings.needs_host
