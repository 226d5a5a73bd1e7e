"""Where a file system puts the folders of jobs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bridge.site.files import keep_apart
from bridge.site.folder import Folder
from tests.contract.site.images import FILE_SYSTEMS, META, made, mounted

pytestmark = pytest.mark.real

SIZE, JOBS = 16 * 1024, 32
"""In MiB (hardly any of it is written), and how many."""


def _inodes_in_one_place(image: Path) -> int:
    """Count the inodes of a flexible block group: eight of them in an image."""
    said = subprocess.run(["dumpe2fs", "-h", image], check=True, capture_output=True, text=True).stdout
    fields = dict(re.findall(r"(.+?):\s+(.+)", said))
    return int(fields["Inodes per group"]) * int(fields["Flex block group size"])


def test_ext4_spreads_jobs_and_keeps_the_files_of_each_together(tmp_path: Path) -> None:
    image = made("ext4", tmp_path, SIZE)
    inodes = _inodes_in_one_place(image)

    def places(*paths: Path) -> set[int]:
        return {(path.stat().st_ino - 1) // inodes for path in paths}

    with mounted(image, tmp_path / "disk") as place:
        folder = Folder(place / "site")
        folder.prepare()
        folder.prepare()  # as at each start
        for number in range(JOBS):
            job = folder.job(f"job-{number}")
            job.create("true\n", META)
            job.write_id("1")
        jobs = list(folder.jobs.iterdir())
        assert len(places(*jobs)) > 4
        for job in jobs:
            assert places(*job.iterdir()) == places(job)
        elsewhere = [place / "site" / "gone" / str(number) for number in range(JOBS)]
        for path in elsewhere:
            path.mkdir()
        assert len(places(*elsewhere)) == 1  # what jobs would be without it


@pytest.mark.parametrize("kind", sorted(FILE_SYSTEMS.keys() - {"ext4"}))
def test_other_file_systems_do_not_mind(tmp_path: Path, kind: str) -> None:
    image = made(kind, tmp_path)
    with mounted(image, tmp_path / "disk") as place:
        keep_apart(place)
        (place / "job").mkdir()


@pytest.mark.parametrize("place", ["/proc", "/nowhere"])
def test_neither_do_places_that_are_none(place: str) -> None:
    keep_apart(place)
