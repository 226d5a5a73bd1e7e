"""Pools as the hub sees them: the port, and its adapters."""
