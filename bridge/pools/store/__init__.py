"""The optional store of pools, in redis or in NATS. No decision depends on it."""
