"""Writes an image archive around one program, without any builder. Entry point: `write_archive`."""

import hashlib
import io
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from datum_compute.kube.meta import Json, encode

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def write_archive(
    path: Path, program: Path, tags: Sequence[str], *, processor: str = "", variables: Mapping[str, str] | None = None
) -> None:
    """An image whose only file is `/program`, in the form that `images/load` takes."""
    layer = _tar({"program": program.read_bytes()}, mode=0o755)
    config: Json = {
        "architecture": processor or architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": ["/program"],
            "Cmd": ["serve"],
            "Env": [f"{name}={value}" for name, value in (variables or {}).items()],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    encoded = encode(config)
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": list(tags), "Layers": ["layer.tar"]}]
    path.write_bytes(_tar({name: encoded, "layer.tar": layer, "manifest.json": encode(manifest)}))


def _tar(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()
