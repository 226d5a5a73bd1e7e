"""The image: what its build depends on, the pinned base, the bill of materials."""

import importlib.util
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import places
from cluster.errors import ClusterError
from cluster.systems import image

DOCKERFILE = places.CHECKOUT / "Dockerfile"
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True)
VERSIONS = st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,2}){0,2}", fullmatch=True)


def script(name):
    spec = importlib.util.spec_from_file_location(name, places.CHECKOUT / "hack" / "image" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def instructions(word):
    """Return the arguments of all instructions of this name, continued lines joined."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return [line.split()[1:] for line in text.splitlines() if line.split()[:1] == [word]]


def copied():
    """Return the paths of the checkout that the Dockerfile copies."""
    return {name for words in instructions("COPY") if not words[0].startswith("--from") for name in words[:-1]}


def test_all_that_is_copied_changes_the_digest_and_passes_the_ignore_file(tmp_path):
    allowed = {line[1:] for line in (places.CHECKOUT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    for name in copied():
        assert (places.CHECKOUT / name).exists()
        assert any(name == above or name.startswith(f"{above}/") for above in allowed), name
        for part in (name for name in image._INPUTS):
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).touch() if not (tmp_path / part).exists() else None
        before = image.PODBRIDGE.digest(tmp_path)
        file = tmp_path / name
        if file.parent.is_file():
            file.parent.unlink()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("changed")
        assert image.PODBRIDGE.digest(tmp_path) != before, name
        file.chmod(0o755)
        changed = image.PODBRIDGE.digest(tmp_path)
        file.chmod(0o644)
        assert image.PODBRIDGE.digest(tmp_path) != changed, "modes count"


def test_the_base_is_pinned_and_the_user_is_a_number_that_is_not_root():
    (base,) = [words[0] for words in instructions("ARG") if words[0].startswith("BASE=")]
    assert re.fullmatch(r"BASE=docker\.io/library/debian:trixie-slim@sha256:[0-9a-f]{64}", base)
    assert instructions("FROM")[-1] == ["scratch"]
    ((user,),) = instructions("USER")
    assert all(part.isdigit() and int(part) > 0 for part in user.split(":"))


def test_only_packages_of_the_lock_file_are_installed_and_their_hashes_are_checked():
    text = (places.CHECKOUT / "hack/image/libraries.sh").read_text()
    assert "--require-hashes" in text and "--no-build-isolation" in text
    (install,) = [words for words in instructions("RUN") if "pip" in words]
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= set(install)


def test_the_build_stages_run_on_the_building_machine_for_each_architecture():
    (tools,) = [words for words in instructions("FROM") if words[-1] == "tools"]
    assert tools[0] == "--platform=$BUILDPLATFORM"
    for architecture in image.ARCHITECTURES:
        command = image._build_command(image.PODBRIDGE, "a:1", image.BASE, False, architecture)
        assert f"--platform=linux/{architecture}" in command
        assert f"--build-arg=BUILDPLATFORM=linux/{image.HERE}" in command


def test_an_unknown_architecture_is_refused_before_anything_is_installed(tmp_path):
    program = places.CHECKOUT / "hack/image/libraries.sh"
    command = ["sh", str(program), "riscv64", str(tmp_path / "lock"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "no architecture 'riscv64'; allowed: amd64, arm64\n"
    assert not list(tmp_path.iterdir())


def fake_skopeo(folder, answer, monkeypatch):
    program = folder / "skopeo"
    program.write_text(f"#!/bin/sh\necho \"$@\" >{folder}/asked\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_pin_writes_the_digest_of_the_registry(tmp_path, monkeypatch):
    fake_skopeo(tmp_path, "sha256:" + "5" * 64, monkeypatch)
    file = tmp_path / "Dockerfile"
    file.write_text(DOCKERFILE.read_text())
    assert image.pin(file) == "docker.io/library/debian:trixie-slim@sha256:" + "5" * 64
    assert "docker://docker.io/library/debian:trixie-slim" in (tmp_path / "asked").read_text()
    assert f"ARG BASE=docker.io/library/debian:trixie-slim@sha256:{'5' * 64}\n" in file.read_text()
    assert file.read_text().count("sha256:") == 1


def test_pin_refuses_an_answer_that_is_no_digest(tmp_path, monkeypatch):
    fake_skopeo(tmp_path, "<html>", monkeypatch)
    file = tmp_path / "Dockerfile"
    file.write_text(DOCKERFILE.read_text())
    with pytest.raises(ClusterError, match=r"debian:trixie-slim: no digest: <html>"):
        image.pin(file)
    assert file.read_text() == DOCKERFILE.read_text()
    file.write_text("FROM debian\n")
    with pytest.raises(ClusterError, match="no line ARG BASE="):
        image.pin(file)


def root_folder(folder, debian, python):
    status = folder / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for name, version in debian.items():
        fields = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nDescription: a\n folded line\n"
        (status / name).write_text(fields)
    for name, version in python.items():
        info = folder / f"usr/local/lib/python3.13/dist-packages/{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    return folder


@given(st.dictionaries(NAMES, VERSIONS, max_size=4), st.dictionaries(NAMES, VERSIONS, max_size=4), VERSIONS)
def test_the_bill_of_materials_has_every_package_once(debian, python, version):
    with tempfile.TemporaryDirectory() as folder:
        root = root_folder(Path(folder), debian, {**python, "podbridge": version})
        bill = script("sbom").bill(root)
        again = script("sbom").bill(root)
    assert json.dumps(bill) == json.dumps(again)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/podbridge@{version}"
    found = {component["purl"] for component in bill["components"]}
    wanted = {f"pkg:deb/debian/{name}@{number}?arch=amd64" for name, number in debian.items()}
    assert found == wanted | {f"pkg:pypi/{name}@{number}" for name, number in python.items() if name != "podbridge"}
    assert len({component["bom-ref"] for component in bill["components"]}) == len(bill["components"])


def test_there_is_no_bill_without_podbridge(tmp_path):
    with pytest.raises(ValueError, match="podbridge is not installed"):
        script("sbom").bill(root_folder(tmp_path, {"libc6": "2"}, {"click": "8"}))


def saved_archive(file, host, comment):
    """Write an archive like podman's: one layer, listed twice, and what differs from build to build."""
    layer = b"layer"
    config = {
        "created": "1970-01-01T00:00:00Z",
        "container": host * 3,
        "parent": f"sha256:{host}",
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": ["sha256:1", "sha256:1"]},
        "history": [{"created_by": "COPY", "comment": comment}],
        "config": {"Hostname": host, "User": "65532:65532", "Env": ["PATH=/bin"], "Cmd": ["--help"], "OnBuild": []},
    }
    manifest = [{"Config": f"{host}.json", "RepoTags": ["a:1"], "Layers": ["1.tar", "1.tar"]}]
    members = {"1.tar": layer, f"{host}.json": json.dumps(config), "manifest.json": json.dumps(manifest)}
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), 5
            archive.addfile(entry, io.BytesIO(data))
    return file


def test_two_builds_with_the_same_layers_are_the_same_archive(tmp_path):
    for name in ("one", "two"):
        saved = saved_archive(tmp_path / f"{name}.saved", name, f"FROM {name}")
        image.reproducible(saved, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    built = image.Image(tmp_path / "one", "a:1")
    assert built.size == len(b"layer")
    with tarfile.open(tmp_path / "one") as archive:
        config = json.load(archive.extractfile(f"{built.identity}.json"))
    assert config["config"] == {"User": "65532:65532", "Env": ["PATH=/bin"], "Cmd": ["--help"]}
    assert config["rootfs"]["diff_ids"] == ["sha256:1", "sha256:1"]
