"""What the engine is made of: one pinned Go module per tool. Entry points: `TOOLS`, `Tool`, `tool_of`."""

import hashlib
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

MODULES = Path(__file__).parent / "tools"


class Tool(Struct, frozen=True):
    """A folder below `engine/tools` with `go.mod`, `go.sum` and the packages that are built in it."""

    name: str
    module: str  # whose version is the tool's
    binaries: dict[str, str]  # file name -> package
    version_variable: str = ""  # set to the version; without it the binary calls itself v0.0.0
    toolchain: str = ""  # of Go, when the newest one cannot compile it
    standard: bool = True  # part of `make engine`

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def version(self) -> str:
        requirement = re.search(
            rf"^(?:require|\s)\s*{re.escape(self.module)} (\S+)", self._read("go.mod"), re.MULTILINE
        )
        if requirement is None:
            raise ValueError(f"{self.folder / 'go.mod'} does not require {self.module}")
        return requirement[1]

    @property
    def linker_flags(self) -> str:
        stripped = "-s -w"
        if not self.version_variable:
            return stripped
        major, minor, _ = self.version.removeprefix("v").split(".", 2)
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        return " ".join([stripped, *(f"-X {self.version_variable}.{name}={value}" for name, value in values.items())])

    @property
    def key(self) -> str:
        """The same for the same pins, packages, flags and platform, and only for those."""
        parts = [
            self._read("go.mod"),
            self._read("go.sum"),
            *(f"{name}={package}" for name, package in sorted(self.binaries.items())),
            self.linker_flags,
            self.toolchain,
            f"{platform.system()}/{platform.machine()}",
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8")


def _kubernetes(name: str) -> tuple[str, str]:
    return name, f"k8s.io/kubernetes/cmd/{name}"


def _karmada(name: str) -> tuple[str, str]:
    return f"karmada-{name}", f"github.com/karmada-io/karmada/cmd/{name}"


TOOLS: Sequence[Tool] = (
    Tool("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Tool(
        "kubernetes",
        "k8s.io/kubernetes",
        dict(map(_kubernetes, ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"))),
        version_variable="k8s.io/component-base/version",
    ),
    Tool(
        "karmada",
        "github.com/karmada-io/karmada",
        dict(map(_karmada, ("aggregated-apiserver", "controller-manager", "scheduler", "webhook"))),
        version_variable="github.com/karmada-io/karmada/pkg/version",
    ),
    Tool("kwok", "sigs.k8s.io/kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Tool(
        "helm",
        "helm.sh/helm/v3",
        {"helm": "helm.sh/helm/v3/cmd/helm"},
        standard=False,
    ),
    Tool(
        "chainsaw",
        "github.com/kyverno/chainsaw",
        {"chainsaw": "github.com/kyverno/chainsaw"},
        toolchain="go1.25.10",
        standard=False,
    ),
)


def tool_of(binary: str) -> Tool:
    return next(tool for tool in TOOLS if binary in tool.binaries)
