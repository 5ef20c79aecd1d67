"""ASGI applications behind sockets, within limits."""
