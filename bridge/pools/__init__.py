"""Pools from the hub's side: their interface, its implementation over NATS, and their records in a store."""
