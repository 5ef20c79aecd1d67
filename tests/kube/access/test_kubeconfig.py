"""Reading, validating and writing kubeconfig files."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from datum_compute.kube.access.incluster import in_cluster
from datum_compute.kube.access.kubeconfig import (
    Endpoint,
    Kubeconfig,
    KubeconfigError,
    Plugin,
    Source,
    load,
    write_kubeconfig,
)
from datum_compute.kube.meta import Json

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM.encode()).decode()


GROUP = "client.authentication.k8s.io"
EXEC = {
    "command": "login",
    "apiVersion": f"{GROUP}/v1",
    "args": ["a", "b"],
    "env": [{"name": "X", "value": "y"}],
    "interactiveMode": "Never",
    "installHint": "get it",
    "provideClusterInfo": True,
}


def config(cluster: Json | None = None, user: Json | None = None, **context: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "u", **context}},
            {"name": "two", "context": {"cluster": "c2"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://one.test:6443/path/", **(cluster or {})}},
            {"name": "c2", "cluster": {"server": "http://two.test"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def endpoint(tmp_path: Path, content: Any, context: str = "") -> Endpoint:
    return replace(load([written(tmp_path / "config", content)], context), source=None)


# Reading


def test_the_current_context_is_taken_unless_one_is_named(tmp_path: Path) -> None:
    assert endpoint(tmp_path, config()).server == "https://one.test:6443/path"
    assert endpoint(tmp_path, config(), "two") == Endpoint("http://two.test")


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        ({}, {"token": "t"}, {"token": "t"}),
        ({}, {"token": "t", "tokenFile": "/nowhere"}, {"token": "t", "token_file": "/nowhere"}),
        ({"certificate-authority-data": DATA}, {}, {"ca_pem": PEM}),
        ({}, {"client-certificate-data": DATA, "client-key-data": DATA}, {"client_cert": PEM, "client_key": PEM}),
        ({"tls-server-name": "other.test"}, {}, {"server_name": "other.test"}),
        ({"insecure-skip-tls-verify": True}, {}, {"insecure": True}),
        ({"proxy-url": "http://proxy.test:3128"}, {}, {"proxy": "http://proxy.test:3128"}),
        ({}, {"username": "me", "password": "p"}, {"username": "me", "password": "p"}),
        (
            {"extensions": [{"name": f"{GROUP}/exec", "extension": {"audience": "a"}}]},
            {"exec": EXEC},
            {
                "plugin": Plugin(
                    "login",
                    f"{GROUP}/v1",
                    args=("a", "b"),
                    environ=(("X", "y"),),
                    interactive_mode="Never",
                    install_hint="get it",
                    provide_cluster_info=True,
                    config={"audience": "a"},
                )
            },
        ),
        (
            {},
            {"exec": {"command": "/bin/login", "apiVersion": f"{GROUP}/v1beta1"}},
            {"plugin": Plugin("/bin/login", f"{GROUP}/v1beta1")},
        ),
    ],
)
def test_a_context_names_server_credentials_and_authority(
    tmp_path: Path, cluster: Json, user: Json, expected: Json
) -> None:
    loaded = endpoint(tmp_path, config(cluster, user))
    assert loaded == Endpoint("https://one.test:6443/path", **expected)


def test_the_namespace_of_a_context(tmp_path: Path) -> None:
    assert endpoint(tmp_path, config(namespace="prod")).namespace == "prod"


def test_relative_paths_start_at_the_folder_of_the_kubeconfig(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    for name in ("ca.crt", "client.crt", "client.key", "token"):
        (folder / name).write_text(f"{name} {PEM}")
    user = {"client-certificate": "client.crt", "client-key": str(folder / "client.key"), "tokenFile": "token"}
    loaded = load([written(folder / "config", config({"certificate-authority": "ca.crt"}, user))])
    assert replace(loaded, source=None) == Endpoint(
        "https://one.test:6443/path",
        ca_pem=f"ca.crt {PEM}",
        token_file=str(folder / "token"),
        client_cert_file=str(folder / "client.crt"),
        client_key_file=str(folder / "client.key"),
    )


def test_a_relative_path_of_a_plugin_starts_at_the_folder_of_the_kubeconfig(tmp_path: Path) -> None:
    plugin = endpoint(tmp_path, config(user={"exec": EXEC | {"command": "./bin/login"}})).plugin
    assert plugin is not None
    assert Path(plugin.command) == tmp_path / "bin" / "login"


def test_the_first_of_several_files_wins(tmp_path: Path) -> None:
    first = written(tmp_path / "first", {"current-context": "two", "users": [{"name": "u", "user": {"token": "a"}}]})
    second = written(tmp_path / "second", config(user={"token": "b"}))
    assert load([first, second]).server == "http://two.test"
    assert load([first, second], "one").token == "a"
    assert load([second, first]).token == "b"
    assert sorted(Kubeconfig.read([first, second]).contexts) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "context", "sentence"),
    [
        ("", "", "has no current context; name one of no context at all"),
        (config() | {"current-context": ""}, "", "has no current context; name one of one, two"),
        (config(), "three", 'has no context "three"; it has one, two'),
        (config() | {"clusters": []}, "", 'context "one" names cluster "c", which no file has'),
        (config() | {"users": []}, "", 'context "one" names user "u", which no file has'),
        (
            config() | {"contexts": [{"name": "one", "context": {"cluster": ["c"]}}]},
            "",
            "names cluster .* which no file has",
        ),
        (
            config() | {"contexts": [{"name": "one", "context": {"cluster": "c", "user": {"u": 1}}}]},
            "",
            "names user .* which no file has",
        ),
        (config({"server": "ftp://x"}), "", 'cluster "c" in .* has no http:// or https:// server'),
        (config({"server": ""}), "", 'cluster "c" in .* has no http:// or https:// server'),
        (config(user={"auth-provider": {"name": "x"}}), "", '"auth-provider" of user "u" in .* is not supported'),
        (config(user={"as": "admin"}), "", '"as" of user "u" in .* is not supported'),
        (config(user={"exec": 3}), "", 'exec of user "u" in .* is not a mapping'),
        (config(user={"exec": EXEC | {"command": ""}}), "", 'command of exec of user "u" in .* is missing'),
        (config(user={"exec": EXEC | {"apiVersion": "v9"}}), "", 'apiVersion of exec of user "u" in .* is "v9"; use'),
        (config(user={"exec": EXEC | {"interactiveMode": ""}}), "", 'interactiveMode of exec .* is ""; use one of If'),
        (config(user={"exec": EXEC | {"args": "secret"}}), "", "args of exec .* is not a list of texts"),
        (config(user={"exec": EXEC | {"env": [{"secret": 1}]}}), "", "env of exec .* is not a list of name and value"),
        (config({"extensions": 3}, {"exec": EXEC}), "", 'extensions of cluster "c" in .* are not a list'),
        (
            config({"proxy-url": "socks5://x"}),
            "",
            'proxy-url of cluster "c" in .* is not an http:// or https:// address',
        ),
        (config({"insecure-skip-tls-verify": "yes"}), "", "insecure-skip-tls-verify of .* is neither true nor false"),
        (config({"certificate-authority-data": "%%"}), "", 'authority-data of cluster "c" in .*config is not base64'),
        (config({"certificate-authority": "nope.crt"}), "", "certificate-authority .*nope.crt cannot be read: No such"),
        (config({"certificate-authority": "a\0b"}), "", "certificate-authority .* cannot be read: .*null"),
        (config({"certificate-authority": "/dev/zero"}), "", "certificate-authority /dev/zero is not a file"),
        (config(user={"client-certificate": "nope"}), "", "client-certificate .*nope cannot be read: No such"),
        (config(user={"client-key": "nope"}), "", "client-key .*nope cannot be read: No such"),
        (config(user={"token": 3}), "", 'token of user "u" in kubeconfig .*config is not text'),
        ("- a", "", "is not a mapping"),
        ("contexts: 3", "", "contexts of kubeconfig .* are not a list"),
        ("contexts: [3]", "", "contexts of kubeconfig .* are not a list"),
        ("users:\n- user: {token: 'secret", "", r"is not YAML \(line 2\)"),
    ],
)
def test_a_malformed_kubeconfig_is_reported_in_one_sentence(
    tmp_path: Path, content: Any, context: str, sentence: str
) -> None:
    with pytest.raises(KubeconfigError, match=sentence) as error:
        endpoint(tmp_path, content, context)
    assert "secret" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="nope cannot be read: No such file"):
        load([tmp_path / "nope"])


def test_nothing_secret_is_in_the_representation() -> None:
    text = repr(Endpoint("https://one.test", token="secret-token", client_key="secret-key", ca_pem=PEM))
    assert "https://one.test" in text
    assert "secret" not in text


def test_invalid_certificates_are_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"certificate authority of https://one\.test is not a PEM"):
        Endpoint("https://one.test", ca_pem="nonsense").tls()
    with pytest.raises(KubeconfigError, match="client certificate and key"):
        Endpoint("https://one.test", client_cert=PEM, client_key="secret").tls()
    assert Endpoint("http://one.test", ca_pem="nonsense").tls() is None


# Other places of the same host

BASE = Endpoint("https://api.test:6443/some/path", token="t", ca_pem=PEM, server_name="x")
PROJECTS = "/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane"


@pytest.mark.parametrize(
    ("template", "server"),
    [
        ("", "https://api.test:6443/some/path"),
        (PROJECTS, "https://api.test:6443" + PROJECTS.replace("{project}", "demo")),
        ("/projects/{project}/control-plane/", "https://api.test:6443/projects/demo/control-plane"),
        ("/", "https://api.test:6443"),
        ("https://api.project-{project}.svc:6443", "https://api.project-demo.svc:6443"),
    ],
)
def test_a_template_replaces_the_path_or_all_of_the_address(template: str, server: str) -> None:
    loaded = BASE.at(template, project="demo")
    assert loaded == Endpoint(server, token="t", ca_pem=PEM, server_name="x")


def test_an_ipv6_address_keeps_its_brackets() -> None:
    assert Endpoint("https://[::1]:6443/x").at("/p/{project}", project="a").server == "https://[::1]:6443/p/a"


@pytest.mark.parametrize("name", ["", "..", "a/b", "a..b", "../admin", "a?b", "a#b", "a%2fb", "a b", "a@b", "-a", "ü"])
def test_a_name_cannot_lead_elsewhere(name: str) -> None:
    with pytest.raises(KubeconfigError, match=r"cannot stand for \{project\} in the URL template"):
        BASE.at(PROJECTS, project=name)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("/projects/{name}", r"names \{name\}; it may name \{project\}"),
        ("/projects/{project", r"names \{project; it may name"),
        ("projects/{project}", "begins neither with a slash nor with https://"),
    ],
)
def test_an_invalid_template_is_refused(template: str, sentence: str) -> None:
    with pytest.raises(KubeconfigError, match=sentence):
        BASE.at(template, project="demo")


# In a cluster

SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_finds_the_api_of_its_cluster(tmp_path: Path) -> None:
    for name, text in {"token": "t", "ca.crt": PEM, "namespace": "prod\n"}.items():
        (tmp_path / name).write_text(text)
    expected = Endpoint("https://10.0.0.1:443", ca_pem=PEM, token_file=str(tmp_path / "token"), namespace="prod")
    assert in_cluster(SERVICE, tmp_path) == expected
    assert in_cluster(SERVICE | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server == "https://[fd00::1]:443"


def test_a_process_outside_of_a_cluster_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"does not run in a cluster: .* name a kubeconfig"):
        in_cluster({}, tmp_path)
    with pytest.raises(KubeconfigError, match=r"the service account token .*/token cannot be read: No such"):
        in_cluster(SERVICE, tmp_path)


# Writing

CONTEXTS = {
    "project-demo": Endpoint("https://127.0.0.1:1/projects/demo", ca_pem=PEM, token="t", namespace="default"),
    "root": Endpoint("https://127.0.0.1:1", ca_pem=PEM, client_cert=PEM, client_key=PEM),
    "odd": Endpoint("https://h", server_name="x", insecure=True, token_file="/a/token", proxy="http://proxy.test"),
    "login": Endpoint("https://h", username="me", password="p"),
    "plugin": Endpoint(
        "https://h",
        plugin=Plugin(
            "login",
            f"{GROUP}/v1beta1",
            ("a",),
            (("X", "y"),),
            install_hint="get it",
            provide_cluster_info=True,
            config={"audience": "a"},
        ),
    ),
}


def test_a_written_kubeconfig_is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig.yaml"
    write_kubeconfig(path, CONTEXTS, "root")
    assert {name: replace(load([path], name), source=None) for name in CONTEXTS} == CONTEXTS
    assert load([path]) == replace(CONTEXTS["root"], source=Source((path,), ""))


def test_a_kubeconfig_is_private_and_replaced_atomically(tmp_path: Path) -> None:
    path = written(tmp_path / "kubeconfig.yaml", "old")
    path.chmod(0o644)
    write_kubeconfig(path, CONTEXTS, "root")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["kubeconfig.yaml"]


def test_the_current_context_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nope"):
        write_kubeconfig(tmp_path / "x", CONTEXTS, "nope")
    assert list(tmp_path.iterdir()) == []


def test_reading_a_kubeconfig_imports_no_http_library() -> None:
    script = (
        "import sys, datum_compute.kube.access.kubeconfig; sys.exit('aiohttp' in sys.modules or 'ssl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
