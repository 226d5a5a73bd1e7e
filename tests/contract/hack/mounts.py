"""What is mounted on this machine."""

from pathlib import Path


def mounts():
    """Lines of what is mounted, but for the disk images of other tests that run now."""
    return [line for line in Path("/proc/mounts").read_text().splitlines() if not line.startswith("/dev/loop")]
