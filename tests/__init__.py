"""Tests: unit, contract, e2e and chaos."""
