"""Credentials that are rotated while a program runs."""

import base64
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from datum_compute.kube.access.credentials import Credential, EndpointCredentials, PluginCredential
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, Plugin, load, write_kubeconfig
from datum_compute.kube.access.plugin import run
from datum_compute.kube.files import write_private
from tests.kube.program import V1, Program

SERVER = "https://one.test"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"token": "t"}, "Bearer t"),
        ({"username": "me", "password": "päss"}, "Basic " + base64.b64encode("me:päss".encode()).decode()),
        ({"token": "t", "username": "me", "password": "p"}, "Bearer t"),
        ({"token": "t", "token_file": "/nowhere"}, "Bearer t"),
        ({"token": "t", "plugin": Plugin("/nowhere", V1)}, "Bearer t"),
    ],
)
def test_credentials_are_sent_in_the_authorization_header(fields: dict[str, Any], expected: str) -> None:
    assert EndpointCredentials(Endpoint(SERVER, **fields)).authorization() == expected


def test_a_token_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    credentials = EndpointCredentials(Endpoint(SERVER, token_file=str(file)))
    for token in ("one", "two", "three"):
        write_private(file, f"{token}\n".encode())
        assert credentials.authorization() == f"Bearer {token}"
        assert not credentials.renew()


def test_a_token_inside_a_kubeconfig_is_taken_up_when_the_file_changes(tmp_path: Path) -> None:
    file, seconds = tmp_path / "config", [0.0]
    write_kubeconfig(file, {"any": Endpoint(SERVER, token="one")}, "any")
    credentials = EndpointCredentials(load([file]), monotonic=lambda: seconds[0])
    assert credentials.authorization() == "Bearer one"
    file.write_text("half: [")
    assert credentials.authorization() == "Bearer one", "a file that is half written changes nothing"
    write_kubeconfig(file, {"any": Endpoint(SERVER, token="two")}, "any")
    seconds[0] += 1
    assert credentials.authorization() == "Bearer two"
    write_kubeconfig(file, {"any": Endpoint(SERVER, token="three")}, "any")
    assert credentials.renew(Credential("Bearer two"))
    assert credentials.authorization() == "Bearer three"


def test_a_changed_plugin_in_a_kubeconfig_is_run(tmp_path: Path) -> None:
    file = tmp_path / "config"
    for token in ("one", "two"):
        folder = tmp_path / token
        folder.mkdir()
        write_kubeconfig(file, {"any": Program(folder, token=token).endpoint(SERVER)}, "any")
        if token == "one":
            credentials = EndpointCredentials(load([file]))
        assert credentials.authorization() == f"Bearer {token}"


def test_a_change_that_left_no_trace_is_found_when_the_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    credentials = EndpointCredentials(Endpoint(SERVER, token_file=str(file)))
    credentials.authorization()
    file.write_text("two")
    os.utime(file, ns=times)
    assert credentials.authorization() == "Bearer one"
    assert credentials.renew()
    assert credentials.authorization() == "Bearer two"


@pytest.mark.parametrize(("content", "sentence"), [(None, "cannot be read: No such file"), (" \n", "is empty")])
def test_a_token_file_without_a_token_is_named(tmp_path: Path, content: str | None, sentence: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(KubeconfigError, match=f"the token file {file} {sentence}"):
        EndpointCredentials(Endpoint(SERVER, token_file=str(file))).current()


@pytest.mark.parametrize("content", ["update available\ns3cret\n", "s3cret two", "s3cret\x07", "s3crét"])
def test_an_invalid_token_is_refused_without_being_quoted(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    program = Program(tmp_path, token=content)
    for credentials, sentence in (
        (EndpointCredentials(Endpoint(SERVER, token_file=str(file))), f"the token file {file} does not contain"),
        (credentials_of(program, Time()), "the credential plugin .* printed something that is not a token"),
        (EndpointCredentials(Endpoint(SERVER, token=content)), f"the token for {SERVER} is invalid"),
    ):
        with pytest.raises(KubeconfigError, match=sentence) as error:
            credentials.authorization()
        assert "s3cr" not in str(error.value)


def test_a_file_without_a_token_leaves_the_known_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("two\nlines")
    assert EndpointCredentials(Endpoint(SERVER, token="t", token_file=str(file))).authorization() == "Bearer t"


def test_certificates_are_read_again_when_they_have_changed(tmp_path: Path) -> None:
    certificate, key = tmp_path / "crt", tmp_path / "key"
    endpoint = Endpoint(SERVER, client_cert_file=str(certificate), client_key_file=str(key))
    credentials = EndpointCredentials(endpoint)
    for text in ("one", "two"):
        write_private(certificate, f"{text} crt".encode())
        write_private(key, f"{text} key".encode())
        assert credentials.current() == Credential("", f"{text} crt", f"{text} key")


def test_nothing_secret_is_in_a_representation() -> None:
    secrets = (
        Credential("Bearer s3cret", "c", "s3cret"),
        PluginCredential("s3cret", "c", "s3cret"),
        Plugin("x", V1, ("s3cret",)),
    )
    for value in secrets:
        assert "s3cret" not in repr(value)


# Plugins


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 6, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


def credentials_of(program: Program, time: Time) -> EndpointCredentials:
    return EndpointCredentials(program.endpoint(SERVER), now=time.now, monotonic=time.monotonic)


def test_a_plugin_is_run_again_when_its_credential_has_expired(tmp_path: Path) -> None:
    program, time = Program(tmp_path, token="one", expirationTimestamp="2026-06-01T00:10:00Z"), Time()
    credentials = credentials_of(program, time)
    assert not credentials.ready
    for time.seconds in (0, 300, 599):
        assert credentials.authorization() == "Bearer one"
        assert credentials.ready
    program.gives(token="two", expirationTimestamp="2026-06-01T00:20:00Z")
    time.seconds = 600
    assert not credentials.ready
    assert credentials.authorization() == "Bearer two"
    assert program.runs == 2


def test_a_credential_that_has_already_expired_is_refused(tmp_path: Path) -> None:
    program = Program(tmp_path, token="one", expirationTimestamp="2026-05-31T23:59:59Z")
    credentials = credentials_of(program, Time())
    for _ in range(3):
        with pytest.raises(KubeconfigError, match="printed has already expired; check the clock of this machine"):
            credentials.current()
    assert program.runs == 1


def test_a_credential_without_expiry_is_used_until_it_is_refused(tmp_path: Path) -> None:
    program, time = Program(tmp_path, token="one"), Time()
    credentials = credentials_of(program, time)
    credentials.authorization()
    time.seconds = 1e6
    assert (credentials.authorization(), program.runs) == ("Bearer one", 1)
    program.gives(token="two")
    assert credentials.renew()
    assert (credentials.authorization(), program.runs) == ("Bearer two", 2)


def test_concurrent_refusals_run_the_plugin_once(tmp_path: Path) -> None:
    program = Program(tmp_path, token="one")
    credentials = credentials_of(program, Time())
    credential = credentials.current()
    program.gives(token="two")
    assert all(credentials.renew(credential) for _ in range(5))
    assert program.runs == 2


def test_a_plugin_that_repeats_a_refused_token_is_not_run_again_for_a_while(tmp_path: Path) -> None:
    program, time = Program(tmp_path, token="one"), Time()
    credentials = credentials_of(program, time)
    credentials.current()
    assert not any(credentials.renew() for _ in range(5))
    assert program.runs == 2
    time.seconds = 6
    program.gives(token="two")
    assert credentials.renew()


def test_a_plugin_that_fails_is_left_alone_for_a_while(tmp_path: Path) -> None:
    program, time = Program(tmp_path), Time()
    program.prints("", code=3, stderr="session expired,\nlog in again\n")
    credentials = credentials_of(program, time)
    for _ in range(3):
        with pytest.raises(KubeconfigError, match=r"failed with code 3: session expired, log in again$"):
            credentials.current()
    assert program.runs == 1
    time.seconds = 6
    program.gives(token="one")
    assert credentials.authorization() == "Bearer one"


def test_a_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    program = Program(tmp_path, clientCertificateData="crt", clientKeyData="key")
    assert credentials_of(program, Time()).current() == Credential("", "crt", "key")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_gets_its_arguments_and_environment(tmp_path: Path, version: str) -> None:
    api_version = f"client.authentication.k8s.io/{version}"
    program = Program(tmp_path)
    program.gives(token="t", api_version=api_version)
    endpoint = program.endpoint(SERVER, api_version, args=("get", "token"), environ=(("WHO", "me"),))
    assert run(endpoint.plugin, endpoint, interactive=True) == PluginCredential("t")  # type: ignore[arg-type]
    assert program.info == {"apiVersion": api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert (tmp_path / "rest").read_text() == "get token/me/"


def test_a_plugin_gets_the_cluster_if_it_asks_for_it(tmp_path: Path) -> None:
    program = Program(tmp_path, token="t")
    endpoint = msgspec.structs.replace(
        program.endpoint(SERVER, provide_cluster_info=True, config={"audience": "a"}),
        ca_pem="PEM",
        server_name="other.test",
        proxy="http://proxy.test",
    )
    run(endpoint.plugin, endpoint, interactive=False)  # type: ignore[arg-type]
    assert program.info["spec"]["cluster"] == {
        "server": SERVER,
        "tls-server-name": "other.test",
        "certificate-authority-data": base64.b64encode(b"PEM").decode(),
        "proxy-url": "http://proxy.test",
        "config": {"audience": "a"},
    }


JWT = "eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("stdout", "code", "stderr", "sentence"),
    [
        ("s3cret", 0, "", "printed no ExecCredential$"),
        ("[]", 0, "", "printed no ExecCredential$"),
        ('{"apiVersion":"v1","kind":"Pod"}', 0, "", f"printed no ExecCredential of {V1}$"),
        (f'{{"apiVersion":"{V1}beta1","kind":"ExecCredential"}}', 0, "", f"no ExecCredential of {V1}$"),
        (f'{{"apiVersion":"{V1}","kind":"ExecCredential"}}', 0, "", "printed neither a token nor"),
        (
            f'{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"clientKeyData":"s3cret"}}}}',
            0,
            "",
            "without its certificate$",
        ),
        ("", 1, "", "failed with code 1$"),
        ("", 1, f"refused {JWT} again", "failed with code 1: refused … again$"),
        (
            f'{{"apiVersion":"{V1}","kind":"ExecCredential","status":{{"token":"s3cret"}}}}',
            1,
            "tried s3cret",
            "failed with code 1: tried …$",
        ),
    ],
)
def test_a_failing_plugin_is_reported_in_one_sentence(
    tmp_path: Path, stdout: str, code: int, stderr: str, sentence: str
) -> None:
    program = Program(tmp_path)
    program.prints(stdout, code, stderr)
    with pytest.raises(KubeconfigError, match=sentence) as error:
        credentials_of(program, Time()).current()
    assert "s3cret" not in str(error.value)
    assert JWT not in str(error.value)


def test_a_missing_plugin_is_named_with_its_hint() -> None:
    plugin = Plugin("/nowhere/login-helper", V1, install_hint="get it\nfrom the store")
    with pytest.raises(KubeconfigError, match=r'"login-helper" cannot be run: No such file .*; get it from the store'):
        run(plugin, Endpoint(SERVER), interactive=False)


def test_a_plugin_that_needs_a_person_is_not_run_without_one(tmp_path: Path) -> None:
    program = Program(tmp_path, token="t")
    plugin = Plugin(str(program.path), V1, interactive_mode="Always")
    with pytest.raises(KubeconfigError, match="needs a user at a terminal"):
        run(plugin, Endpoint(SERVER), interactive=False)
    assert program.runs == 0
