"""``podbridge check``: checks connections, permissions, versions, clocks and certificates."""
