"""The files that follow from the tables are written, checked, and removed when no table asks for them any more."""

from pathlib import Path

import pytest

from tools.generate import files, main


def test_files_are_written_below_the_repository(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    written = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(written) == sorted(files())
    assert {Path(name).parent.as_posix() for name in written} == {
        "deploy/crd",
        "deploy/policies",
        "deploy/roles",
        "docs/reference",
    }
    for path in written.values():
        text = path.read_text(encoding="utf-8")
        assert "make generate" in text.splitlines()[0]
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_the_same_tables_give_the_same_files() -> None:
    assert files() == files()


def test_check_is_silent_when_files_are_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    assert main(["--check", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name",
    ["deploy/crd/compute.datumapis.com_instances.yaml", "deploy/roles/cell-on-hub.yaml", "docs/reference/reasons.md"],
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


def test_what_no_table_asks_for_any_more_is_found_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path)])
    roles = tmp_path / "deploy" / "roles"
    old, by_hand = roles / "old.yaml", roles / "kustomization.yaml"
    old.write_text((roles / "cell-on-hub.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    by_hand.write_bytes(b"\xff resources: []\n")
    assert main(["--check", str(tmp_path)]) == 1
    assert "deploy/roles/old.yaml" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 0
    assert (old.exists(), by_hand.exists()) == (False, True)
    assert main(["--check", str(tmp_path)]) == 0
