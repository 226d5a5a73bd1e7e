"""The NATS protocol, version 1: subjects, messages, connection."""
