"""What is taken from Karmada's module, and what is put into it."""

from pathlib import Path

import pytest
import yaml

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from engine import karmada
from engine.planes import REPOSITORY

URL = "https://127.0.0.1:20001"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    crds = tmp_path / "charts" / "karmada" / "_crds"
    (crds / "bases").mkdir(parents=True)
    (crds / "patches").mkdir()
    (crds / "kustomization.yaml").write_text(
        "resources: [bases/works.yaml, bases/bindings.yaml]\npatches:\n- path: patches/bindings.yaml\n"
    )
    (crds / "bases" / "works.yaml").write_text("metadata: {name: works}\nspec: {group: g}\n")
    (crds / "bases" / "bindings.yaml").write_text("metadata: {name: bindings}\nspec: {group: g}\n")
    (crds / "patches" / "bindings.yaml").write_text(
        "metadata: {name: bindings}\n"
        'spec: {conversion: {url: "https://{{name}}.{{namespace}}.svc:443/convert", caBundle: "{{caBundle}}"}}\n'
    )
    deploy = tmp_path / "artifacts" / "deploy"
    deploy.mkdir(parents=True)
    (deploy / "webhook-configuration.yaml").write_text(
        "kind: MutatingWebhookConfiguration\n"
        "webhooks:\n- clientConfig:\n    url: https://karmada-webhook.karmada-system.svc:443/mutate\n"
        "    caBundle: {{caBundle}}\n---\nkind: ValidatingWebhookConfiguration\n---\n"
    )
    return tmp_path


def test_definitions_are_patched_as_the_kustomization_says(sources: Path) -> None:
    works, bindings = karmada.definitions(sources, URL, "Q0E=")

    assert works == {"metadata": {"name": "works"}, "spec": {"group": "g"}}
    assert bindings["spec"] == {"group": "g", "conversion": {"url": f"{URL}/convert", "caBundle": "Q0E="}}


def test_webhooks_are_called_on_loopback(sources: Path) -> None:
    mutating, validating = karmada.webhook_configurations(sources, URL, "Q0E=")

    assert mutating["webhooks"][0]["clientConfig"] == {"url": f"{URL}/mutate", "caBundle": "Q0E="}
    assert validating == {"kind": "ValidatingWebhookConfiguration"}


def test_the_interpreter_is_for_our_kind_and_no_other() -> None:
    interpreter = karmada.interpreter()

    target = {"apiVersion": WORKLOAD_DEPLOYMENT.api_version, "kind": WORKLOAD_DEPLOYMENT.name}
    assert interpreter["metadata"]["name"] == "workloaddeployment"
    assert interpreter["spec"]["target"] == target
    assert sorted(interpreter["spec"]["customizations"]) == ["statusAggregation", "statusReflection"]


def test_nothing_else_is_deployed_to_the_hub_for_other_kinds() -> None:
    hub = REPOSITORY / "deploy" / "hub"
    found = [body for file in hub.glob("*.yaml") for body in yaml.safe_load_all(file.read_bytes()) if body]
    interpreters = [body for body in found if body["kind"] == "ResourceInterpreterCustomization"]
    assert [body["metadata"]["name"] for body in interpreters] == ["workloaddeployment"]
