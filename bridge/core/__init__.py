"""Threads, workers, retries, isolation and caches: what each long-running process is made of."""
