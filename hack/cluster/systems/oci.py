"""OCI image layouts of a release: the image for all its architectures, and the Helm chart.

``python -m cluster.systems.oci image FOLDER`` builds the image for each architecture and writes its layout, its index
and a bill of materials for each architecture; ``python -m cluster.systems.oci chart CHART FOLDER`` writes the layout of
a packaged chart, and its manifest. The digest of the index or manifest is that of the image or chart in a registry.

Sources: image-spec 1.1 of the Open Container Initiative (layout, index, manifest); pkg/registry/constants.go of Helm.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import ClusterError
from cluster.steps import say
from cluster.systems import image

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CHART_CONFIG = "application/vnd.cncf.helm.config.v1+json"
CHART_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_ANNOTATION = "org.opencontainers.image"


class Layout:
    """The blobs of a layout, by digest. The same content results in the same bytes."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def add(self, kind: str, content: bytes, **fields: Any) -> dict[str, Any]:
        """Add a blob of a media type; return its descriptor with these further fields."""
        digest = hashlib.sha256(content).hexdigest()
        self._blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content), **fields}

    def add_manifest(
        self, config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], annotations: Mapping[str, str]
    ) -> dict[str, Any]:
        """Add a manifest of blobs that were added; return its descriptor."""
        content = {"config": config, "layers": layers, "annotations": annotations}
        return self.add(MANIFEST, encode({"schemaVersion": 2, "mediaType": MANIFEST, **content}))

    def blob(self, descriptor: Mapping[str, Any]) -> bytes:
        """Return the content of a blob that was added."""
        return self._blobs[descriptor["digest"].removeprefix("sha256:")]

    def write(self, archive: Path, top: Mapping[str, Any], tag: str, name: str = "") -> None:
        """Write the layout as a tar archive. Its only entry is ``top``, with a tag.

        ``name`` is that of an image with its registry, which containerd takes from the archive.
        """
        annotations = {f"{_ANNOTATION}.ref.name": tag} | ({"io.containerd.image.name": name} if name else {})
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [{**top, "annotations": annotations}]}
        files = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"}), "index.json": encode(index)}
        files |= {f"blobs/sha256/{digest}": content for digest, content in sorted(self._blobs.items())}
        with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
            for path, content in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def encode(value: Mapping[str, Any]) -> bytes:
    """Return a value as JSON, always in the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def add_image(layout: Layout, saved: Path, annotations: Mapping[str, str]) -> dict[str, Any]:
    """Add the image of an archive like ``docker save``; return the descriptor of its manifest, with the platform.

    Raise :class:`ClusterError` if a layer is not the one that the configuration names.
    """
    with tarfile.open(saved) as archive:
        (listed,) = json.load(image.member(archive, "manifest.json"))
        config = json.load(image.member(archive, listed["Config"]))
        layers = []
        for name, expected in zip(listed["Layers"], config["rootfs"]["diff_ids"], strict=True):
            content = image.member(archive, name).read()
            if f"sha256:{hashlib.sha256(content).hexdigest()}" != expected:
                raise ClusterError(f"{saved}: the layer {name} is not {expected}")
            layers.append(layout.add(IMAGE_LAYER, gzip.compress(content, 6, mtime=0)))
    manifest = layout.add_manifest(layout.add(IMAGE_CONFIG, encode(config)), layers, annotations)
    return {**manifest, "platform": {key: config[key] for key in ("architecture", "os")}}


def add_index(layout: Layout, archives: Sequence[Path], annotations: Mapping[str, str]) -> dict[str, Any]:
    """Add an index of images for different platforms; return its descriptor."""
    manifests = [add_image(layout, saved, annotations) for saved in archives]
    content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations}
    return layout.add(INDEX, encode(content))


def add_chart(layout: Layout, packaged: Path) -> dict[str, Any]:
    """Add a chart as ``helm package`` writes it; return the descriptor of its manifest."""
    with tarfile.open(packaged) as archive:
        meta = yaml.safe_load(image.member(archive, f"{chart_name(packaged)}/Chart.yaml"))
    config = layout.add(CHART_CONFIG, encode(meta))
    annotations = {
        f"{_ANNOTATION}.title": meta["name"],
        f"{_ANNOTATION}.version": meta["version"],
        f"{_ANNOTATION}.description": meta["description"],
    }
    return layout.add_manifest(config, [layout.add(CHART_LAYER, packaged.read_bytes())], annotations)


def chart_name(packaged: Path) -> str:
    """Return the name of the chart in ``NAME-VERSION.tgz``."""
    return packaged.name.removesuffix(".tgz").rpartition("-")[0]


def write_image(folder: Path) -> None:
    """Build the image for all architectures, and write its files into a folder."""
    version = image.version()
    built = {architecture: image.build(architecture=architecture) for architecture in image.ARCHITECTURES}
    layout = Layout()
    annotations = {f"{_ANNOTATION}.title": image.REPOSITORY, f"{_ANNOTATION}.version": version}
    index = add_index(layout, [each.archive for each in built.values()], annotations)
    stem = f"{image.REPOSITORY}-image-{version}"
    name = next(iter(built.values())).name
    layout.write(folder / f"{stem}.oci.tar", index, version, name)
    (folder / f"{stem}.json").write_bytes(layout.blob(index))
    for architecture, each in built.items():
        (folder / f"{stem}-{architecture}.cdx.json").write_bytes(each.read(image.SBOM))


def write_chart(packaged: Path, folder: Path) -> None:
    """Write the layout of a packaged chart and its manifest into a folder."""
    layout = Layout()
    manifest = add_chart(layout, packaged)
    name, _, version = packaged.name.removesuffix(".tgz").rpartition("-")
    stem = f"{name}-chart-{version}"
    layout.write(folder / f"{stem}.oci.tar", manifest, version)
    (folder / f"{stem}.json").write_bytes(layout.blob(manifest))


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    try:
        match list(arguments):
            case ["image", folder]:
                write_image(Path(folder))
            case ["chart", packaged, folder]:
                write_chart(Path(packaged), Path(folder))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
