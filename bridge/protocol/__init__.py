"""What the hub and the submitters of sites share: the vocabulary, and its transport over NATS."""
