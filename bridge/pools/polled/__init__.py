"""Pools whose sites publish nothing: podbridge polls their jobs."""
