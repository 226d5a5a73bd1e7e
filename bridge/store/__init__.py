"""What is kept outside of this process, in redis or in NATS: a memory, never the truth."""
