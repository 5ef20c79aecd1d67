"""Rules that API servers enforce beyond what roles can express. Entry points: `POLICIES`, `files`.

Each becomes a ValidatingAdmissionPolicy (Kubernetes 1.30 and newer) with its binding in `deploy/policies/`. Expressions
are CEL; `tests/api/test_policies.py` evaluates them, and `tests/engine/test_access.py` tries them on a real API server.
"""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import indent

from msgspec import Struct

from datum_compute.api import GROUP as COMPUTE
from datum_compute.api.accounts import KUBERNETES, MANAGEMENT, cell_account, username
from datum_compute.api.crd import definition
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import RESTARTED_AT, SOURCE_CLUSTER, UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE
from datum_compute.api.names import hub_namespace
from datum_compute.api.permissions import On
from datum_compute.api.quota import QUOTA_GROUP as QUOTA
from datum_compute.api.validation.deployments import PROTECTED_METADATA, TIME, refusal_of
from datum_compute.kube.admission import ADMINISTRATORS

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"
UNNAMED = "single"  # the label that cells without a name set on what they write


class Named(Struct, frozen=True):
    """A CEL expression: a condition for the policy to apply, or a value that rules use as `variables.<name>`."""

    name: str
    expression: str


class Rule(Struct, frozen=True):
    """An expression that must be true, and the message if it is not: CEL too, so that it can name the object."""

    expression: str
    message: str


class Policy(Struct, frozen=True):
    name: str
    on: On
    why: str
    group: str
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    rules: tuple[Rule, ...]
    when: tuple[Named, ...] = ()
    variables: tuple[Named, ...] = ()


def quoted(text: str) -> str:
    """A CEL string."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def list_of(texts: Iterable[str]) -> str:
    """A CEL list of strings."""
    return f"[{', '.join(map(quoted, texts))}]"


def label(object_: str, key: str) -> str:
    """An expression for the value of a label; empty if there is none."""
    return f"{object_}.metadata.?labels[?{quoted(key)}].orValue('')"


def all_of(*expressions: str) -> str:
    return " &&\n".join(expressions)


# Deployments of a project are derived from its Workloads.

_NAME = "' + request.?name.orValue('') + '"  # within a CEL string
_BEFORE, _AFTER = "variables.before", "variables.after"
_RESTART = quoted(RESTARTED_AT)
_FIRST = quoted("0001-01-01T00:00:00Z")  # if it was never restarted
_NOT_FOR_OTHERS = f"'{refusal_of(_NAME)}'"


def _same(*path: str) -> str:
    *parents, last = path
    return " == ".join(f"{of}.{''.join(f'?{part}.' for part in parents)}?{last}" for of in ("object", "oldObject"))


def _unchanged_fields() -> Iterator[str]:
    """Everything but the annotations of the template; unknown fields are pruned by the server."""
    schema = definition(WORKLOAD_DEPLOYMENT)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    template = schema["properties"]["template"]["properties"]
    yield from (_same("metadata", key) for key in PROTECTED_METADATA)
    yield from (_same("spec", key) for key in schema["properties"] if key != "template")
    yield from (_same("spec", "template", key) for key in template if key != "metadata")
    of_metadata = template["metadata"]["properties"]
    yield from (_same("spec", "template", "metadata", key) for key in of_metadata if key != "annotations")


def _annotations(object_: str) -> str:
    annotations = f"{object_}.?spec.?template.?metadata.?annotations.orValue({{}})"
    return f"{object_} == null ? {{}} : {annotations}"


def _is_time(text: str) -> str:
    return f"{text}.matches({quoted(f'^{TIME}$')})"


_DEPLOYMENTS = Policy(
    "compute-deployments-on-project",
    On.PROJECT,
    "Deployments are derived from Workloads: anybody but compute may only restart a city.",
    COMPUTE,
    ("workloaddeployments", "workloaddeployments/status"),
    (CREATE, UPDATE, DELETE),
    when=(
        Named("not-compute", f"!(request.userInfo.username in {list_of([username(MANAGEMENT)])})"),
        Named("not-kubernetes", f"!(request.userInfo.username in {list_of(KUBERNETES)})"),
        Named("not-an-administrator", f"!({quoted(ADMINISTRATORS)} in request.userInfo.?groups.orValue([]))"),
    ),
    variables=(Named("before", _annotations("oldObject")), Named("after", _annotations("object"))),
    rules=(
        Rule(
            f"request.operation == {quoted(UPDATE)} && request.?subResource.orValue('') == ''",
            _NOT_FOR_OTHERS,
        ),
        Rule(
            f"request.operation != {quoted(UPDATE)} || (\n{indent(all_of(*_unchanged_fields()), '  ')}\n)",
            _NOT_FOR_OTHERS,
        ),
        Rule(
            all_of(
                f"{_BEFORE}.all(key, key == {_RESTART} || (key in {_AFTER} && {_AFTER}[key] == {_BEFORE}[key]))",
                f"{_AFTER}.all(key, key == {_RESTART} || key in {_BEFORE})",
            ),
            _NOT_FOR_OTHERS,
        ),
        Rule(
            f"{_AFTER}[?{_RESTART}] == {_BEFORE}[?{_RESTART}] || (\n"
            + indent(
                all_of(
                    _is_time(f"{_AFTER}[?{_RESTART}].orValue('')"),
                    _is_time(f"{_BEFORE}[?{_RESTART}].orValue({_FIRST})"),
                    f"timestamp({_AFTER}[{_RESTART}]) > timestamp({_BEFORE}[?{_RESTART}].orValue({_FIRST}))",
                ),
                "  ",
            )
            + "\n)",
            _NOT_FOR_OTHERS,
        ),
    ),
)

# A cell writes only objects that are labelled with its name.

_CELL_PREFIX = username(cell_account(""))
_IS_CELL = Named("a-named-cell", f"request.userInfo.username.startsWith({quoted(_CELL_PREFIX)})")
_CELL_NAME = Named("cell", f"request.userInfo.username.substring(size({quoted(_CELL_PREFIX)}))")
_OWN = "variables.cell"


def _not_its_own(what: str) -> str:
    return (
        f"'cell \"' + variables.cell + '\" writes only {what} that bear its name in label {SOURCE_CLUSTER}, "
        f"and {_NAME} does not'"
    )


def _own_rules(what: str, old: str) -> tuple[Rule, ...]:
    new = f"object == null || {label('object', SOURCE_CLUSTER)} == {_OWN}"
    return (Rule(new, _not_its_own(what)), Rule(f"oldObject == null || {old}", _not_its_own(what)))


_OLD = label("oldObject", SOURCE_CLUSTER)
_HOME = hub_namespace("")

_COPIES = Policy(
    "compute-cells-on-hub",
    On.HUB,
    "A cell with its own account writes and deletes only its own copies of Instances.",
    COMPUTE,
    ("instances", "instances/status"),
    (CREATE, UPDATE, DELETE),
    when=(_IS_CELL,),
    variables=(_CELL_NAME,),
    rules=(
        # Copies without a cell's name date from before the cell had one, and may be adopted.
        *_own_rules(
            "Instances",
            f"{_OLD} == {_OWN} ||\n(request.operation == {quoted(UPDATE)} && {_OLD} in {list_of(['', UNNAMED])})",
        ),
        Rule(
            f"request.operation != {quoted(CREATE)} || request.namespace.startsWith({quoted(_HOME)})",
            f"'a cell creates Instances in namespaces {_HOME}<uid> only'",
        ),
    ),
)

_CLAIMS = Policy(
    "compute-cells-on-project",
    On.PROJECT,
    "A cell with its own account creates and deletes only its own claims.",
    QUOTA,
    ("resourceclaims", "resourceclaims/status"),
    (CREATE, UPDATE, DELETE),
    when=(_IS_CELL,),
    variables=(_CELL_NAME,),
    rules=_own_rules("ResourceClaims", f"{_OLD} == {_OWN}"),
)

# Management deletes only namespaces that it created.

_CREATED_BY_MANAGEMENT = all_of(
    f"oldObject.metadata.name.startsWith({quoted(_HOME)})",
    *(f"{label('oldObject', key)} != ''" for key in (UPSTREAM_CLUSTER, UPSTREAM_NAMESPACE)),
)

_NAMESPACES = Policy(
    "compute-management-on-hub",
    On.HUB,
    "Management deletes only namespaces that it created for the namespaces of projects.",
    "",
    ("namespaces",),
    (DELETE,),
    when=(Named("management", f"request.userInfo.username == {quoted(username(MANAGEMENT))}"),),
    rules=(Rule(_CREATED_BY_MANAGEMENT, f"'namespace {_NAME} was not made for the namespace of a project'"),),
)

POLICIES: tuple[Policy, ...] = (_DEPLOYMENTS, _CLAIMS, _COPIES, _NAMESPACES)


def files() -> dict[str, str]:
    """Manifests by file name, one file per plane."""
    planes = dict.fromkeys(policy.on for policy in POLICIES)
    return {
        f"{on.value}.yaml": "---\n".join(_manifest(policy) for policy in POLICIES if policy.on is on) for on in planes
    }


def _manifest(policy: Policy) -> str:
    """Formatted by hand, so that expressions stay readable."""
    policy_lines = [
        f"# {policy.why}",
        "apiVersion: admissionregistration.k8s.io/v1",
        "kind: ValidatingAdmissionPolicy",
        f"metadata: {{name: {policy.name}}}",
        "spec:",
        "  failurePolicy: Fail",
        "  matchConstraints:",
        "    resourceRules:",
        f'    - apiGroups: ["{policy.group}"]',
        '      apiVersions: ["*"]',
        f"      operations: [{', '.join(policy.operations)}]",
        f"      resources: [{', '.join(policy.resources)}]",
        *_named("matchConditions", policy.when),
        *_named("variables", policy.variables),
        "  validations:",
        *(line for rule in policy.rules for line in _rule(rule)),
    ]
    binding_lines = [
        "apiVersion: admissionregistration.k8s.io/v1",
        "kind: ValidatingAdmissionPolicyBinding",
        f"metadata: {{name: {policy.name}}}",
        f"spec: {{policyName: {policy.name}, validationActions: [Deny]}}",
    ]
    return "\n".join([*policy_lines, "---", *binding_lines, ""])


def _named(part: str, expressions: Sequence[Named]) -> Iterator[str]:
    if expressions:
        yield f"  {part}:"
    for named in expressions:
        yield f"  - name: {named.name}"
        yield from _block("    expression", named.expression)


def _rule(rule: Rule) -> Iterator[str]:
    yield from _block("  - expression", rule.expression)
    yield from _block("    messageExpression", rule.message)
    yield "    reason: Forbidden"


def _block(key: str, text: str) -> Iterator[str]:
    yield f"{key}: |-"
    yield indent(text, "      ")
