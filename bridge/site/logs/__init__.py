"""Logs of containers at a site."""
