"""How a client verifies a server and shows who it is. Entry point: `client_context`."""

import os
import ssl
import tempfile
from pathlib import Path

from datum_compute.kube.kubeconfig import Endpoint, KubeconfigError


def client_context(endpoint: Endpoint) -> ssl.SSLContext:
    """A context for one endpoint. With `insecure` nothing is verified, as whoever set it wants."""
    try:
        context = ssl.create_default_context(cadata=endpoint.ca_pem or None)
    except ssl.SSLError:
        raise KubeconfigError(f"the certificate authority of {endpoint.server} is not a PEM certificate") from None
    if endpoint.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if endpoint.client_cert:
        _load_client_certificate(context, endpoint)
    return context


def _load_client_certificate(context: ssl.SSLContext, endpoint: Endpoint) -> None:
    # The library reads only files; this one is the owner's alone and lives for a moment.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "client.pem"
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "w", encoding="ascii") as pem:
            pem.write(f"{endpoint.client_key}\n{endpoint.client_cert}")
        try:
            context.load_cert_chain(file, password=lambda: "")  # a locked key is an error, never a question
        except ssl.SSLError:
            message = f"the client certificate and key for {endpoint.server} cannot be used together"
            raise KubeconfigError(message) from None
