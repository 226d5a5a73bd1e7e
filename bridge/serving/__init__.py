"""HTTPS: the server, its certificates and their rotation, health and metrics."""
