"""Loading certificates with their keys."""

import os
import ssl
import tempfile
from pathlib import Path

import pytest

from datum_compute.kube.access.pairs import NoFolder, load_pair
from tests.https import client_certificate


def _load(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, certificate.encode(), key.encode())
    return context


@pytest.fixture(params=["in memory", "in a folder"])
def temporary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param == "in a folder":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    return tmp_path


@pytest.mark.usefixtures("temporary")
def test_a_pair_is_loaded_and_leaves_no_file(temporary: Path) -> None:
    open_files = len(os.listdir("/dev/fd"))
    _load(*client_certificate("one"))
    assert list(temporary.iterdir()) == []
    assert len(os.listdir("/dev/fd")) == open_files


@pytest.mark.usefixtures("temporary")
def test_a_certificate_with_another_key_is_an_error() -> None:
    (certificate, _), (_, key) = client_certificate("one"), client_certificate("two")
    with pytest.raises(ssl.SSLError):
        _load(certificate, key)
    with pytest.raises(ssl.SSLError):
        _load("nonsense", key)


def test_an_unwritable_directory_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    with pytest.raises(NoFolder, match="set TMPDIR to a folder that this process may write to"):
        _load(*client_certificate("one"))
