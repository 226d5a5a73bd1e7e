"""Pods under the converted configuration of the interLink Slurm plugin, in real containers of apptainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.script.references import Objects
from bridge.site.interlink_slurm.conversion import convert
from cluster.polling import eventually
from tests.contract.script.containers import HOMES, Containers
from tests.contract.script.test_variables import NASTY
from tests.pod_specs import EMPTY, mount, spec_of, volumes

pytestmark = pytest.mark.real

CONFIG = """\
DataRootFolder: /jobs/
CommandPrefix: "export BY_PREFIX=yes &&"
SingularityPath: apptainer
ExportPodData: true
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Containers]:
    home = HOMES["apptainer"]()
    made = Containers("apptainer", home)
    yield made
    made.close()
    home.close()


def settings(text: str = CONFIG) -> dict[str, Any]:
    values = convert(text, "SlurmConfig.yaml", {}, "/").values
    return {name: values[name] for name in ("apptainer", "limits", "volumes", "header", "footer")}


def test_a_pod_as_under_the_plugin(site: Containers) -> None:
    """The default options, environment byte by byte, volumes, probes that are ignored, and commands before the job."""
    values = {name: value for name, value in NASTY.items() if len(value) < 50_000 and "\r" not in value}
    env = [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items()]
    mounts = [mount("disk", "/disk"), mount("c", "/c")]
    main = site.shell("cat /disk/x /c/key; echo > /tmp/mine && echo tmp; env -0", volumeMounts=mounts, env=env)
    main |= {"livenessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1}, "name": "main"}
    spec = spec_of(
        main,
        init=[site.shell("echo first >/disk/x", name="init", volumeMounts=mounts[:1])],
        **volumes(disk=EMPTY, c={"configMap": {"name": "c"}}),
    )
    annotations = {
        "slurm-job.vk.io/pre-exec": 'echo "$BY_PREFIX $POD_IP" >before; false',
        "slurm-job.vk.io/singularity-commands": "echo also >>also",
        "interlink.eu/pod-ip": "10.1.2.3",
        "slurm-job.vk.io/singularity-options": "--cleanenv",
        "slurm-job.vk.io/flags": "-t 5",
    }
    objects = Objects(configmaps={"c": {"data": {"key": "key\n"}}})
    job = site.run(spec, config=settings(), annotations=annotations, objects=objects)
    assert job.ended()["exitCode"] == 0, job.everything()
    text, _, rest = job.log().partition("tmp\n")
    assert text.endswith("first\nkey\n")
    got = dict(pair.split("=", 1) for pair in rest.split("\0") if "=" in pair)
    assert {name: got.get(name) for name in values} == values
    assert (job.folder / "before").read_text() == "yes 10.1.2.3\n"
    assert (job.folder / "also").read_text() == "also\n"


def test_the_tunnel_of_tsocks_opens_before_the_pod_and_ends_with_it(site: Containers) -> None:
    """ssh is a program that accepts connections, as its proxy would; what matters is how the job uses it."""
    folder = site.own.folder
    ssh = folder / "bin"
    ssh.mkdir(exist_ok=True)
    program = ssh / "ssh"
    program.write_text(
        '#!/bin/bash\necho "$$ $*" >"$PWD/ssh.called"\n'
        "while [[ $1 != -D ]]; do shift; done\n"
        "exec perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => shift, Listen => 5, ReuseAddr => 1) "
        'or die; while ($c = $s->accept) { close $c }\' "$2"\n'
    )
    program.chmod(0o755)
    config = settings(f"{CONFIG}Tsocks: true\nTsocksPath: $WORK/libtsocks.so\nTsocksLoginNode: me@login01\n")
    config["header"] = f"PATH={ssh}:$PATH\n{config['header']}export > seen\n"
    job = site.run({"containers": [site.shell("echo ran")]}, config=config, environment={"WORK": str(folder)})
    assert job.log().endswith("ran\n"), job.everything()
    pid, _, words = (job.folder / "ssh.called").read_text().partition(" ")
    assert "-N" in words and words.rstrip().endswith("me@login01")
    conf = (job.folder / "tsocks.conf").read_text()
    assert f"-D 127.0.0.1:{conf.split()[-1]} " in words
    seen = (job.folder / "seen").read_text()
    assert f'LD_PRELOAD="{folder}/libtsocks.so"' in seen and f'TSOCKS_CONF_FILE="{job.folder}/tsocks.conf"' in seen

    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of ssh", 10)
