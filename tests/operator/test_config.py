"""The config file: what is taken, what is filled in, and what is refused with file, line and field."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.operator.config import (
    PROJECT_URL,
    ConfigError,
    Discovery,
    SelfSigned,
    WorkloadOperator,
    decoded,
    read,
)

HEAD = "apiVersion: apiserver.config.datumapis.com/v1alpha1\nkind: WorkloadOperator\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def _read(file: Path, text: str) -> WorkloadOperator:
    file.write_text(text)
    return read(file)


def test_omitted_fields_have_their_defaults(file: Path) -> None:
    config = _read(file, HEAD)
    assert config.discovery == Discovery(mode="single", project_url_template=PROJECT_URL)
    assert config.webhook_server is None
    metrics = config.metrics_server
    assert (metrics.secure_serving, metrics.bind_address) == (True, "0")
    assert (metrics.tls.cert_name, metrics.tls.key_name) == ("tls.crt", "tls.key")


def test_an_empty_webhook_server_is_one_with_defaults(file: Path) -> None:
    webhook = _read(file, HEAD + "webhookServer: {}\n").webhook_server
    assert webhook is not None
    assert (webhook.host, webhook.port, webhook.client_ca_name) == ("", 9443, "")


def test_a_certificate_of_its_own_has_the_names_of_the_shipped_manifests(file: Path) -> None:
    webhook = _read(file, HEAD + "webhookServer: {tls: {selfSigned: {overlapSeconds: 60}}}\n").webhook_server
    assert webhook is not None
    names = SelfSigned(
        secret_name="compute-webhook-cert",
        service_name="webhook-service",
        mutating_webhooks=("compute-mutating-webhook-configuration",),
        validating_webhooks=("compute-validating-webhook-configuration",),
        overlap_seconds=60,
    )
    assert webhook.tls.self_signed == names
    with pytest.raises(
        ConfigError, match=r"line 3: webhookServer.tls.selfSigned.overlapSeconds: expected `float` >= 1"
    ):
        _read(file, HEAD + "webhookServer: {tls: {selfSigned: {overlapSeconds: 0}}}\n")
    with pytest.raises(ConfigError, match=r"line 3: metricsServer.tls.selfSigned is not known"):
        _read(file, HEAD + "metricsServer: {tls: {selfSigned: {}}}\n")


def test_every_documented_field_is_read(file: Path) -> None:
    config = _read(
        file,
        HEAD
        + """
metricsServer:
  secureServing: false
  bindAddress: ":8443"
  tls: {secretRef: {name: a, namespace: b}, certDir: /certs, certName: c, keyName: k}
webhookServer: {host: 127.0.0.1, port: 9444, clientCAName: ca.crt, tls: {certDir: /certs}}
logsServer:
  host: 127.0.0.1
  port: 9445
  tls: {secretRef: {name: a, namespace: b}}
  source: loki
  cellKubeconfigDir: /cells
  loki: {url: "https://loki.example", tokenFile: /token, projectLabel: project}
  exec: true
discovery:
  mode: milo
  internalServiceDiscovery: true
  discoveryKubeconfigPath: /discovery
  projectKubeconfigPath: /project
  quotaKubeconfigPath: /quota
  clusterName: dfw-1
  projectURLTemplate: /projects/{project}/control-plane
  kubeconfigDir: /kubeconfigs
defaultGrants: {instances: 3, millicores: 6000, mebibytes: 12288}
pods:
  runtimeClassName: gvisor
  nodeSelector: {pool: tenants}
  tolerations: [{key: edge, operator: Exists, effect: NoSchedule}]
  networkPolicy:
    ingress: []
    egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}], ports: [{port: 443}]}]
""",
    )
    assert config.metrics_server.tls.secret_ref is not None
    assert config.discovery.project_url_template == "/projects/{project}/control-plane"
    assert config.discovery.quota_kubeconfig_path == "/quota"
    assert config.webhook_server is not None
    assert config.webhook_server.client_ca_name == "ca.crt"
    assert config.logs_server is not None
    assert config.logs_server.loki is not None
    assert config.logs_server.exec
    assert config.default_grants is not None
    assert config.default_grants.limits == {
        "compute.datumapis.com/instances": 3,
        "compute.datumapis.com/vcpus": 6000,
        "compute.datumapis.com/memory": 12288,
    }
    assert config.pods is not None
    assert config.pods.network_policy.ingress == ()
    assert config.pods.network_policy.egress is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a mapping; it starts with apiVersion: apiserver.config.datumapis.com/v1alpha1"),
        ("- a\n", "is not a mapping; it starts with apiVersion: apiserver.config.datumapis.com/v1alpha1"),
        ("a: [\n", ", line 2: it is not YAML"),
        (
            HEAD + "logsServer: {source: files}\n",
            ', line 3: logsServer.source is "files"; it must be one of cells, loki',
        ),
        (HEAD + "logsServer: {sources: cells}\n", ", line 3: logsServer.sources is not known"),
        (HEAD + "logsServer: {source: loki, loki: {url: a}}\n", ", line 3: logsServer.loki.projectLabel is missing"),
        (HEAD + "---\na: b\n", ", line 3: it is not YAML"),
        ("kind: WorkloadOperator\n", ", line 1: apiVersion is missing"),
        (HEAD.replace("v1alpha1", "v2"), ', line 1: apiVersion is "apiserver.config.datumapis.com/v2"; it must be '),
        (HEAD.replace("WorkloadOperator", "Other"), ', line 2: kind is "Other"; it must be WorkloadOperator'),
        (HEAD + "discovry: {}\n", ", line 3: discovry is not known"),
        (HEAD + "discovery:\n  mode: milo\n  moode: single\n", ", line 5: discovery.moode is not known"),
        (HEAD + "discovery:\n  mode: milo\n  mode: single\n", ", line 5: discovery.mode is there twice"),
        (HEAD + "kind: WorkloadOperator\n", ", line 3: kind is there twice"),
        (
            HEAD + "metricsServer:\n  tls:\n    certDir: a\n    certDir: b\n",
            ", line 6: metricsServer.tls.certDir is there twice",
        ),
        (HEAD + "discovery:\n  mode: kind\n", ', line 4: discovery.mode is "kind"; it must be one of single, milo, '),
        (HEAD + "metricsServer:\n  bindAddress: 0\n", ", line 4: metricsServer.bindAddress: expected `str`, got `int`"),
        (HEAD + "discovery: milo\n", ", line 3: discovery: expected `object`, got `str`"),
        (
            HEAD + "webhookServer:\n  tls:\n    secretRef: {name: a}\n",
            ", line 5: webhookServer.tls.secretRef.namespace is missing",
        ),
        (HEAD + "defaultGrants: {instances: -1}\n", ", line 3: defaultGrants.instances: expected `int` >= 0"),
        (
            HEAD + "pods:\n  networkPolicy:\n    egress: [{to: [{ipBlock: {cidr: 10.0.0.1/8}}]}]\n",
            ', line 4: pods.networkPolicy has "10.0.0.1/8", which is not a range of addresses',
        ),
        (
            HEAD + "pods:\n  networkPolicy:\n    ingress: [{from: [{podSelector: {}}]}]\n",
            ", line 5: pods.networkPolicy.ingress[0].from[0].podSelector is not known",
        ),
        ("\x00", ": it is not YAML"),
        ("&a [*a]\n", " is endless: what *a stands for contains itself"),
        (HEAD + "discovery: &a {mode: milo, other: *a}\n", " is endless: what *a stands for contains itself"),
        (HEAD + "1: 2\n", ", line 3: 1 is not known"),
        (HEAD + "discovery: {2: 3}\n", ", line 3: discovery.2 is not known"),
    ],
)
def test_an_error_names_its_field(file: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _read(file, text)
    assert str(refused.value).startswith(f"config file {file}")
    assert str(refused.value).removeprefix(f"config file {file}").strip().startswith(sentence.strip())


@given(st.binary() | st.text(alphabet="ab:-[]{}&*?!|>'\"#%@,\t\n 0").map(str.encode))
def test_any_file_is_a_config_or_an_error_of_one_sentence(text: bytes) -> None:
    for content in (text, HEAD.encode() + text):
        with suppress(ConfigError):
            decoded(Path("config.yaml"), content)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"config file .* cannot be read: No such file or directory"):
        read(file)
