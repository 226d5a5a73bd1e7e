"""The commands of the documentation that install the wheel, and a whole signed release, without the image."""

from __future__ import annotations

import shutil
import sys

import pytest

from bridge import __version__
from cluster import places
from tests.contract.hack.conftest import clean, successful
from tests.docs_blocks import DOCS, Shell, blocks, command

pytestmark = pytest.mark.real


@pytest.mark.parametrize("page", ["sites/sites", "sites/plugin", "sites/interlink-slurm"])
def test_the_command_of_a_page_installs_the_wheel(wheel, tmp_path, page):
    """In the directory of the wheel; without the packages that podbridge needs, since an index has these."""
    (block,) = (each for each in blocks(DOCS / f"{page}.md") if "pip install" in each.text)
    shutil.copy(wheel, tmp_path)
    environ = clean() | {"HOME": str(tmp_path), "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_COMPILE": "1"}
    Shell(environ, tmp_path, {"python3 ": f"{sys.executable} "}).run(block)
    python = tmp_path / "podbridge/bin/python"
    assert successful(python, "-c", "import bridge; print(bridge.__version__)").strip() == __version__


@pytest.fixture
def releasable(tmp_path):
    """A clone whose changelog has the version with a date, as after the steps of docs/developers/releasing.md."""
    checkout = tmp_path / "clone"
    git = ("git", "-C", checkout, "-c", "user.name=release", "-c", "user.email=release@podbridge")
    successful("git", "clone", "--quiet", "--no-local", places.CHECKOUT, checkout)
    changelog = checkout / "CHANGELOG.md"
    dated = f"## [Unreleased]\n\n## [{__version__}] - 2026-11-30\n"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", dated, 1))
    successful(*git, "commit", "--quiet", "--all", "--message", f"Release {__version__}")
    return checkout


@pytest.mark.long_only
@pytest.mark.timeout(900)  # it builds the release twice
def test_a_signed_release_is_verified_by_the_commands_of_its_page(releasable, tmp_path):
    key = tmp_path / "key"
    successful("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "release@podbridge", "-f", key)
    successful(releasable / "hack/release.sh", __version__, "--homepage", "https://x.example", "--sign", key)
    target = releasable / "build/release" / __version__
    files = {file.name for file in target.iterdir()}
    assert files == {
        f"podbridge-{__version__}-py3-none-any.whl",
        f"podbridge-{__version__}.tar.gz",
        f"podbridge-{__version__}.tgz",
        f"podbridge-docs-{__version__}.tar.gz",
        f"kubectl-podbridge-{__version__}.tar.gz",
        "podbridge.yaml",
        "SHA256SUMS",
        "SHA256SUMS.sig",
    }
    downloaded = tmp_path / "downloaded"
    shutil.copytree(target, downloaded)
    public = key.with_suffix(".pub").read_text()
    (downloaded / "allowed_signers").write_text(f"release@podbridge {public}")
    texts = ("ssh-keygen -Y verify", "sha256sum", "release.sh VERSION --homepage")
    signature, sums, again = (command("admins/releases.md", text) for text in texts)
    there = Shell(clean(), downloaded)
    assert "Good" in there.run(signature)
    checked = there.run(sums).splitlines()
    assert len(checked) == len(files) - 2
    assert all(line.endswith(": OK") for line in checked)
    Shell(clean(), releasable, timeout=600).run(again, {"VERSION": __version__, "URL": "https://x.example"})
    assert (target / "SHA256SUMS").read_bytes() == (downloaded / "SHA256SUMS").read_bytes()
    with (downloaded / "podbridge.yaml").open("a") as manifest:
        manifest.write("# another\n")
    with pytest.raises(AssertionError, match=r"podbridge\.yaml: FAILED"):
        there.run(sums)
    with (downloaded / "SHA256SUMS").open("a") as changed:
        changed.write("x\n")
    with pytest.raises(AssertionError):
        there.run(signature)
