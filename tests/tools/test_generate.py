"""The files that follow from the tables are written, checked, and removed when no table asks for them any more."""

import shutil
from pathlib import Path

import pytest

from tools.generate import files, main, operator_files


def test_files_are_written_below_the_repository(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    written = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(written) == sorted([*files(), *operator_files()])
    assert {"/".join(Path(name).parts[:2]) for name in written} == {
        "deploy/accounts",
        "deploy/components",
        "deploy/crd",
        "deploy/policies",
        "deploy/roles",
        "deploy/webhook",
        "docs/reference",
        "docs/runbooks",
    }
    for path in written.values():
        text = path.read_text(encoding="utf-8")
        assert "make generate" in text.splitlines()[0]
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_the_same_tables_give_the_same_files() -> None:
    assert (files(), operator_files()) == (files(), operator_files())


def test_check_is_silent_when_files_are_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    assert main(["--check", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name",
    [
        "deploy/crd/compute/compute.datumapis.com_instances.yaml",
        "deploy/roles/cell-on-hub/role.yaml",
        "docs/reference/reasons.md",
    ],
)
@pytest.mark.parametrize("missing", [True, False])
def test_check_names_the_file_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, missing: bool
) -> None:
    main([str(tmp_path)])
    if missing:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text("kind: Other\n", encoding="utf-8")
    assert main(["--check", str(tmp_path)]) == 1
    [sentence] = capsys.readouterr().err.splitlines()
    assert f": {name};" in sentence
    assert "make generate" in sentence
    assert (tmp_path / name).exists() is not missing


def test_files_without_a_table_are_found_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    role = tmp_path / "deploy" / "roles" / "cell-on-hub"
    old, by_hand = role / "old.yaml", role / "patch.yaml"
    old.write_text((role / "role.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    by_hand.write_bytes(b"\xff resources: []\n")
    former = shutil.copytree(tmp_path / "deploy" / "roles" / "cell-on-project", role.with_name("cell-on-moon"))
    assert main(["--check", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert "deploy/roles/cell-on-hub/old.yaml" in errors
    assert "deploy/roles/cell-on-moon/role.yaml" in errors
    assert main([str(tmp_path)]) == 0
    assert (old.exists(), by_hand.exists(), former.exists()) == (False, True, False)
    assert main(["--check", str(tmp_path)]) == 0
