"""Random pods whose texts hold what container runtimes give a meaning to, and what a site says to them."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from bridge.script.references import Objects
from tests.pod_specs import spec_of
from tests.unit.script.pods import UID

PIECES = (
    ":", ",", "^", "=", " ", "\t", "\n", "\r", "\\", '"', "'", "#", "%", "$", "*", "[", "]", "{", "}", ";", "|", "~",
    "@", "+", "-", ".", "..", "/", "\u00a0", "ä", "\x7f", "/etc", "/home/site", ",/home/site", ":/home/site",
    "^/home/site", ":rw", ":ro", ":O", "id=1", "image-src=/", "none", "x-create=dir", "rbind", "--bind", "--bind=/:/x",
    "--privileged", "-v", "--", "$(touch x)", "`x`", "${HOME}", "$(V)", "$$", '["sh"]', "[]", "null", "\\040", "PATH",
    "HOME", "LD_PRELOAD", "APPTAINER_BIND", "SINGULARITYENV_X", "CH_X", "ENROOT_X", "BASH_ENV", "BASH_FUNC_x%%",
    "docker://", "instance://", "host:", "a", "b", "sub", "x.y",
)  # fmt: skip
RUNTIMES = ("apptainer", "podman", "enroot", "charliecloud")
SCRATCH = "/scratch,/home:x^y"
HOST_PATHS = ["/data", "/data/in:ner", "/o,th^er:/x"]


def site(runtime: str, rng: random.Random) -> dict[str, Any]:
    """Return a BuildConfig. Nothing is allowed by which the site trusts its pods with options."""
    prefixes = ["docker://", "docker://registry.example/x", ""]
    # without a prefix, apptainer and enroot have no image of a plain name
    weights = [1, 1, 0.2 if runtime in ("apptainer", "enroot") else 1]
    return {
        "runtime": {"kind": runtime, "image_prefix": rng.choices(prefixes, weights)[0]},
        "volumes": {
            "host_paths": rng.choice([HOST_PATHS, ["/"]]),
            "cvmfs_path": "/cvmfs/a,b",
            "image_paths": ["/images"],
            "scratch_in_job_folder": rng.random() < 0.5,
            "scratch_area": SCRATCH,
        },
        "limits": {"allow_fuse": True},
        **(
            {"apptainer": {"fuse_mode": rng.choice(["container", "host", "host-privileged"])}}
            if runtime == "apptainer"
            else {}
        ),
    }


def each_field(piece: str) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Return functions that put a piece of text into one field of :func:`ordinary` each."""

    def of_container(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        return lambda pod: change(pod["spec"]["containers"][0])

    def of_mount(name: str, **values: str) -> Callable[[dict[str, Any]], None]:
        place = {"name": name, "mountPath": f"/{name}{len(values)}", **values}
        return of_container(lambda container: container["volumeMounts"].append(place))

    for text in (f"x{piece}/y", f"x{piece}"):
        yield of_mount("e", mountPath=f"/e/{text}")
        for name in "cehv":
            yield of_mount(name, subPath=text)
        yield of_mount("e", subPathExpr=text, mountPath=f"/expr/{text}")
        yield lambda pod, text=text: pod["spec"]["volumes"][0]["configMap"]["items"][0].update(path=text)
        yield lambda pod, text=text: pod["spec"]["volumes"][4]["hostPath"].update(path=f"/data/{text}")
        yield lambda pod, text=text: pod["metadata"]["annotations"].update(
            {"slurm-job.vk.io/job-workdir": f"/data/{text}"}
        )
        yield of_container(lambda container, text=text: container.update(workingDir=f"/w/{text}"))
        yield of_container(lambda container, text=text: container.update(terminationMessagePath=f"/t/{text}"))
        yield of_container(lambda container, text=text: container.update(image=text))
        yield of_container(lambda container, text=text: container["env"].append({"name": text, "value": text}))
    for text in (f"/tmp{piece}x", f"/x{piece}/tmp{piece}x"):
        yield of_mount("e", mountPath=text)
    for text in (piece, piece * 3000):
        yield of_container(lambda container, text=text: container["args"].append(text))
        yield of_container(lambda container, text=text: container.update(command=[text]))
        yield of_container(lambda container, text=text: container["env"].append({"name": "W", "value": text}))
        yield of_container(lambda container, text=text: container["env"].append({"name": text, "value": "x\ny"}))
    yield lambda pod: pod["metadata"]["annotations"].update({"slurm-job.vk.io/image-root": f"docker://x/{piece}/"})


def ordinary() -> tuple[dict[str, Any], Objects]:
    """Return a pod without hostile texts, for :func:`each_field`."""
    pods = Pods(0)
    pods.text = lambda usual, odds=0: usual  # type: ignore[method-assign]
    pods.path = pods.text  # type: ignore[method-assign]
    pods.hostile = lambda: "text"  # type: ignore[method-assign]
    pod, objects = pods.pod()
    pod["metadata"]["annotations"] = {}
    pod["spec"].update(
        initContainers=[], containers=[pods.container("main") | {"volumeMounts": [], "securityContext": {}}]
    )
    return pod, objects


class Pods:
    """Makes pods; most texts are ordinary, so that most pods have only one or two that are not.

    Most pods get as far as a command line: of the texts that every hub refuses, most are made ones that it accepts.
    """

    def __init__(self, seed: int, runtime: str = "") -> None:
        self.rng = random.Random(seed)
        self.runtime = runtime

    def hostile(self) -> str:
        return "".join(self.rng.choice(PIECES) for _ in range(self.rng.randint(1, 4)))

    def text(self, usual: str, odds: float = 0.08) -> str:
        return self.hostile() if self.rng.random() < odds else usual

    def long(self) -> str:
        """Return a text that is too long for programs which read lines."""
        text = self.hostile()
        return text * (9000 // len(text))

    def tame(self, text: str, refused: str, usual: str) -> str:
        """Return the text, mostly without the characters that match ``refused``."""
        return text if text == usual or self.rng.random() < 0.15 else re.sub(refused, "", text) or usual

    def name(self, usual: str) -> str:
        """Return the name of a variable; an API server allows no other characters."""
        text = re.sub(r"[^ -~]|=", "", self.text(usual, 0.15)) or usual
        return self.tame(text, r"^[0-9]+|\W" if self.runtime == "enroot" else "^$", usual)

    def place(self, usual: str, odds: float = 0.1) -> str:
        """Return where something is mounted."""
        path = self.tame(self.path(usual, odds), r"[:,^\"\\\x00-\x1f\x7f]|\.\.|\s+$", usual)
        return path if path.startswith("/") or self.rng.random() < 0.1 else f"/{path}"

    def image(self, usual: str) -> str:
        return self.tame(self.text(usual, 0.1), r"[^A-Za-z0-9_./:@+#%=~-]|^\W+|\.\.", usual)

    def path(self, usual: str, odds: float = 0.05) -> str:
        """Return a path; a hostile one is part of an ordinary one, as most of the others are refused."""
        if self.rng.random() >= odds:
            return usual
        return self.rng.choice([usual + self.hostile(), f"{usual}/{self.hostile()}/x", self.hostile(), usual])

    def some(self, make: Callable[[int], Any], most: int) -> list[Any]:
        return [make(number) for number in range(self.rng.randint(0, most))]

    def pod(self) -> tuple[dict[str, Any], Objects]:
        """Return a pod and the objects that it names."""
        rng = self.rng
        annotations = {"slurm-job.vk.io/job-workdir": self.path("/data/work")} if rng.random() < 0.2 else {}
        if rng.random() < 0.2:
            annotations["slurm-job.vk.io/image-root"] = self.text("docker://registry.example/", 0.1)
        volumes = [
            {"name": "c", "configMap": {"name": "c", "items": [{"key": "k", "path": self.path("it/em", 0.1)}]}},
            {"name": "s", "secret": {"secretName": "s"}},
            {"name": "e", "emptyDir": {}},
            {"name": "m", "emptyDir": {"medium": "Memory"}},
            {"name": "h", "hostPath": {"path": self.path("/data/set"), "type": self.text("", 0.02)}},
            {"name": "v", "emptyDir": {}},
            {"name": "f", "emptyDir": {}},
        ]
        if rng.random() < 0.3:
            annotations["cvmfs.vk.io/v"] = self.text("true")
        if rng.random() < 0.3:
            annotations["fuse.vk.io/f"] = self.text("mount it", 0.3)
        main = [self.container("main")]
        spec = spec_of(
            *main + self.some(lambda number: self.container(f"c{number}"), 1),
            init=self.some(lambda number: self.container(f"init{number}"), 1),
            restartPolicy="Never",
            volumes=volumes,
        )
        labels = {"l": self.hostile()}
        metadata = {
            "name": self.text("p"), "namespace": "n", "uid": UID, "annotations": annotations, "labels": labels,
        }  # fmt: skip
        data = {self.key(): self.text("value", 0.3) for _ in range(2)} | {"k": self.hostile()}
        secret = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        return {"metadata": metadata, "spec": spec}, Objects(
            configmaps={"c": {"data": data}}, secrets={"s": {"data": secret}}
        )

    def key(self) -> str:
        return self.tame(self.text("key", 0.2).replace("/", "_"), r"[^ -~]|[=\n]|^\.\.", "key")

    def container(self, name: str) -> dict[str, Any]:
        rng = self.rng
        container: dict[str, Any] = {
            "name": name,
            "image": self.image(rng.choice(["busybox", "registry.example:5000/team/tool:2", "docker://busybox"])),
            "command": [self.text("run"), *self.some(lambda _: self.text("word", 0.3), 2)],
            "args": self.some(lambda _: self.text("arg", 0.3), 2),
            "env": [
                {"name": "V", "value": self.text("value", 0.3)},
                {"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['l']"}}},
                *self.some(lambda _: {"name": self.name("X"), "value": self.hostile()}, 2),
                *([{"name": self.name("Y"), "value": self.long()}] if rng.random() < 0.05 else []),
            ],
            "volumeMounts": self.some(self.mount, 5),
        }
        if rng.random() < 0.2:
            container["envFrom"] = [{"configMapRef": {"name": "c"}, "prefix": self.text("", 0.2)}]
        if rng.random() < 0.3:
            container["workingDir"] = self.path("/work")
        if rng.random() < 0.2:
            container["terminationMessagePath"] = self.place("/dev/termination-log", 0.2)
        if rng.random() < 0.2:
            container["readinessProbe"] = {"exec": {"command": [self.text("probe", 0.3), self.hostile()]}}
        if rng.random() < 0.2:
            container["securityContext"] = {
                "runAsUser": 0 if rng.random() < (0.05 if self.runtime == "apptainer" else 0.3) else 1000,
                "readOnlyRootFilesystem": rng.random() < 0.1,
            }
        return container

    def mount(self, number: int) -> dict[str, Any]:
        rng = self.rng
        device = rng.random() < (0.02 if self.runtime == "charliecloud" else 0.2)
        place = rng.choice(
            [f"/m{number}", f"/m{number}/in/it", "/dev/shm", "/tmp", f"/dev/x{number}" if device else "/x"]
        )
        mount = {"name": rng.choice("csemhvf"), "mountPath": self.place(place), "readOnly": rng.random() < 0.3}
        kind = rng.random()
        if kind < 0.3:
            mount["subPath"] = self.path("sub", 0.2)
        elif kind < 0.5:
            mount["subPathExpr"] = self.path("of/$(V)", 0.2)
        return mount
