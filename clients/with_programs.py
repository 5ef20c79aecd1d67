"""helm and kubectl, the programs that HELM and KUBECTL name."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from report import GROUP, NAMESPACE, Report, config_map, widget

report = Report()
chart = Path(tempfile.mkdtemp()) / "chart"


def run(program: str, *arguments: str, manifest: object = None) -> str:
    command = [os.environ[program], *arguments, f"--namespace={NAMESPACE}"]
    done = subprocess.run(
        command, input=json.dumps(manifest) if manifest else None, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[0]}"
    return done.stdout


def helm(*arguments: str) -> str:
    return run("HELM", *arguments)


def kubectl(*arguments: str, manifest: object = None) -> str:
    return run("KUBECTL", *arguments, *(["--filename=-"] if manifest else []), manifest=manifest)


def size() -> str:
    return kubectl("get", f"widgets.{GROUP}", "released", "--output=jsonpath={.spec.size}")


(chart / "templates").mkdir(parents=True)
(chart / "Chart.yaml").write_text("apiVersion: v2\nname: chart\nversion: 1.0.0\n")
(chart / "values.yaml").write_text("size: 1\n")
settings = config_map("released", {"size": "{{ .Values.size }}"})
released = widget("released", 0)
del settings["metadata"]["namespace"], released["metadata"]["namespace"]
released["spec"]["size"] = "SIZE"
(chart / "templates" / "settings.yaml").write_text(json.dumps(settings))
(chart / "templates" / "widget.yaml").write_text(json.dumps(released).replace('"SIZE"', "{{ .Values.size }}"))

report.note("install", json.loads(helm("install", "app", str(chart), "--output=json"))["info"]["status"])
report.note("installed", size())
report.note("upgrade", json.loads(helm("upgrade", "app", str(chart), "--set=size=3", "--output=json"))["version"])
report.note("upgraded", size())
report.note("rollback", helm("rollback", "app", "1"))
report.note("rolled back", size())
report.note("history", [entry["status"] for entry in json.loads(helm("history", "app", "--output=json"))])
report.note("list", [release["name"] for release in json.loads(helm("list", "--output=json"))])
report.note("uninstall", helm("uninstall", "app"))
report.note("left", kubectl("get", f"configmaps,secrets,widgets.{GROUP}", "--output=name", "--selector=owner=helm"))
report.note("uninstalled", size())

report.note("apply", kubectl("apply", manifest=widget("kubectl", 1)))
report.note("patch", kubectl("patch", "wdg", "kubectl", "--type=merge", '--patch={"spec":{"size":2}}'))
refused = kubectl("apply", "--server-side", "--field-manager=other", manifest=widget("kubectl", 3))
report.note("conflict", refused.partition(": conflict with")[0])  # with whom, depends on when a server begins to follow
forced = kubectl("apply", "--server-side", "--field-manager=other", "--force-conflicts", manifest=widget("kubectl", 3))
report.note("force", forced)
report.note("may I", kubectl("auth", "can-i", "delete", f"widgets.{GROUP}"))
report.note("delete", kubectl("delete", "wdg", "kubectl"))
report.print()
