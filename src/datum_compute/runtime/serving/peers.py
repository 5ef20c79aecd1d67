"""What TLS says about a client. Entry point: `client_certificate`."""

import asyncio
import ssl
from typing import Any


def client_certificate(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """The extension `tls` of ASGI with the certificate that a client presented and TLS verified; empty without one."""
    connection = transport.get_extra_info("ssl_object")
    if connection is None or connection.context.verify_mode is ssl.CERT_NONE:
        return {}
    certificate = connection.getpeercert(binary_form=True)
    return {"tls": {"client_cert_chain": [ssl.DER_cert_to_PEM_cert(certificate)]}} if certificate else {}
