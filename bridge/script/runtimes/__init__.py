"""Container runtimes: one module each; ``table.py`` alone names them."""
