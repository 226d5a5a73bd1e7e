"""The cache of pulled images: limits and removal. Jobs add images (``bridge/script/lib/cache.bash``).

``image-cache/`` in the site's directory has a directory ``<key>`` for each image, with the files ``name`` and
``image``, whose modification time is that of its last use. A running container has a hard link to ``image``. A process
that changes ``<key>`` holds the lock ``locks/<first three digits of the key>``; without a holder, ``new.*`` in it
is left from a killed pull. If ``on`` exists, jobs use the cache. ``podman/`` records the logins of the images of each
machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bridge.clock import Clock
from bridge.errors import ConfigError
from bridge.logs import kv
from bridge.site.config.site_config import Images
from bridge.site.files.atomic_files import read_some
from bridge.site.files.removal import remove_tree

log = logging.getLogger(__name__)

NAME = "image-cache"
"""Name in the site's directory, as in ``cache.bash``."""
PERIOD = 60.0
"""Seconds between two checks of the cache."""
DAY = 86400.0
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image in the cache. ``size`` in bytes; ``used_at``: last start of a container with it.

    ``in_use``: a job has a hard link to it, so its removal would free no space.
    """

    key: str
    size: int
    used_at: float
    in_use: bool


def to_evict(images: Iterable[CachedImage], now: float, most_bytes: int, most_seconds: float) -> list[str]:
    """Return the keys of the images to remove: those too old, then the least recently used until the rest fits.

    Images in use count, and are never removed. ``most_seconds`` 0: no limit.
    """
    images = list(images)
    total = sum(image.size for image in images)
    evicted = []
    for image in sorted((image for image in images if not image.in_use), key=lambda image: (image.used_at, image.key)):
        too_old = most_seconds > 0 and now - image.used_at > most_seconds
        if not too_old and total <= most_bytes:
            break
        evicted.append(image.key)
        total -= image.size
    return evicted


class ImageCache:
    """The directory ``image-cache`` of a site. The leader calls :meth:`enforce_limits`."""

    def __init__(self, folder: Path, settings: Callable[[], Images], clock: Clock) -> None:
        self.path = folder / NAME
        self._settings, self._clock = settings, clock

    def prepare(self) -> None:
        """Create what is missing; raises :class:`ConfigError` if other users own or can access the directory."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            folder_stat = self.path.lstat()
            if (
                not stat.S_ISDIR(folder_stat.st_mode)
                or folder_stat.st_uid != os.geteuid()
                or stat.S_IMODE(folder_stat.st_mode) & 0o077
            ):
                raise ConfigError(
                    f"{self.path} is no folder that user {os.geteuid()} alone can read and write",
                    hint=f"chmod 700 {self.path}, or remove it: pulled images are kept there",
                )
            (self.path / "locks").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"folder {self.path} can't be used: {error.strerror}") from error
        self._switch()

    def enforce_limits(self) -> None:
        """Remove files of killed pulls, and images above the limits."""
        settings = self._settings()
        try:
            self._switch()
            images = list(self._images())
        except OSError as error:
            log.warning("the cache of images can't be read", extra=kv(why=error))
            return
        for key in to_evict(images, self._clock.time(), settings.most_bytes, settings.cache_days * DAY):
            try:
                self._evict(key)
            except OSError as error:
                log.warning("an image was not removed from the cache", extra=kv(key=key, why=error))

    def _switch(self) -> None:
        on = self.path / "on"
        if self._settings().most_bytes > 0:
            on.touch(mode=0o600)
        else:
            on.unlink(missing_ok=True)

    def _images(self) -> Iterator[CachedImage]:
        """Return each image; remove directories without an image, and files of killed pulls in the others."""
        for key in os.listdir(self.path):
            if not _KEY.fullmatch(key):
                continue
            image = self._read_image(key)
            if image is not None:
                yield image
            if image is None or any(name.startswith("new.") for name in os.listdir(self.path / key)):
                self._clear(key)

    def _read_image(self, key: str) -> CachedImage | None:
        try:
            image_stat = os.lstat(self.path / key / "image")
        except FileNotFoundError:
            return None
        # each job that uses the image has a hard link to it: the number of links is right also after a kill
        return CachedImage(key, image_stat.st_size, image_stat.st_mtime, image_stat.st_nlink > 1)

    def _clear(self, key: str) -> None:
        with self._locked(key) as locked:
            if not locked:
                return  # a pull is in progress
            # again, with the lock: a pull may have ended since
            if self._read_image(key) is None:
                remove_tree(self.path / key)
                return
            for left in (self.path / key).glob("new.*"):
                remove_tree(left)

    def _evict(self, key: str) -> None:
        with self._locked(key) as locked:
            # again, with the lock: a job may use the image since the list was read
            image = self._read_image(key) if locked else None
            if image is None or image.in_use:
                return
            name = self._name(key)
            # a job that creates its link at this moment keeps the file; the next job pulls
            remove_tree(self.path / key)
            log.info("image removed from the cache", extra=kv(image=name, bytes=image.size))

    def _name(self, key: str) -> str:
        content = read_some(self.path / key / "name", 200)  # no FIFO or device, which a job may have put there
        return (content or b"").decode(errors="replace").strip()

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[bool]:
        """Hold the lock of an image, if it is free; yield whether it was."""
        lock = os.open(self.path / "locks" / key[:3], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
        finally:
            os.close(lock)
