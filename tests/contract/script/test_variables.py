"""The variables of a container, byte by byte and under every name that an API server lets through."""

import base64
import os

import pytest

from bridge.script.references import Objects
from tests.contract.script.conftest import folder_of_programs
from tests.pod_specs import EMPTY, mounts, volumes

pytestmark = pytest.mark.real

NASTY = {
    "EMPTY": "",
    "SPACE": " ",
    "SPACES": "  two  words  ",
    "NEWLINE": "one\ntwo\n",
    "ONLY_NEWLINES": "\n\n\n",
    "CARRIAGE": "a\r\nb\r",
    "TAB": "\ta\t",
    "BACKTICK": "`touch /tmp/never`",
    "DOLLAR": "$HOME ${PATH} $(NOT_SET) $(id)",
    "SINGLE": "it's ''quoted''",
    "DOUBLE": 'say "hello"',
    "BACKSLASH": "\\n \\ \\\\ \\$",
    "SEMICOLON": "; rm -rf / & | > < * ? [a-z] {a,b} ~ !",
    "UNICODE": "Grüße, 世界 \U0001f680 \u2028",
    "HEREDOC": "PODBRIDGE_END\nEOF\n",
    "HASH": "# not a comment",
    "EQUALS": "a=b=c",
    "CONTROL": "\x01\x1b[31m\x7f",
    "DASH": "-n",
    "LONG": "x" * 100_000,
}
KEPT_BY_BASH = {"UID": "77", "RANDOM": "a", "GROUPS": "g", "SHLVL": "x", "BASH_ENV": "/none", "_": "u"}


@pytest.mark.parametrize("source", ["value", "configmap", "secret"])
def test_variables_byte_by_byte(site, source):
    values = NASTY | dict.fromkeys(("NAME", "STATE", "PID", "IFS", "i", "k", "COPY", "FROM", "WORDS"), "x")
    data = {k: base64.b64encode(v.encode()).decode() for k, v in values.items()}
    container = {"name": "main", "image": "x", "command": ["/usr/bin/env", "-0"]}
    if source == "value":
        container["env"] = [{"name": k, "value": v.replace("$", "$$")} for k, v in (values | KEPT_BY_BASH).items()]
    elif source == "configmap":
        container["envFrom"] = [{"configMapRef": {"name": "c"}}]
    else:
        container["env"] = [{"name": k, "valueFrom": {"secretKeyRef": {"name": "s", "key": k}}} for k in values]
    objects = Objects(configmaps={"c": {"data": values}}, secrets={"s": {"data": data}})
    job = site.run({"containers": [container]}, objects=objects)
    assert job.pod()["phase"] == "Succeeded", job.everything()
    got = dict(pair.split("=", 1) for pair in job.log().split("\0") if pair)
    expected = dict(values)
    if source == "value":
        expected |= {k: v for k, v in KEPT_BY_BASH.items() if k != "_"}
    assert {k: got.get(k) for k in expected} == expected


FOREIGN = {
    "a.b": "dot",
    "a-b": "dash",
    "a..b": "two\nlines\n",
    "-rf": "",
    "--help": "help",
    "-e": "print 1",
    ".": "$(touch CANARY)",
    "..": "one",
    "1": "digit",
    "7up": "=a=b=",
    "it's": "it's",
    '"': '"',
    "$x": "$x",
    "$(touch${IFS}CANARY)": "`touch CANARY`",
    "`touch`": "\ntouch CANARY\n",
    "a[$(touch${IFS}CANARY)]": "subscript",
    "a;b": ";",
    "#a": "no comment",
    "a*": "star",
    "a b": "between",
    "a ": "one\ntwo",
    "#": "one\ntwo",
    "a%b": "percent %s %n",
    "~": "~",
    "\\": "\\n",
    "{a,b}": "{a,b}",
    "LONG.": "x" * 20_000,
    "CARRIAGE.": "a\r\nb\r",
    "UNICODE.": "Grüße, 世界",
}
"""Names that no shell can assign, each of which an API server lets through."""
BEFORE = {" ": "blank", " a": "before"}
"""Podman takes names without blanks before them."""


SHOW = "cat /proc/$$/environ"
"""What a shell was given, not what it hands on: most drop names that they can't assign."""


def foreign_pod(site, canary, names=FOREIGN | BEFORE):
    """A pod that shows its variables in its log, and in files of its hook and its probe; and what it is to show."""
    values = {name.replace("CANARY", canary): text.replace("CANARY", canary) for name, text in names.items()}
    command = f'until test -s /e/probe -a -s /e/hook; do sleep 0.1; done; {SHOW.replace("$", "$$")}; printf %s "$@"'
    container = site.shell(
        command,
        args=["sh", "$(a.b)$(-rf)$(--help)"],
        env=[{"name": name, "value": text.replace("$", "$$")} for name, text in values.items()],
        envFrom=[{"prefix": "p.", "configMapRef": {"name": "c"}}],
        **mounts(("e", "/e")),
        lifecycle={"postStart": {"exec": {"command": ["sh", "-c", f"{SHOW} >/e/.hook; mv /e/.hook /e/hook"]}}},
        readinessProbe={
            "exec": {"command": ["sh", "-c", f"{SHOW.replace('$', '$$')} >/e/.probe; mv /e/.probe /e/probe"]},
            "timeoutSeconds": 30,
        },
    )
    keys = {"app.ini": "[a]\nb = 'c'\n", "-": "x", "1": "", "a..b": "z"}
    expected = values | {f"p.{key}": text for key, text in keys.items()}
    spec = {**volumes(e=EMPTY), "containers": [container]}
    return spec, Objects(configmaps={"c": {"data": keys}}), expected


def check_foreign(site, **more):
    """Run such a pod: all variables are there for the container, its hook and its probe, and no text was run."""
    canary = site.home_for_host_path() / "canary"
    spec, objects, expected = foreign_pod(site, str(canary), more.pop("names", FOREIGN | BEFORE))
    kept = site.home_for_host_path()
    spec["volumes"][0] = {"name": "e", "hostPath": {"path": str(kept)}}
    config = more.pop("config", {})
    volumes = {**config.pop("volumes", {}), "host_paths": [str(kept)]}
    job = site.run(spec, objects=objects, config={**config, "volumes": volumes}, **more)
    assert job.pod()["phase"] == "Succeeded", job.everything()
    log, _, rest = job.log().rpartition("\0")
    assert rest == "dothelp"
    for shown in (log, (kept / "hook").read_bytes().decode(), (kept / "probe").read_bytes().decode()):
        got = dict(pair.split("=", 1) for pair in shown.split("\0") if pair)
        assert {name: got.get(name) for name in expected} == expected
    assert not canary.exists()
    assert not list((job.folder / "run").glob("*.env*"))
    return got


SETTERS = {"perl": {}, "python3": {"perl": "exit 1"}}


@pytest.mark.parametrize("setter", SETTERS)
def test_names_that_no_shell_assigns(site, setter):
    path = {"PATH": folder_of_programs(site, "platform-python", **SETTERS[setter])}
    misleading = {
        "PERL5OPT": "-Mnone",
        "PYTHONHOME": "/none",
        "PERL5LIB": "/none",
        "UID": "77",
        "BASH_FUNC_ls%%": "() {\n:;}",
    }
    names = FOREIGN | BEFORE | misleading
    got = check_foreign(site, names=names, environment={**path, "OF.THE.MACHINE": "kept"})
    assert got["OF.THE.MACHINE"] == "kept" and "PERL_BADLANG" not in got and "NAMESPACE" not in got
    assert got.get("LC_CTYPE") == os.environ.get("LC_CTYPE")


def test_names_that_no_shell_assigns_without_perl_and_python(ordinary):
    path = folder_of_programs(ordinary, "perl", python3="exit 1")
    env = [{"name": "a.b", "value": "x"}]
    job = ordinary.run({"containers": [ordinary.shell("echo", env=env)]}, environment={"PATH": path})
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (128, "ContainerCannotRun"), job.everything()
    assert "need perl or python3 on this machine" in job.message()
    assert ordinary.run({"containers": [ordinary.shell("echo fine")]}, environment={"PATH": path}).log() == "fine\n"


def test_no_value_is_in_a_process_list(ordinary):
    env = [{"name": name, "value": f"very-secret-{name}"} for name in ("TOKEN", "a.b")]
    told = ordinary.home_for_host_path() / "told"
    record = f'printf "%s\\n" "$0" "$@" >>{told}; exec /usr/bin/${{0##*/}} "$@"'
    path = folder_of_programs(ordinary, "", **dict.fromkeys(("perl", "env", "unshare", "setsid"), record))
    container = ordinary.shell(f"ps axww -o args; ls -m /proc/$$$$/fd; {SHOW.replace('$', '$$')}; :", env=env)
    job = ordinary.run({"containers": [container]}, environment={"PATH": path})
    listed, _, shown = job.log().rpartition(SHOW)
    assert "ps axww" in listed and "very-secret" not in listed
    assert "\n0, 1, 2\n" in job.log()
    assert "TOKEN=very-secret-TOKEN" in shown and "a.b=very-secret-a.b" in shown
    assert "/perl\n" in told.read_text() and "very-secret" not in told.read_text()


def test_variables_of_the_machine_and_of_the_pod(ordinary):
    def field(name, path):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    env = [
        field("IP", "status.podIP"),
        field("HOST_IP", "status.hostIP"),
        field("NODE", "spec.nodeName"),
        field("LABEL", "metadata.labels['app']"),
        {"name": "URL", "value": "http://$(IP):80/'x'"},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
    ]
    text = 'echo "$IP $HOST_IP $NODE $LABEL $URL $CPUS $MIB $0"'
    container = ordinary.shell(text, args=["$(IP)-$(NODE)"], env=env, resources={"limits": {"memory": "1Gi"}})
    job = ordinary.run({"containers": [container]})
    ip = job.pod()["ip"]
    assert job.log().split() == [ip, ip, "virtual", "test", f"http://{ip}:80/'x'", "1", "1024", f"{ip}-virtual"]


def test_probes_that_run_at_the_same_time_have_all_variables(ordinary):
    """Each writes them to a file of its own, which is gone before the command begins."""
    check = {"exec": {"command": ["sh", "-c", f'sleep 1; test "${{#LONG}}" = {len(NASTY["LONG"])}']}}
    container = ordinary.shell(
        "sleep 6",
        env=[{"name": "LONG", "value": NASTY["LONG"]}],
        livenessProbe={**check, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
        readinessProbe={**check, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1},
    )
    job = ordinary.job({"containers": [container]}).start()
    job.eventually(lambda: job.state("main").get("ready"))
    assert not list((job.folder / "run").glob("*.env"))
    assert (job.wait(), job.state("main")["restarts"]) == (0, 0)
