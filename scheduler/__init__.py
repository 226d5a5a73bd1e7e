"""The scheduler: submits jobs for waiting pods, and binds pods to the nodes of their jobs."""
