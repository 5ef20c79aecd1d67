import subprocess
import sys
from pathlib import Path

import pytest

from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.workload.manifest import parsed
from datum_compute.embedded.plane.bodies import object_of
from datum_compute.kube.access.kubeconfig import KubeconfigError, load
from datum_compute.kube.errors import BadRequest
from datum_compute.kube.transport import Call
from datum_compute.kube.untrusted_yaml import MAX_BYTES, MAX_DEPTH, TooMuch, check
from datum_compute.operator.config import ConfigError, decoded

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{here}: &{here} [{', '.join(['*' + before] * 10)}]\n" for before, here in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 50_000, "nested more than 100 levels deep"),
        ("- " * 50_000, "nested more than 100 levels deep"),
        ("{a: " * 50_000, "nested more than 100 levels deep"),
        (BOMB, "a document of more than 500,000 values"),
        ("a: &a [b, *a]", "endless: what \\*a stands for contains itself"),
        ("x" * (MAX_BYTES + 1), "larger than 3 MiB"),
    ],
    ids=["flow lists", "block lists", "maps", "aliases", "an alias of itself", "size"],
)
def test_yaml_that_would_exhaust_a_loader_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(TooMuch, match=sentence):
        check(text)


def test_documents_that_people_write_pass() -> None:
    check("a: &anchor {b: [1, 2]}\nc: *anchor\n---\nsecond: document\n")
    check("[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize("module", ["datum_compute.kube.access.kubeconfig", "datum_compute.operator.config"])
def test_readers_of_files_answer_with_a_sentence_instead_of_a_crash(module: str, tmp_path: object) -> None:
    """In a process of its own: what this is about would end the one that runs the tests."""
    call = {
        "datum_compute.kube.access.kubeconfig": "m.load([path])",
        "datum_compute.operator.config": "m.read(path)",
    }[module]
    program = (
        f"import importlib, pathlib; m = importlib.import_module({module!r})\n"
        f"path = pathlib.Path({str(tmp_path)!r}, 'deep')\n"
        "path.write_text('[' * 50_000)\n"
        f"try:\n    {call}\nexcept Exception as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result
    assert result.stdout.strip().endswith("is nested more than 100 levels deep")


@pytest.mark.parametrize("value", ["!!bool maybe", "!!timestamp soon", "!!int ''", "!!float ''", "!!set [1]"])
def test_a_tag_that_does_not_fit_its_value_is_an_error(value: str, tmp_path: Path) -> None:
    text = f"a: {value}"
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(KubeconfigError, match="is not YAML"):
        load([file])
    with pytest.raises(ConfigError):
        decoded(file, text.encode())
    with pytest.raises(Failure):
        parsed(text, "file")
    with pytest.raises(BadRequest):
        object_of(Call("POST", "/", {}, text.encode(), "application/yaml"))
