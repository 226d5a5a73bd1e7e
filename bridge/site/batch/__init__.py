"""Batch systems: one module each; ``batch_table.py`` alone names them."""
