"""Pools with podbridge's submitter, over NATS or in this process."""
