"""Which images a pod may name: those of registries, and those in the folders that a site keeps for images."""

import pytest

from bridge.errors import ScriptError
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from tests.unit.script.pods import pod

RUNTIMES = ("apptainer", "singularity", "podman", "enroot", "charliecloud")
VOLUMES = {"image_dir": "/srv/images", "cvmfs_unpacked_path": "/cvmfs/unpacked", "image_paths": ["/project/sif/"]}


def built(image, kind="apptainer", root="", prefix="docker://", volumes=VOLUMES):
    annotations = {"slurm-job.vk.io/image-root": root} if root else {}
    wanted = pod({"containers": [{"name": "main", "image": image, "command": ["true"]}]}, annotations=annotations)
    config = {"runtime": {"kind": kind, "image_prefix": prefix}, "volumes": volumes}
    return build(wanted, BuildConfig.model_validate(config), Objects(), "node")


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "image",
    ["/", "/home/x", "/srv/images", "/srv/images2/x", "/srv//images/./", "/etc", "/project", "/var/tmp/podbridge"],
)
def test_a_folder_of_the_site_is_no_image(kind, image):
    with pytest.raises(
        ScriptError, match=r"spec\.containers\[0\]\.image: .* below /srv/images/, /cvmfs/unpacked/, /pro"
    ):
        built(image, kind)
    with pytest.raises(ScriptError, match="allowed at this site: images below no folder, or docker://"):
        built(image, kind, volumes={})


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "image", ["/srv/images/x.sif", "/cvmfs/unpacked/lab/x:1", "/project/sif/a/b", "/project/sif", "lab/x:1"]
)
def test_images_of_the_site(kind, image):
    built(image, kind)


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize(
    "scheme", ["instance", "docker-daemon", "docker-archive", "oci", "oci-archive", "dir", "file", "dockerd", "podman"]
)
def test_schemes_are_on_a_list(kind, scheme):
    with pytest.raises(
        ScriptError, match=rf"image: the scheme {scheme}:// is not allowed at this site; allowed: docker"
    ):
        built(f"{scheme}://x", kind)
    with pytest.raises(ScriptError, match=rf"annotation slurm-job.vk.io/image-root: the scheme {scheme}://"):
        built("x", kind, root=f"{scheme}://")


@pytest.mark.parametrize("image", ["docker://x", "oras://r/x:1", "library://a/b/c", "https://r.example/x.sif"])
def test_apptainer_pulls(image):
    built(image)


@pytest.mark.parametrize("kind", ["podman", "enroot", "charliecloud"])
@pytest.mark.parametrize("image", ["oras://r/x:1", "library://a/b/c", "https://r.example/x.sif", "shub://a/b"])
def test_what_others_can_not_pull(kind, image):
    with pytest.raises(ScriptError, match="allowed: docker://"):
        built(image, kind)


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("root", ["/", "/home", "/srv", "/srv/images/..", "/etc/"])
def test_an_image_root_leads_nowhere_else(kind, root):
    with pytest.raises(ScriptError, match=r"annotation slurm-job\.vk\.io/image-root"):
        built("x", kind, root=root)


@pytest.mark.parametrize("root", ["docker://registry.example/team", "/cvmfs/unpacked/", "/project/sif"])
def test_an_image_root(root):
    assert f"IMAGE_ROOT={root}\n" in built("x", root=root).script


def test_a_prefix_of_the_site_is_a_folder_for_images():
    built("x", prefix="/shared/sif")
    built("/shared/sif/y", prefix="/shared/sif")


@pytest.mark.parametrize("prefix", ["", "docker://"])
@pytest.mark.parametrize(
    "image", ["dir:/home/x", "oci:/home/x", "oci:x", "docker-archive:/home/x.tar", "containers-storage:x", "sif:x"]
)
def test_podman_reads_no_place_of_the_machine(prefix, image):
    with pytest.raises(ScriptError, match="allowed: names with a registry"):
        built(image, "podman", prefix=prefix)
    built(f"docker.io/library/{image.partition(':')[0]}:1", "podman", prefix=prefix)
