"""The versions that a release compares, and the archives of a release."""

import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[3]
FILES = (
    "pyproject.toml",
    "bridge/__init__.py",
    "helm/podbridge/Chart.yaml",
    "CHANGELOG.md",
    *sorted({name for name, *_ in release._NAMED} - {"config"}),
)


@pytest.fixture
def checkout(tmp_path):
    """Copies of the files that name a version, with a dated heading in the changelog."""
    for name in FILES:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    dated = re.sub(r"(?m)^## \[Unreleased\]$", f"## [Unreleased]\n\n## [{current()}] - 2026-11-30", read(tmp_path))
    (tmp_path / "CHANGELOG.md").write_text(dated)
    return tmp_path


def read(checkout):
    return (checkout / "CHANGELOG.md").read_text()


def current():
    return release.versions()["pyproject.toml: project.version"]


def test_the_versions_of_the_files_agree():
    found = release.versions()
    del found["CHANGELOG.md: first heading with a date"]  # behind, until a release is made
    assert release.problems(current(), found) == []


def test_a_complete_release_has_no_problem(checkout):
    assert release.problems(current(), release.versions(checkout)) == []


@pytest.mark.parametrize("name", FILES)
def test_each_file_with_another_version_is_named(checkout, name):
    file = checkout / name
    file.write_text(file.read_text().replace(current(), "9.9.9"))
    lines = release.problems(current(), release.versions(checkout))
    assert lines
    assert all(line.startswith(f"{name}: ") and line.endswith(f"is 9.9.9, not {current()}") for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("image: podbridge:{}", "image: podbridge:9.9.9", "tag of the image"),
        ('version: "{}"', 'version: "9.9.9"', "label app.kubernetes.io/version"),
    ],
)
def test_one_manifest_with_another_version_is_named(checkout, old, new, what):
    file = checkout / "config" / "podbridge.yaml"
    file.write_text(file.read_text().replace(old.format(current()), new, 1))
    (line,) = release.problems(current(), release.versions(checkout))
    assert line == f"config: {what} is {current()}, 9.9.9, not {current()}"


def test_each_file_that_names_a_version_is_compared():
    """Another version of a page, or a new page, is not left out."""
    pattern = re.compile(f"{release._IMAGE}|{release._WHEEL}")
    places = [ROOT / "README.md", ROOT / "compose.yaml", *ROOT.glob("docs/**/*.md"), *ROOT.glob("hack/**/Dockerfile")]
    found = {str(place.relative_to(ROOT)) for place in places if pattern.search(place.read_text())}
    assert found == {name for name, *_ in release._NAMED} - {"config"}


def test_a_changelog_without_the_release_is_named(checkout):
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\nThe first release, 0.1.0.\n")
    (line,) = release.problems(current(), release.versions(checkout))
    assert line == f"CHANGELOG.md: first heading with a date is missing, not {current()}"


@pytest.mark.parametrize("wanted", ["v0.1.0", "0.1", "0.1.0rc1", "00.1.0", "", "0.1.0\n", "../0.1.0"])
def test_what_is_no_version_is_refused(wanted):
    (line,) = release.problems(wanted, release.versions())
    assert "allowed: MAJOR.MINOR.PATCH" in line


def test_an_archive_depends_on_names_contents_and_the_bit_to_execute_only(tmp_path):
    archives = []
    for place, mode, when in (("a", 0o600, 1_000_000_000), ("b", 0o664, 1_500_000_000)):
        folder = tmp_path / place / "site"
        for name in ("index.html", "run.sh") if place == "a" else ("run.sh", "index.html"):
            (folder / "pages").mkdir(parents=True, exist_ok=True)
            file = folder / "pages" / name
            file.write_text(name)
            file.chmod(mode | (0o100 if name == "run.sh" else 0))
            os.utime(file, (when, when))
        archives.append(tmp_path / f"{place}.tar.gz")
        release.pack(folder, archives[-1], 1_700_000_000)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        assert [(member.name, oct(member.mode), member.mtime) for member in tar] == [
            ("site/pages/index.html", "0o644", 1_700_000_000),
            ("site/pages/run.sh", "0o755", 1_700_000_000),
        ]
