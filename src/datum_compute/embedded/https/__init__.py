"""The engine over HTTPS: authentication, discovery, OpenAPI and tables."""
