"""Kubeconfig files: what they say, what is wrong with them, and one that is written."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from datum_compute.kube.kubeconfig import Endpoint, Kubeconfig, KubeconfigError, load, write_kubeconfig
from datum_compute.kube.meta import Json

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DATA = base64.b64encode(PEM.encode()).decode()


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
    return load([written(tmp_path / "config", content)], context)


# Reading


def test_the_current_context_is_taken_unless_one_is_named(tmp_path: Path) -> None:
    assert endpoint(tmp_path, config()).server == "https://one.test:6443/path"
    assert endpoint(tmp_path, config(), "two") == Endpoint("http://two.test")


@pytest.mark.parametrize(
    ("cluster", "user", "expected"),
    [
        ({}, {"token": "t"}, {"token": "t"}),
        ({}, {"token": "t", "tokenFile": "/nowhere"}, {"token": "t"}),
        ({"certificate-authority-data": DATA}, {}, {"ca_pem": PEM}),
        ({}, {"client-certificate-data": DATA, "client-key-data": DATA}, {"client_cert": PEM, "client_key": PEM}),
        ({"tls-server-name": "other.test"}, {}, {"server_name": "other.test"}),
        ({"insecure-skip-tls-verify": True}, {}, {"insecure": True}),
    ],
)
def test_what_a_context_says(tmp_path: Path, cluster: Json, user: Json, expected: Json) -> None:
    found = endpoint(tmp_path, config(cluster, user))
    assert found == Endpoint("https://one.test:6443/path", **expected)


def test_the_namespace_of_a_context(tmp_path: Path) -> None:
    assert endpoint(tmp_path, config(namespace="prod")).namespace == "prod"


def test_files_are_meant_from_the_folder_of_the_file_that_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    for name in ("ca.crt", "client.crt", "client.key"):
        (folder / name).write_text(f"{name} {PEM}")
    (folder / "token").write_text("secret\n")
    user = {"client-certificate": "client.crt", "client-key": str(folder / "client.key"), "tokenFile": "token"}
    found = load([written(folder / "config", config({"certificate-authority": "ca.crt"}, user))])
    assert (found.ca_pem, found.client_cert, found.client_key) == (
        f"ca.crt {PEM}",
        f"client.crt {PEM}",
        f"client.key {PEM}",
    )
    assert found.bearer() == "secret"
    (folder / "token").write_text("rotated")
    assert found.bearer() == "rotated"


def test_of_several_files_the_first_that_names_a_thing_wins(tmp_path: Path) -> None:
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
        (config({"server": "ftp://x"}), "", 'cluster "c" in .* has no http:// or https:// server'),
        (config({"server": ""}), "", 'cluster "c" in .* has no http:// or https:// server'),
        (config(user={"exec": {"command": "x"}}), "", 'user "u" in .* logs in with "exec", which is not supported'),
        (config({"certificate-authority-data": "%%"}), "", "certificate-authority-data .* is not base64"),
        (config({"certificate-authority": "nope.crt"}), "", "certificate-authority .*nope.crt cannot be read: No such"),
        (config(user={"token": 3}), "", "token in the kubeconfig is not text"),
        ("- a", "", "is not a mapping"),
        ("contexts: 3", "", "contexts of kubeconfig .* are not a list"),
        ("contexts: [3]", "", "contexts of kubeconfig .* are not a list"),
        ("users:\n- user: {token: 'secret", "", r"is not YAML \(line 2\)"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, content: Any, context: str, sentence: str) -> None:
    with pytest.raises(KubeconfigError, match=sentence) as error:
        endpoint(tmp_path, content, context)
    assert "secret" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="nope cannot be read: No such file"):
        load([tmp_path / "nope"])


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = endpoint(tmp_path, config(user={"tokenFile": "nope"}))
    with pytest.raises(KubeconfigError, match=r"token file .*nope cannot be read"):
        found.bearer()


def test_nothing_secret_is_in_the_representation() -> None:
    shown = repr(Endpoint("https://one.test", token="secret-token", client_key="secret-key", ca_pem=PEM))
    assert "https://one.test" in shown
    assert "secret" not in shown


def test_certificates_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"certificate authority of https://one\.test is not a PEM"):
        Endpoint("https://one.test", ca_pem="nonsense").tls()
    with pytest.raises(KubeconfigError, match="client certificate and key"):
        Endpoint("https://one.test", client_cert=PEM, client_key="secret").tls()
    assert Endpoint("http://one.test", ca_pem="nonsense").tls() is None


# Writing

CONTEXTS = {
    "project-demo": Endpoint("https://127.0.0.1:1/projects/demo", ca_pem=PEM, token="t", namespace="default"),
    "root": Endpoint("https://127.0.0.1:1", ca_pem=PEM, client_cert=PEM, client_key=PEM),
    "odd": Endpoint("https://h", server_name="x", insecure=True, token_file="/a/token"),
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig.yaml"
    write_kubeconfig(path, CONTEXTS, "root")
    assert {name: load([path], name) for name in CONTEXTS} == CONTEXTS
    assert load([path]) == CONTEXTS["root"]


def test_only_its_owner_may_read_it_and_it_is_replaced_whole(tmp_path: Path) -> None:
    path = written(tmp_path / "kubeconfig.yaml", "old")
    path.chmod(0o644)
    write_kubeconfig(path, CONTEXTS, "root")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["kubeconfig.yaml"]


def test_the_current_context_must_be_one_of_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nope"):
        write_kubeconfig(tmp_path / "x", CONTEXTS, "nope")
    assert list(tmp_path.iterdir()) == []


def test_reading_one_imports_no_http_library() -> None:
    script = "import sys, datum_compute.kube.kubeconfig; sys.exit('aiohttp' in sys.modules or 'ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
