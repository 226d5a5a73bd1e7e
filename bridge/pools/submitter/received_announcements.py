"""The last announcement of each folder of a site, and the folder that holds the pool's jobs."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.protocol.nats.messages import Announce

_MOST_FOLDERS = 16


class ReceivedAnnouncements:
    """The announcements of one pool. A caller that changes them holds the lock of the pool; others read without it."""

    def __init__(self) -> None:
        self.folder: str | None = None
        """Id of the folder that holds the pool's jobs: of the first announcement, until another one is set."""
        self.by_folder: Mapping[str, tuple[Announce, float]] = {}
        """The last announcement for each folder id, and the monotonic time at which it arrived."""

    @property
    def last(self) -> tuple[Announce, float] | None:
        """The last announcement of the pool's folder, and the time at which it arrived."""
        return self.by_folder.get(self.folder or "")

    def add(self, announce: Announce, received_at: float) -> None:
        """Replace the announcement of its folder."""
        if self.folder is None:
            self.folder = announce.folder
        others = {folder: value for folder, value in self.by_folder.items() if folder != announce.folder}
        if len(others) >= _MOST_FOLDERS:
            del others[next(folder for folder in others if folder != self.folder)]
        # a new dict: other threads read it without the lock
        self.by_folder = {**others, announce.folder: (announce, received_at)}
