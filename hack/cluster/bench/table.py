"""The table of a measurement."""

from __future__ import annotations


class Table:
    """The rows, printed one by one and all together at the end."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, what: str, figure: str, note: str = "") -> None:
        """Add a row."""
        self.rows.append((what, figure, note))
        print(f"  {what}: {figure} {note}", flush=True)

    def show(self) -> None:
        """Print the table."""
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        print()
        for row in self.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
