"""Converts pods to requests to a batch system."""
