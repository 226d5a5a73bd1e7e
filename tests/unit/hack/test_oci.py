"""OCI layouts of a release: digests, platforms, and the media types of Helm."""

import gzip
import io
import json
import re
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import release
from cluster import places
from cluster.errors import ClusterError
from cluster.systems import oci

CHART = places.CHECKOUT / "helm/podbridge"
LAYERS = st.lists(st.binary(max_size=40), min_size=1, max_size=3)


def archive(file, members):
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file


def saved(file, architecture, layers, wrong=False):
    """Write an archive like ``docker save``; with ``wrong``, its last layer is not that of the configuration."""
    found = {f"{number}.tar": content for number, content in enumerate(layers)}
    diffs = [f"sha256:{sha256(content).hexdigest()}" for content in layers]
    if wrong:
        diffs[-1] = "sha256:" + "0" * 64
    config = {"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": diffs}}
    manifest = [{"Config": "c.json", "RepoTags": ["a:1"], "Layers": list(found)}]
    members = {"c.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode(), **found}
    return archive(file, members)


class Reader:
    """The content of a layout, as a client reads it: by digest, which is checked."""

    def __init__(self, file):
        with tarfile.open(file) as tar:
            self.files = {member.name: tar.extractfile(member).read() for member in tar}
        assert json.loads(self.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        (self.top,) = json.loads(self.files["index.json"])["manifests"]

    def blob(self, descriptor):
        algorithm, _, digest = descriptor["digest"].partition(":")
        content = self.files[f"blobs/{algorithm}/{digest}"]
        assert (sha256(content).hexdigest(), len(content)) == (digest, descriptor["size"])
        return content


@given(LAYERS, LAYERS)
def test_an_index_leads_to_the_layers_of_each_architecture(first, second):
    with tempfile.TemporaryDirectory() as folder:
        wanted = {"amd64": first, "arm64": second}
        files = [saved(Path(folder) / name, name, layers) for name, layers in wanted.items()]
        written = []
        for name in ("one", "two"):
            layout = oci.Layout()
            layout.write(Path(folder) / name, oci.add_index(layout, files, {"a": "b"}), "1", "docker.io/library/a:1")
            written.append((Path(folder) / name).read_bytes())
        reader = Reader(Path(folder) / "one")
    assert written[0] == written[1]
    assert reader.top["mediaType"] == oci.INDEX
    assert reader.top["annotations"]["org.opencontainers.image.ref.name"] == "1"
    found, reached = {}, 0
    for manifest in json.loads(reader.blob(reader.top))["manifests"]:
        content = json.loads(reader.blob(manifest))
        config = json.loads(reader.blob(content["config"]))
        assert manifest["platform"] == {"architecture": config["architecture"], "os": "linux"}
        found[config["architecture"]] = [gzip.decompress(reader.blob(layer)) for layer in content["layers"]]
        reached += 2
    assert found == wanted
    layers = len({content for each in wanted.values() for content in each})
    assert len([name for name in reader.files if name.startswith("blobs/")]) == 1 + reached + layers, "no other blob"


def test_a_layer_that_is_not_that_of_the_configuration_is_refused(tmp_path):
    with pytest.raises(ClusterError, match=r"the layer 1\.tar is not sha256:0000"):
        oci.add_index(oci.Layout(), [saved(tmp_path / "a", "arm64", [b"a", b"b"], wrong=True)], {})


def test_a_chart_has_the_media_types_of_helm_and_its_own_metadata(tmp_path):
    meta = {"apiVersion": "v2", "name": "pod-bridge", "version": "1.2.3", "description": "A chart"}
    packaged = tmp_path / "pod-bridge-1.2.3.tgz"
    archive(tmp_path / "plain", {"pod-bridge/Chart.yaml": yaml.safe_dump(meta).encode()})
    packaged.write_bytes(gzip.compress((tmp_path / "plain").read_bytes(), mtime=0))
    oci.write_chart(packaged, tmp_path)
    reader = Reader(tmp_path / "pod-bridge-chart-1.2.3.oci.tar")
    assert reader.blob(reader.top) == (tmp_path / "pod-bridge-chart-1.2.3.json").read_bytes()
    manifest = json.loads(reader.blob(reader.top))
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    assert json.loads(reader.blob(manifest["config"])) == meta
    (layer,) = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    assert reader.blob(layer) == packaged.read_bytes()


def test_a_release_names_its_own_addresses_in_the_chart():
    text = release.with_addresses((CHART / "Chart.yaml").read_text(), "https://x.example/p", "https://y.example/d/")
    meta = yaml.safe_load(text)
    assert meta["icon"] == "https://y.example/d/icon.svg"
    assert (meta["home"], meta["sources"]) == ("https://x.example/p", ["https://x.example/p"])
    assert meta["maintainers"][0]["url"] == "https://x.example/p"
    assert yaml.safe_load(meta["annotations"]["artifacthub.io/links"])[0]["url"] == "https://x.example/p"
    assert "example.org" not in "".join(line for line in text.splitlines() if not line.startswith("#"))


def test_the_chart_names_its_custom_resource_and_its_licence():
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    (named,) = yaml.safe_load(annotations["artifacthub.io/crds"])
    (text,) = (
        text
        for text in (file.read_text() for file in (CHART / "templates").rglob("*.yaml"))
        if "\nkind: CustomResourceDefinition\n" in text
    )
    kind = re.search(r"(?m)^  names: \{kind: (\w+),", text)[1]
    version = re.search(r"(?m)^    - name: (\w+)$", text)[1]
    name = re.search(r"(?m)^  name: (\S+)$", text)[1]
    assert (named["kind"], named["version"], named["name"]) == (kind, version, name)
    assert f'license = "{annotations["artifacthub.io/license"]}"' in (places.CHECKOUT / "pyproject.toml").read_text()
