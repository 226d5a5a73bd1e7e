"""A package: its cluster (a fixture of this scope) stops after the last test of this folder."""
