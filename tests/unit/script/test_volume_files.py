"""The present files of a pod's volumes: those of the script, as far as their objects are known."""

import subprocess
from importlib import resources
from pathlib import Path

import pytest

from bridge.script.build import build, current_files
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import Allowance
from bridge.script.references import Objects
from bridge.script.volume_files import shown
from bridge.script.volumes import make
from tests.unit.script.pods import KINDS, OBJECTS, SITE, pod

NONE = BuildConfig.model_validate({"runtime": {"kind": "none"}})


def current(volume, configmaps=None, tokens=None, metadata=None):
    the_pod = pod({"volumes": [{"name": "v", **volume}], "containers": [{"name": "main", "image": "i"}]})
    the_pod["metadata"] |= metadata or {}
    return current_files(the_pod, NONE, Objects(configmaps or {}, {}, tokens or {}), "site")


def texts(found):
    return {path: file.data.decode() for path, file in found.files.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_script(kind):
    config = BuildConfig.model_validate(SITE)
    build(KINDS[kind], config, OBJECTS, "n")
    found = current_files(KINDS[kind], config, OBJECTS, "n")
    wanted = {file.path: file for file in make(KINDS[kind], config, OBJECTS, "n", {}, Allowance()).files}
    if config.api_server.ca is None:
        assert found.files == {path: file for path, file in wanted.items() if path not in found.kept - {*found.files}}
    assert {*found.files} | found.kept == {*wanted}
    assert not found.problems


def test_a_missing_object_keeps_the_files_of_its_volume():
    settings, extra = {"configMap": {"name": "a"}}, {"configMap": {"name": "b", "optional": True}}
    volume = {"projected": {"sources": [settings, extra]}}
    held = {"a": {"data": {"x": "1"}}, "b": {"data": {"y": "2"}}}
    assert current(volume, held).lists() == {"v": ["x", "y"]}
    for missing in ("a", "b"):
        found = current(volume, {name: each for name, each in held.items() if name != missing})
        assert len(found.files) == 1 and found.lists() == {}


def test_a_missing_key_keeps_the_files_of_its_volume_and_is_said():
    volume = {"configMap": {"name": "a", "items": [{"key": "x", "path": "x"}, {"key": "gone", "path": "y"}]}}
    found = current(volume, {"a": {"data": {"x": "1"}}})
    assert found.lists() == {} and "there is no key 'gone'" in found.problems[0]


def test_a_new_key_that_would_replace_a_directory_changes_nothing():
    nested = {"configMap": {"name": "a", "items": [{"key": "k", "path": "sub/k"}]}}
    volume = {"projected": {"sources": [nested, {"configMap": {"name": "b"}}]}}
    objects = {"a": {"data": {"k": "1"}}, "b": {"data": {"other": "2"}}}
    assert current(volume, objects).lists() == {"v": ["other", "sub/k"]}
    found = current(volume, objects | {"b": {"data": {"sub": "2"}}})
    assert (found.files, found.lists()) == ({}, {})
    assert "'sub/k' is not allowed beside the file 'sub'" in found.problems[0]


def test_tokens_and_resources_stay_until_they_are_sent():
    token = {"serviceAccountToken": {"path": "token"}}
    cpu = {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}}
    volume = {"projected": {"sources": [token, {"downwardAPI": {"items": [cpu]}}]}}
    found = current(volume)
    assert (found.files, found.lists()) == ({}, {"v": ["cpu", "token"]})
    assert texts(current(volume, tokens={("v", "token"): "new"})) == {"v/token": "new"}


def test_labels_and_annotations_follow_the_pod():
    items = [
        {"path": "all", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['tekton.dev/ready']"}},
    ]
    volume = {"downwardAPI": {"items": items}}
    metadata = {"labels": {"team": "a"}, "annotations": {"tekton.dev/ready": "READY", "other": "x"}}
    assert texts(current(volume, metadata=metadata)) == {"v/all": 'team="a"', "v/ready": "READY"}
    the_pod = pod({"volumes": [{"name": "v", **volume}], "containers": []})
    the_pod["metadata"] |= metadata
    assert shown(the_pod) == ({"team": "a"}, "READY")
    assert shown(KINDS["simple"]) == ()


def test_a_source_that_is_not_supported_is_no_error():
    """Such a pod was refused before it was submitted; its cache and its files are still looked at."""
    found = current({"projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}})
    assert found.lists() == {} and "clusterTrustBundle" in found.problems[0]


# --- the script unpacks its own files ---------------------------------------------------------------------------------
LIBRARY = str(resources.files("bridge.script") / "lib" / "volumes.bash")


def put(folder: Path, name: str, before: str = "", content: str = "b2xk") -> int:
    """Run ``put`` of the library; ``before`` runs after it has opened the file."""
    hook = f'base64() {{ {before}\n command base64 "$@"; }}' if before else ""
    script = f"umask 077\n. {LIBRARY}\n{hook}\nput {name} 444 <<<{content}"
    return subprocess.run(["bash", "-c", script], cwd=folder, check=False, timeout=30).returncode


def test_put_writes_what_nobody_has_written(tmp_path):
    assert put(tmp_path, "v/a/b") == 0
    made = tmp_path / "volumes/v/a/b"
    assert made.read_text() == "old" and made.stat().st_mode & 0o777 == 0o444


def test_put_leaves_newer_files(tmp_path):
    newer = tmp_path / "volumes/v/key"
    newer.parent.mkdir(parents=True)
    newer.write_text("new")
    assert put(tmp_path, "v/key") == 0
    assert newer.read_text() == "new"


def test_put_does_not_write_into_a_file_that_the_hub_has_put_in_place_meanwhile(tmp_path):
    assert put(tmp_path, "v/key", "echo new >volumes/v/.aside; mv -f volumes/v/.aside volumes/v/key;") == 0
    assert (tmp_path / "volumes/v/key").read_text() == "new\n"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_put_writes_no_key_that_is_gone(tmp_path, when):
    (tmp_path / "volumes/.files").mkdir(parents=True)
    if when == "before":
        (tmp_path / "volumes/.files/v").write_text("other\n-e\n")
    gone = "printf '%s\\n' other -e >volumes/.files/v;" if when == "meanwhile" else ""
    assert put(tmp_path, "v/key", gone) == 0
    assert put(tmp_path, "v/other") == 0 and put(tmp_path, "v/-e") == 0
    assert sorted(path.name for path in (tmp_path / "volumes/v").iterdir()) == ["-e", "other"]


def test_put_fails_if_it_cannot_write(tmp_path):
    (tmp_path / "volumes").mkdir()
    (tmp_path / "volumes/v").write_text("a file")
    assert put(tmp_path, "v/key") != 0
    assert put(tmp_path, "w/key", content="'not base64'") != 0
