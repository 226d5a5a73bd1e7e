"""SlurmConfig.yaml as upstream's examples have it, and each way to be wrong."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError, SiteRefusedError
from bridge.protocol.nats.messages import SubmitMessage
from bridge.site.batch.slurm_flags import merged, without_own
from bridge.site.config.sample import documented
from bridge.site.config.site_config import parse, validated
from bridge.site.interlink_slurm.conversion import convert, quantity_of
from bridge.site.interlink_slurm.slurm_config import OVERRIDES, FlavorPart, SlurmConfig, TaintPart, memory
from bridge.site.jobs.request_limits import admitted

# the README's example, and docker/SlurmConfig.yaml with its flavors
EXAMPLE = """\
SidecarPort: "4000"
Socket: ""
SbatchPath: "/usr/bin/sbatch"
ScancelPath: "/usr/bin/scancel"
SqueuePath: "/usr/bin/squeue"
SinfoPath: "/usr/bin/sinfo"
CommandPrefix: ""
SingularityPrefix: ""
SingularityPath: "singularity"
ExportPodData: true
DataRootFolder: ".local/interlink/jobs/"
Namespace: "vk"
Tsocks: false
TsocksPath: "$WORK/tsocks-1.8beta5+ds1/libtsocks.so"
TsocksLoginNode: "login01"
BashPath: /bin/bash
VerboseLogging: true
ErrorsOnlyLogging: false
ContainerRuntime: singularity
EnrootDefaultOptions: ["--rw"]
DefaultFlavor: "default"
InterlinkURL: "http://localhost"
Flavors:
  default:
    Name: "default"
    Description: "Standard CPU job (2 cores, 8GB RAM)"
    CPUDefault: 2
    MemoryDefault: "8G"
    SlurmFlags:
      - "--partition normal"
  gpu-nvidia:
    CPUDefault: 4
    MemoryDefault: "32G"
    UID: 1002
    SlurmFlags: ["--gres=gpu:1", "--partition=gpu", "--mem=100", "-c 9"]
Taints:
  - {Key: a, Value: b, Effect: NoExecute}
  - {Key: c, Effect: Odd}
"""
LEAST = "DataRootFolder: /jobs/\nExportPodData: true\nSidecarPort: 4000\n"


def made(text: str = "", environ: dict[str, str] | None = None, cwd: str = "/home/me") -> tuple[object, ...]:
    found = convert(LEAST + text, "SlurmConfig.yaml", environ or {}, cwd)
    return validated(found.values, "SlurmConfig.yaml"), found


def test_upstreams_example_is_read_as_it_is() -> None:
    found = convert(EXAMPLE, "SlurmConfig.yaml", {}, "/home/me")
    config = validated(found.values, "x")
    assert (found.listen, config.adopt_from) == ("127.0.0.1:4000", "/home/me/.local/interlink/jobs")
    assert config.folder == "/home/me/.local/interlink/jobs/podbridge"
    assert (config.slurm.bin_dir, config.slurm.programs, config.slurm.bash) == ("/usr/bin", {}, "/bin/bash")
    assert (config.runtime.kind, config.apptainer.executable) == ("singularity", "singularity")
    assert (config.apptainer.containall, config.apptainer.cleanenv, config.apptainer.no_home) == (True, False, False)
    assert (config.apptainer.nvidia_support, config.apptainer.options) == ("always", [])
    assert (config.limits.rules, config.limits.default_memory, config.limits.default_cpu) == (
        "interlink-slurm",
        "1Mi",
        1,
    )
    assert (config.limits.probes, config.logging.level, config.default_flavor) == (False, "debug", "default")
    assert [flavor.model_dump(exclude_defaults=True) for flavor in config.flavors] == [
        {
            "name": "default",
            "description": "Standard CPU job (2 cores, 8GB RAM)",
            "cpu": 2,
            "memory": "8Gi",
            "flags": ["--partition", "normal"],
        },
        {"name": "gpu-nvidia", "uid": 1002, "cpu": 4, "memory": "32Gi", "flags": ["--gres=gpu:1", "--partition=gpu"]},
    ]
    assert config.node.taints == ["a=b:NoExecute", "c:NoSchedule"]
    assert found.warnings == (
        "InterlinkURL: unknown key, ignored",
        "Taints: effect 'Odd' of 'c' is not allowed; NoSchedule is used",
        "Namespace: has no meaning, as in the plugin itself",
    )


def test_permissions_that_podbridge_closes_are_open() -> None:
    config, _ = made()
    limits = config.limits
    assert limits.allow_user_flags and limits.allow_pre_exec and limits.allow_runtime_options
    assert (config.volumes.host_paths, config.volumes.image_paths) == (["/"], ["/"])
    assert config.runtime.image_prefix == "docker://"


@pytest.mark.parametrize(
    ("environ", "look", "value"),
    [
        ({"SIDECARPORT": "4001"}, lambda config, found: found.listen, "127.0.0.1:4001"),
        ({"SBATCHPATH": "/x/sbatch"}, lambda config, found: config.slurm.bin_dir, "/x"),
        ({"SCANCELPATH": "scancel"}, lambda config, found: config.slurm.bin_dir, None),
        ({"SINFOPATH": "/y/my-sinfo"}, lambda config, found: config.slurm.programs, {"sinfo": ["/y/my-sinfo"]}),
        ({"SINGULARITYPATH": "/z/apptainer"}, lambda config, found: config.runtime.kind, "apptainer"),
        ({"TSOCKS": "false"}, lambda config, found: config.header, ""),
        (
            {"TSOCKSPATH": "/t.so"},
            lambda config, found: found.warnings,
            ("TsocksPath: has no meaning while Tsocks is false",),
        ),
        (
            {"SHARED_FS": "true"},
            lambda config, found: found.warnings,
            ("environment variable SHARED_FS: has no meaning here",),
        ),
        ({"CUSTOMKUBECONF": "/k"}, lambda config, found: len(found.warnings), 1),
        ({"TELEMETRY_ENDPOINT": "h", "ENABLE_TRACING": "1"}, lambda config, found: len(found.warnings), 2),
        ({"https_proxy": "http://p"}, lambda config, found: config.slurm.environment["https_proxy"], "http://p"),
    ],
)
def test_variables(environ: dict[str, str], look: object, value: object) -> None:
    assert look(*made(environ=environ)) == value  # type: ignore[operator]


def test_an_unset_variable_and_a_null_change_nothing() -> None:
    assert made("Flavors:\nTaints:\nSbatchPath:\n", {"SIDECARPORT": ""})[0] == made()[0]


def test_a_socket_wins_over_the_port() -> None:
    assert made("Socket: unix:///run/plugin.sock\n")[1].listen == "unix:///run/plugin.sock"
    _, found = made("Socket: /run/plugin.sock\n")
    assert found.listen == "127.0.0.1:4000" and "Socket" in found.warnings[0]


def test_commands_of_several_words_and_of_other_names() -> None:
    config, _ = made("SbatchPath: ssh login $SLURM/bin/sbatch\nSqueuePath: /opt/squeue\n", {"SLURM": "/s"})
    assert config.slurm.programs == {"sbatch": ["ssh", "login", "/s/bin/sbatch"], "squeue": ["/opt/squeue"]}


def test_enroot() -> None:
    config, _ = made(
        'ContainerRuntime: enroot\nEnrootPath: /e/enroot\nEnrootDefaultOptions: ["--rw"]\nImagePrefix: x://\n'
    )
    assert (config.runtime.kind, config.runtime.image_prefix) == ("enroot", "x://")
    assert (config.enroot.executable, config.enroot.options) == ("/e/enroot", ["--rw"])


def test_options_of_singularity_become_switches() -> None:
    config, _ = made('SingularityDefaultOptions: ["--no-home", "--cleanenv", "--bind /a:/b", "--no-eval"]\n')
    own = config.apptainer
    assert (own.no_home, own.cleanenv, own.containall, own.no_privs) == (True, True, False, False)
    assert (own.nvidia_support, own.options) == ("never", ["--bind", "/a:/b"])


def test_text_before_the_job() -> None:
    config, found = made("CommandPrefix: module load singularity &&\n")
    assert config.header == "module load singularity && : || exit 1\n" and not found.warnings
    config, found = made("CommandPrefix: srun\n")
    assert config.header == "srun\n" and "CommandPrefix" in found.warnings[0]
    config, found = made("CommandPrefix: |\n  module load a\n  export X=$WORK\n", {"WORK": "/w"})
    assert config.header == "module load a\nexport X=$WORK\n" and not found.warnings
    assert config.slurm.environment["WORK"] == "/w"


def test_tsocks_opens_a_tunnel_and_closes_it() -> None:
    config, found = made(
        "Tsocks: true\nTsocksPath: $WORK/libtsocks.so\nTsocksLoginNode: me@login01\nCommandPrefix: a;\n"
    )
    assert config.limits.allow_reach and "annotation bridge.vk.io/reach" in str(found.warnings)
    assert not made()[0].limits.allow_reach
    assert "ssh -4 -N" in config.header and "me@login01" in config.header
    assert config.header.endswith("a;\n") and "kill" in config.footer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("- a\n", "the file is a list"),
        ("SidecarPort: [\n", "not YAML"),
        ("SidecarPort: 4000\n", "DataRootFolder is not set"),
        (LEAST + "Tsocks: maybe\n", "Tsocks"),
        (LEAST + "ContainerRuntime: docker\n", "'docker' is not allowed; allowed: singularity, enroot"),
        (LEAST.replace("4000", "99999"), "'99999' is not allowed; allowed: 1 to 65535"),
        (LEAST + "Flavors: {a: {CPUDefault: -1}}\n", "Flavors.a.CPUDefault"),
        (LEAST + "Flavors: {a: {UID: -1}}\n", "Flavors.a.UID"),
        (LEAST + "Flavors: {a: {MemoryDefault: lots}}\n", "Flavors.a.MemoryDefault: 'lots' is not allowed"),
        (LEAST + "Flavors: {a: {SlurmFlags: [partition]}}\n", "Flavors.a.SlurmFlags: 'partition' is not allowed"),
        (LEAST + "Flavors: {a: {SlurmFlags: ['--x=\"']}}\n", "No closing quotation"),
        (LEAST + "Flavors: {'a b': {}}\n", "a b"),
        (LEAST + "Tsocks: true\nTsocksPath: /a;b\nTsocksLoginNode: l\n", "TsocksPath"),
        (LEAST + "Tsocks: true\nTsocksPath: /a\nTsocksLoginNode: -oProxyCommand=x\n", "TsocksLoginNode"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        found = convert(text, "SlurmConfig.yaml", {}, "/")
        validated(found.values, "SlurmConfig.yaml")
    assert words in str(wrong.value) and "SlurmConfig.yaml" in str(wrong.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="TSOCKS: 'yes' is not allowed; allowed: true, false"):
        made(environ={"TSOCKS": "yes"})


def test_what_cannot_be_is_told() -> None:
    _, found = made("DefaultFlavor: none\nSbatchPathh: x\nVKConfigPath: x\nEnrootPrefix: x\n")
    assert any("did you mean SbatchPath" in text for text in found.warnings)
    for key in ("DefaultFlavor", "VKConfigPath", "EnrootPrefix"):
        assert any(text.startswith(key) for text in found.warnings)


# --- the page ---------------------------------------------------------------------------------------------------------
def test_the_table_has_every_key_variable_and_annotation() -> None:
    from bridge import names
    from bridge.site.interlink_slurm import conversion
    from generate import slurm_config

    assert set(slurm_config.KEYS) == set(SlurmConfig.model_fields)
    assert set(slurm_config.FLAVOR_KEYS) == set(FlavorPart.model_fields)
    assert set(slurm_config.TAINT_KEYS) == set(TaintPart.model_fields)
    variables = {*OVERRIDES, "SLURMCONFIGPATH", *conversion.UNUSED_VARIABLES, f"{conversion.UNUSED_PREFIX}*"}
    assert set(slurm_config.VARIABLES) == variables
    known = {value for name, value in vars(names).items() if isinstance(value, str)}
    said = {
        value for value in known if value.startswith(("slurm-job.", "interlink.eu/")) and value != names.SITE_PREFIX
    }
    assert set(slurm_config.ANNOTATIONS) == said


# --- properties -------------------------------------------------------------------------------------------------------
@given(st.integers(0, 10**9), st.sampled_from(["", "K", "M", "G", "T", "k", "m", "g", "GB", "mb", "Gi", "MiB"]))
def test_memory_is_read_with_any_unit(number: int, unit: str) -> None:
    factor = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}[unit[:1].upper()]
    assert memory(f" {number}{unit} ") == number * 1024**factor


@given(st.text(max_size=20))
def test_any_memory_text_is_read_or_refused(text: str) -> None:
    try:
        size = memory(text)
    except ValueError as error:
        assert "is not allowed" in str(error)
    else:
        assert size >= 0


@given(st.integers(1, 2**60))
def test_a_size_as_a_quantity_is_the_same_size(size: int) -> None:
    from bridge.workload import quantity

    assert int(quantity.parse(quantity_of(size))) == size


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True)
LONG = ["partition", "mem", "cpus-per-task", "gres", "time", "exclusive", "hold", "job-name", "output", "comment"]
FLAG = st.one_of(
    st.builds(lambda name, value: [f"--{name}={value}"], st.sampled_from(LONG), NAMES),
    st.builds(lambda name, value: [f"--{name}", value], st.sampled_from(["partition", "time", "gres"]), NAMES),
    st.builds(lambda letter, value: [f"-{letter}", value], st.sampled_from("pctACNn"), NAMES),
)
FLAGS = st.lists(FLAG, max_size=6).map(lambda parts: [word for part in parts for word in part])


@given(FLAGS, FLAGS, FLAGS)
def test_flags_are_merged_once_each_the_last_value_at_the_first_place(
    asked: object, site: object, mine: object
) -> None:
    found = merged(asked, site, mine)  # type: ignore[arg-type]
    options = [flag.partition("=")[0] for flag in found]
    assert len(options) == len(set(options))
    assert found == merged(found)
    alone = dict(flag.partition("=")[::2] for flag in merged(mine))  # type: ignore[arg-type]
    assert all(
        flag.partition("=")[2] == alone[option] for flag, option in zip(found, options, strict=True) if option in alone
    )
    order = [flag.partition("=")[0] for flag in merged(asked)]  # type: ignore[arg-type]
    assert options[: len(order)] == order


@given(FLAGS)
def test_options_of_podbridge_are_left_out_and_named(words: object) -> None:
    kept, left_out = without_own(words)  # type: ignore[arg-type]
    assert not any(word.startswith(("--job-name", "--output")) for word in kept)
    assert set(left_out) <= {"job-name", "output"}
    assert len(merged(kept)) + len(set(left_out)) == len(merged(words))  # type: ignore[arg-type]


FLAVOR = st.fixed_dictionaries(
    {},
    optional={
        "Name": st.text(max_size=5),
        "CPUDefault": st.integers(0, 100),
        "MemoryDefault": st.sampled_from(["", "16G", "32000M", 1024, "8GB"]),
        "UID": st.one_of(st.none(), st.integers(0, 70000)),
        "SlurmFlags": st.lists(
            st.sampled_from(["--gres=gpu:1", "-p gpu", "--mem=3G", "--cpus-per-task 4"]), max_size=3
        ),
    },
)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True), FLAVOR, max_size=4))
def test_any_flavors_become_a_site_that_can_be_read_again(flavors: dict[str, dict[str, object]]) -> None:
    text = yaml.safe_dump({"DataRootFolder": "/jobs/", "Flavors": flavors})
    found = convert(text, "x.yaml", {}, "/")
    config = validated(found.values, "x")
    assert [flavor.name for flavor in config.flavors] == sorted(flavors)
    assert parse(documented(found.values, found.warnings)) == config
    for flavor in config.flavors:
        assert not any(word.startswith(("--mem", "--cpus-per-task")) for word in flavor.flags)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        convert(text, "x.yaml", {}, "/")
    except ConfigError as error:
        assert "x.yaml" in str(error)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_prefix_survives_the_text_of_a_site(text: str) -> None:
    values = {"pool": "p", "header": text, "footer": f"a\n{text}"}
    assert parse(documented(values, [text.replace("\n", " ")])) == validated(values, "x")


# --- rights that a site withdraws after the conversion ----------------------------------------------------------------
@pytest.mark.parametrize(("flags", "rules", "refused"), [
    (["--uid=5"], "interlink-slurm", False),
    (["--uid=5", "--time=3"], "interlink-slurm", True),
    (["--uid=5"], "podbridge", True),
])  # fmt: skip
def test_a_site_without_flags_of_users_still_takes_the_user_of_a_job(
    flags: list[str], rules: str, refused: bool
) -> None:
    config = validated({"pool": "p", "limits": {"rules": rules}}, "x")
    body = SubmitMessage(namespace="ns", name="pod", script="true\n", flags=flags)
    if refused:
        with pytest.raises(SiteRefusedError, match="allow_user_flags"):
            admitted("c1", body, config, 0.0)
    else:
        assert admitted("c1", body, config, 0.0).flags == tuple(flags)
