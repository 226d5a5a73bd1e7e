"""Container runtimes: one module each; ``runtime_table.py`` alone names them."""
