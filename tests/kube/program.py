"""A credential plugin for tests. Entry point: `Program`."""

from pathlib import Path
from typing import Any

import msgspec

from datum_compute.kube.access.kubeconfig import Endpoint, Plugin

V1 = "client.authentication.k8s.io/v1"


class Program:
    """A plugin that counts its runs, prints what a file holds and can be told to fail."""

    def __init__(self, folder: Path, **status: Any) -> None:
        self.folder = folder
        self.runs_file = folder / "runs"
        self.runs_file.write_text("")
        self.path = folder / "plugin"
        self.path.write_text(
            "#!/bin/sh\n"
            'cd "$(dirname "$0")"\n'
            "printf x >>runs\n"
            'printf %s "$KUBERNETES_EXEC_INFO" >info\n'
            'printf "%s/%s/%s" "$*" "$WHO" "$(cat)" >rest\n'
            "cat stderr >&2\n"
            "cat stdout\n"
            'exit "$(cat code)"\n'
        )
        self.path.chmod(0o700)
        self.gives(**status)

    def gives(self, code: int = 0, stderr: str = "", api_version: str = V1, **status: Any) -> None:
        credential = {"apiVersion": api_version, "kind": "ExecCredential", "status": status}
        self.prints(msgspec.json.encode(credential).decode(), code, stderr)

    def prints(self, stdout: str, code: int = 0, stderr: str = "") -> None:
        for name, text in (("stdout", stdout), ("stderr", stderr), ("code", str(code))):
            # In one step: a run that is under way reads either the old or the new text.
            written = self.folder / f"{name}.new"
            written.write_text(text)
            written.replace(self.folder / name)

    @property
    def runs(self) -> int:
        return len(self.runs_file.read_text())

    @property
    def info(self) -> Any:
        return msgspec.json.decode((self.folder / "info").read_bytes())

    def endpoint(self, server: str, api_version: str = V1, **fields: Any) -> Endpoint:
        return Endpoint(server, plugin=Plugin(str(self.path), api_version, interactive_mode="Never", **fields))
