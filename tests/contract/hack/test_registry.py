"""Image and chart of a release in a registry, with the commands of docs/admins/releases.md."""

import json
import tarfile
from hashlib import sha256

import pytest
import yaml

import release
from bridge import __version__
from cluster.systems import debian, image, images, install, oci
from cluster.systems.registry import Registry
from tests.contract.hack.conftest import clean, run, successful
from tests.docs_blocks import Shell, command

pytestmark = pytest.mark.real
PAGE = "admins/releases.md"
URL = "https://x.example"


def resaved(archive, target, architecture):
    """Write the image of an archive like ``docker save`` for another architecture: the configuration says so."""
    with tarfile.open(archive) as source:
        config = json.load(image.member(source, "main.json")) | {"architecture": architecture}
        (target / "main.json").write_text(json.dumps(config))
        source.extractall(target, ["layer.tar", "manifest.json"], filter="data")
    with tarfile.open(target / "image.tar", "w") as written:
        for name in ("main.json", "layer.tar", "manifest.json"):
            written.add(target / name, name)
    return target / "image.tar"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files of image and chart of a release, with busybox in place of the image's programs, and SHA256SUMS."""
    folder, work = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("work")
    debian.ensure_machine("busybox", "skopeo")
    images.write_busybox(work)
    images.write_archive(work / images.NAMES[0], work / "saved.tar", {"main": images.Entry(["podbridge:1"])})
    archives = []
    for architecture in image.ARCHITECTURES:
        (work / architecture).mkdir()
        archives.append(resaved(work / "saved.tar", work / architecture, architecture))
    layout = oci.Layout()
    index = oci.add_index(layout, archives, {})
    layout.write(folder / f"podbridge-image-{__version__}.oci.tar", index, __version__)
    (folder / f"podbridge-image-{__version__}.json").write_bytes(layout.blob(index))
    oci.write_chart(release.chart(work, 0, URL, URL), folder)
    sums = [f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


@pytest.fixture
def registry(tmp_path):
    with Registry(tmp_path / "registry") as started:
        yield started


@pytest.fixture
def shell(files, registry):
    """A shell in the folder of the files. Programs verify the registry's certificate."""
    names = {"VERSION": __version__}
    return Shell(clean() | registry.env | {"REGISTRY": f"{registry.host}/podbridge"}, files, names)


@pytest.fixture
def helm(registry, tmp_path):
    program = str(install.binaries(install.HELM.packages)["helm"])
    homes = {f"HELM_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    values = ("--set", "config.slurmRestApi=http://127.0.0.1:6820", "--set", "config.nodes.taint=false")

    def template(chart, *more):
        return run(program, "template", chart, *values, *more, **homes, **registry.env)

    return template


def test_a_copied_release_is_verified_and_installed_by_its_digests(shell, helm, files):
    shell.run(command(PAGE, "skopeo copy"))
    checked = shell.run(command(PAGE, "skopeo inspect")).splitlines()
    assert sum(line.endswith(".json: OK") for line in checked) == 2
    digests = {
        kind: f"sha256:{sha256((files / f'podbridge-{kind}-{__version__}.json').read_bytes()).hexdigest()}"
        for kind in ("image", "chart")
    }
    registry = shell.env["REGISTRY"]
    chart = f"oci://{registry}/charts/podbridge"
    more = ("--set", f"image.registry={registry}", "--set", f"image.digest={digests['image']}")
    for place in (chart, f"{chart}@{digests['chart']}"):
        done = helm(place, *more)
        assert done.returncode == 0, done.stderr
        found = {
            container["image"]
            for manifest in yaml.safe_load_all(done.stdout)
            if manifest and manifest["kind"] == "Deployment"
            for container in manifest["spec"]["template"]["spec"]["containers"]
        }
        assert found == {f"{registry}/podbridge@{digests['image']}"}
    refused = helm(f"{chart}@sha256:{'0' * 64}", *more)
    assert refused.returncode == 1


def test_another_image_under_the_tag_is_found(shell, files, registry):
    """The signed digests do not depend on what the registry says."""
    shell.run(command(PAGE, "skopeo copy"))
    index = json.loads((files / f"podbridge-image-{__version__}.json").read_text())
    only = f"docker://{registry.host}/podbridge/podbridge"
    source = f"{only}@{index['manifests'][0]['digest']}"
    successful("skopeo", "copy", "--quiet", source, f"{only}:{__version__}", **registry.env)
    with pytest.raises(AssertionError, match=rf"podbridge-image-{__version__}\.json: FAILED"):
        shell.run(command(PAGE, "skopeo inspect"))
    shell.run(command(PAGE, "skopeo copy"))
    assert "FAILED" not in shell.run(command(PAGE, "skopeo inspect"))


def test_a_client_without_the_certificate_is_refused(shell):
    shell.env = {key: value for key, value in shell.env.items() if key != "SSL_CERT_FILE"}
    with pytest.raises(AssertionError, match="certificate"):
        shell.run(command(PAGE, "skopeo copy"))
