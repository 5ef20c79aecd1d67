"""How the single-file plugin starts; `tools.bundle` puts this text into it as its first module. Entry point: `main`.

Native modules cannot be loaded out of an archive, so what the archive carries is unpacked once, into a private folder
that is named by its content. The manifest, which datumctl wants within a short deadline, needs no unpacking.

Written for Python 3.6: whatever `python3` is on a machine runs this first, and has to be able to say what is missing.
"""

import os
import sys
from pathlib import Path

DIGEST = "digest"  # names the content of the payload
MADE_FOR = "made-for"
PAYLOAD = "payload.zip"


def this_machine() -> str:
    """What native modules depend on."""
    return f"{sys.implementation.cache_tag} {sys.platform} {os.uname().machine}"


def main(archive: str) -> int:
    made_for = _member(archive, MADE_FOR)
    if made_for != this_machine():
        return _elsewhere(made_for)
    if "--plugin-manifest" not in sys.argv:
        sys.path[0] = str(_unpacked(archive, _member(archive, DIGEST)))
    from datum_compute.cli.main import main as run

    return run()


def _member(archive: str, name: str) -> str:
    import zipimport

    return zipimport.zipimporter(archive).get_data(os.path.join(archive, name)).decode("ascii")


def _elsewhere(made_for: str) -> int:
    """Runs the file with the Python it was made for, or reports that there is none."""
    import shutil

    tag, platform, machine = made_for.split()
    python = f"python3.{tag[len('cpython-3') :]}"
    found = shutil.which(python)
    if [platform, machine] == this_machine().split()[1:] and found and not os.path.samefile(found, sys.executable):
        os.execv(found, [found, *sys.argv])
    _, here, of_here = this_machine().split()
    print(
        f"Error: this file is made for {python} on {platform} {machine}, and this is "
        f"python{sys.version_info[0]}.{sys.version_info[1]} on {here} {of_here}; "
        f"install {python}, or take the file that is made for this machine",
        file=sys.stderr,
    )
    return 1


def _unpacked(archive: str, digest: str) -> Path:
    above = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "datum-compute"
    folder = above / f"plugin-{digest}"
    try:
        found = folder.stat()
    except OSError:  # missing or impossible: unpacking reports it
        return _unpack(archive, above, folder)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        sys.exit(f"Error: others can change {folder}, so it is not used; remove it and try again")
    return folder


def _unpack(archive: str, above: Path, folder: Path) -> Path:
    """Whole or not at all: two processes that start at once both unpack, and the folder of the first stays."""
    import shutil
    import tempfile
    import zipfile

    try:
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="unpacking-", dir=above))
        try:
            with zipfile.ZipFile(archive) as whole, whole.open(PAYLOAD) as payload, zipfile.ZipFile(payload) as files:
                files.extractall(fresh)
            fresh.rename(folder)
        except OSError:
            shutil.rmtree(fresh)
            if not folder.is_dir():
                raise
    except OSError as error:
        sys.exit(f"Error: cannot unpack into {above}: {error.strerror}; name another folder with XDG_CACHE_HOME")
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.path[0]))
