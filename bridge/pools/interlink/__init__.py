"""Pools behind interLink's REST API: a plugin, or a remote API server."""
