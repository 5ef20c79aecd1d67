"""TLS contexts of clients. Entry point: `ClientTls`."""

import ssl

from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError
from datum_compute.kube.access.pairs import NoFolder, load_pair


class ClientTls:
    """The context for the next connection to an endpoint; a new one when the client's certificate has changed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pair = ("", "")
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: str, key: str) -> ssl.SSLContext:
        """With `insecure` the server is not verified."""
        if self._context is None or (certificate, key) != self._pair:
            try:
                self._context = _new_context(self._endpoint, certificate, key)
                self._pair = (certificate, key)
            except KubeconfigError:
                # Two files are not replaced atomically: in between, the old pair is still good.
                if self._context is None:
                    raise
        return self._context


def _new_context(endpoint: Endpoint, certificate: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=endpoint.ca_pem or None)
    except ssl.SSLError:
        raise KubeconfigError(f"the certificate authority of {endpoint.server} is not a PEM certificate") from None
    if endpoint.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        _load(context, certificate, key, endpoint.server)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str, server: str) -> None:
    try:
        load_pair(context, certificate.encode(), key.encode())
    except (ssl.SSLError, ValueError):
        raise KubeconfigError(f"the client certificate and key for {server} cannot be used together") from None
    except NoFolder as error:
        raise KubeconfigError(f"the client certificate for {server} is not loaded: {error}") from None
