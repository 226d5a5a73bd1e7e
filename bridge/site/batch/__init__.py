"""Batch systems: one module each; ``table.py`` alone names them."""
