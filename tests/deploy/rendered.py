"""The manifests as kubectl renders them. Entry points: `rendered`, `OVERLAYS`, `EXAMPLES`, `Manifests`."""

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from datum_compute.kube.meta import Json
from datum_compute.operator.config import WorkloadOperator, decoded
from datum_compute.operator.flags import FLAGS, Flags, parse
from datum_compute.operator.settings import Settings, settled
from tests.kubectl import program

DEPLOY = Path(__file__).parents[2] / "deploy"


def _folders(root: Path) -> list[str]:
    return sorted(path.parent.relative_to(DEPLOY).as_posix() for path in root.rglob("kustomization.yaml"))


OVERLAYS = _folders(DEPLOY / "overlays")
EXAMPLES = _folders(DEPLOY / "example")


@cache
def rendered(folder: str, *components: str) -> "Manifests":
    """The objects of a folder below `deploy/`, with optional components."""
    if not components:
        return Manifests(folder, _documents(DEPLOY / folder))
    parent = DEPLOY.parent / "build"  # within the repository, because kustomize only knows relative paths
    parent.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=parent, prefix="render-") as path:
        used = [f"../../deploy/components/{component}" for component in components]
        kustomization = {"resources": [f"../../deploy/{folder}"], "components": used}
        (Path(path) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), "utf-8")
        return Manifests(folder, _documents(Path(path)))


def _documents(path: Path) -> list[Json]:
    done = subprocess.run([program(), "kustomize", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{path} does not render: {done.stderr}"
    assert not done.stderr, f"{path} renders with warnings: {done.stderr}"
    return list(yaml.load_all(done.stdout, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


class Manifests:
    def __init__(self, name: str, objects: list[Json]) -> None:
        self.name = name
        self.objects = objects

    def of(self, *kinds: str) -> list[Json]:
        return [body for body in self.objects if body["kind"] in kinds]

    def find(self, kind: str, name: str) -> Json:
        [found] = [body for body in self.of(kind) if body["metadata"]["name"] == name]
        return found

    @property
    def deployment(self) -> Json | None:
        """The Deployment of a process; planes on which nothing runs have none."""
        found = self.of("Deployment")
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def pod(self) -> Json:
        assert self.deployment is not None
        pod: Json = self.deployment["spec"]["template"]["spec"]
        return pod

    @property
    def container(self) -> Json:
        [container] = self.pod["containers"]
        return dict(container)

    @property
    def environment(self) -> dict[str, str]:
        return {entry["name"]: entry["value"] for entry in self.container["env"]}

    @property
    def flags(self) -> Flags:
        known = {flag.variable for flag in FLAGS}
        assert set(self.environment) <= known, f"{self.name} sets variables of no flag"
        return parse(self.container.get("args", []), self.environment, "0")

    @property
    def config(self) -> WorkloadOperator:
        [mounted] = [volume["configMap"]["name"] for volume in self.pod["volumes"] if "configMap" in volume]
        text: str = self.find("ConfigMap", mounted)["data"]["config.yaml"]
        return decoded(Path(self.name) / "config.yaml", text.encode())

    @property
    def settings(self) -> Settings:
        return settled(self.flags, self.config)

    def bindings(self) -> Iterator[tuple[str, str]]:
        """Account and role, once for each binding."""
        for body in self.of("RoleBinding", "ClusterRoleBinding"):
            for subject in body["subjects"]:
                yield subject["name"], body["roleRef"]["name"]
