"""Benchmarks: ``./hack/bench.sh``."""
