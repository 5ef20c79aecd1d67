"""The API server of the cluster that this process runs in. Entry point: `in_cluster`."""

from collections.abc import Mapping
from pathlib import Path

from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, text_of

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster(environ: Mapping[str, str], folder: Path = _SERVICE_ACCOUNT) -> Endpoint:
    """The endpoint with the service account of the pod, whose token file is rotated by the kubelet."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise KubeconfigError(
            "this process does not run in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; "
            "name a kubeconfig"
        )
    token = folder / "token"
    text_of(str(token), "the service account token")
    namespace = folder / "namespace"
    return Endpoint(
        f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_pem=text_of(str(folder / "ca.crt"), "the service account's certificate authority"),
        token_file=str(token),
        namespace=text_of(str(namespace), "the service account's namespace").strip() if namespace.exists() else "",
    )
