"""Demonstrations on real systems: ``./hack/demo.sh``."""
