"""End-to-end tests on real systems."""
