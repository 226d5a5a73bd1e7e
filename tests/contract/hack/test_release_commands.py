"""The commands of the documentation that install the wheel, and a whole signed release."""

import shutil
import sys

import pytest

from bridge import __version__
from cluster import places
from cluster.systems import image
from cluster.systems.registry import Registry
from tests.contract.hack.conftest import clean, successful
from tests.docs_blocks import DOCS, Shell, blocks, command, commands

pytestmark = pytest.mark.real


@pytest.mark.parametrize("page", ["sites/sites", "sites/plugin"])
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
@pytest.mark.timeout(1500)  # it builds the release twice, and the image for two architectures
def test_a_signed_release_is_verified_by_the_commands_of_its_page(releasable, tmp_path):
    key = tmp_path / "key"
    successful("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "release@podbridge", "-f", key)
    where = ("--homepage", "https://x.example", "--url", "https://x.example")
    successful(releasable / "hack/release.sh", __version__, "--image", *where, "--sign", key)
    target = releasable / "build/release" / __version__
    files = {file.name for file in target.iterdir()}
    assert files == {
        f"podbridge-{__version__}-py3-none-any.whl",
        f"podbridge-{__version__}.tar.gz",
        f"podbridge-{__version__}.tgz",
        f"podbridge-docs-{__version__}.tar.gz",
        f"kubectl-podbridge-{__version__}.tar.gz",
        "podbridge.yaml",
        "icon.svg",
        *(f"podbridge-{kind}-{__version__}.{end}" for kind in ("image", "chart") for end in ("json", "oci.tar")),
        *(f"podbridge-image-{__version__}-{architecture}.cdx.json" for architecture in image.ARCHITECTURES),
        "SHA256SUMS",
        "SHA256SUMS.sig",
    }
    downloaded = tmp_path / "downloaded"
    shutil.copytree(target, downloaded)
    public = key.with_suffix(".pub").read_text()
    (downloaded / "allowed_signers").write_text(f"release@podbridge {public}")
    signature, again = (command("admins/releases.md", text) for text in ("ssh-keygen -Y verify", "release.sh VERSION"))
    sums, registry_sums = (block for block in commands("admins/releases.md") if "sha256sum --check" in block.text)
    there = Shell(clean(), downloaded, {"VERSION": __version__, "URL": "https://x.example"})
    assert "Good" in there.run(signature)
    checked = there.run(sums).splitlines()
    assert len(checked) == len(files) - 2
    assert all(line.endswith(": OK") for line in checked)
    Shell(clean(), releasable, there.replaced, timeout=600).run(again)
    assert (target / "SHA256SUMS").read_bytes() == (downloaded / "SHA256SUMS").read_bytes()
    with Registry(tmp_path / "registry") as registry:
        there.env = clean() | registry.env | {"REGISTRY": f"{registry.host}/podbridge"}
        successful(releasable / "hack/release.sh", "--push", there.env["REGISTRY"], __version__, **registry.env)
        assert "FAILED" not in there.run(registry_sums)
    with (downloaded / "podbridge.yaml").open("a") as manifest:
        manifest.write("# another\n")
    with pytest.raises(AssertionError, match=r"podbridge\.yaml: FAILED"):
        there.run(sums)
    with (downloaded / "SHA256SUMS").open("a") as changed:
        changed.write("x\n")
    with pytest.raises(AssertionError, match="incorrect signature"):
        there.run(signature)


def test_a_signature_of_another_key_or_of_other_digests_is_refused(tmp_path):
    """The documented command, with each of the four that it compares: key, name of the signer, purpose and digests."""
    for name in ("key", "other"):
        successful("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name)
    sums, allowed = tmp_path / "SHA256SUMS", tmp_path / "allowed_signers"
    verify = command("admins/releases.md", "ssh-keygen -Y verify")
    there = Shell(clean(), tmp_path)

    def sign(key="key", purpose="podbridge-release", signer="release@podbridge"):
        sums.write_text("0  a\n")
        sums.with_suffix(".sig").unlink(missing_ok=True)
        successful("ssh-keygen", "-q", "-Y", "sign", "-f", tmp_path / key, "-n", purpose, sums)
        allowed.write_text(f"{signer} {(tmp_path / 'key.pub').read_text()}")

    sign()
    assert 'Good "podbridge-release" signature' in there.run(verify)
    sums.write_text("1  a\n")
    with pytest.raises(AssertionError, match="incorrect signature"):
        there.run(verify)
    for changes in ({"key": "other"}, {"purpose": "git"}, {"signer": "mallory@podbridge"}):
        sign(**changes)
        with pytest.raises(AssertionError, match="Could not verify signature"):
            there.run(verify)
