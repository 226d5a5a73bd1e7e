"""``podbridge submitter init``: asks for what a site decides, writes its files and checks them."""

from __future__ import annotations

import getpass
import os
import shutil
import ssl
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from bridge.apps.cli import output
from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.sites import site_checks, site_plan
from bridge.apps.cli.sites.site_plan import AUTHORITY, CONFIG, SiteChoices
from bridge.errors import ConfigError
from bridge.protocol.nats import user_keys
from bridge.site.config.site_config import SiteConfig, load, parse
from bridge.site.files import atomic_files

WRITTEN, KEPT, REPLACED, PLANNED = "written", "kept", "replaced", "would write"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a site and what was done with it: one of the words above."""

    path: Path
    action: str


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The options of the command. ``None`` and an empty tuple: not given."""

    pool: str | None
    servers: tuple[str, ...]
    ca_file: Path | None
    batch: str | None
    runtime: str | None
    folder: Path | None
    settings: tuple[str, ...]
    out: Path | None
    unit: str
    force: bool
    dry_run: bool
    output: str


def run(options: InitOptions) -> int:
    """Write the files of a site and check them; return the exit status, 1 if a check has failed.

    Raises :class:`ConfigError` for an option that is missing or not allowed; then nothing has been written.
    """
    pool = site_plan.checked_pool(options.pool or _ask("pool", "Name of the pool"))
    directory = (options.out or Path.home() / ".config" / "podbridge" / pool).absolute()
    if os.geteuid() == 0:
        click.echo(
            "podbridge: warning: the containers of pods will run as root; run this as an ordinary user", err=True
        )
    files, config = _write(options, pool, directory)
    findings = [] if options.dry_run else list(site_checks.check(config))
    key = _public_key(options, config)
    # a site.toml of before may have a user and a password, which the hub knows
    hub = f"podbridge pool add {pool} --key {key or 'KEY'} --test" if config.nats.seed_file else ""
    start = site_plan.start_command(pool, options.unit, directory)
    if options.output == "text":
        _print(files, findings)
        click.echo(f"\nNext:\n  here:       {start}" + (f"\n  at the hub: {hub}" if hub else ""))
    else:
        written = [{"path": str(file.path), "action": file.action} for file in files]
        checks = [asdict(finding) for finding in findings]
        report = {"pool": pool, "publicKey": key, "files": written, "checks": checks, "start": start, "hub": hub}
        output.print_document(report, options.output)
    return 1 if any(finding.result == "FAIL" for finding in findings) else 0


def _public_key(options: InitOptions, config: SiteConfig) -> str:
    """Return the public key of the site; empty if it has none, or gets a new one when this is no dry run."""
    seed = config.nats.seed_file
    if seed is None or not seed.exists() or (options.force and options.dry_run):
        return ""
    return user_keys.public_key(seed.read_text().strip())


def _write(options: InitOptions, pool: str, directory: Path) -> tuple[list[WrittenFile], SiteConfig]:
    """Write the files, or keep those that exist; return what was done, and the configuration that now holds."""
    path = directory / CONFIG
    files: list[WrittenFile] = []
    if path.exists() and not options.force:
        config = load(path)
        if config.pool != pool:
            raise ConfigError(f"{path}: it is of pool {config.pool}, not {pool}", hint="name another directory (--out)")
        texts: dict[str, str] = {}
        files.append(WrittenFile(path, KEPT))
    else:
        texts = _texts(options, pool, directory)
        config = parse(texts[CONFIG], str(path))
    unit, write = _unit(options, config, path), partial(_write_file, force=options.force, dry_run=options.dry_run)
    if not options.dry_run:
        _make_directory(directory)
    if AUTHORITY in texts:
        # the certificates of an option replace those of an earlier run, which site.toml no longer fits
        files.append(write(directory / AUTHORITY, texts[AUTHORITY], force=True))
    if config.nats.seed_file is not None:
        files.append(write(config.nats.seed_file, user_keys.new_seed() + "\n"))
    if CONFIG in texts:
        files.append(write(path, texts[CONFIG], keep_old=True))
    if unit is not None:
        files.append(write(*unit, mode=0o644))
    return files, config if options.dry_run else load(path)


def _make_directory(path: Path) -> None:
    """Create a private directory; raises :class:`ConfigError`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error


def _write_file(
    path: Path, text: str, *, force: bool, dry_run: bool, keep_old: bool = False, mode: int = 0o600
) -> WrittenFile:
    """Write a file, by default for its owner alone. An existing one is kept, unless ``force``.

    ``keep_old``: keep what is replaced as ``NAME.old``. Raises :class:`ConfigError` if it cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    exists = path.is_symlink() or path.exists()
    if exists and not force:
        return WrittenFile(path, KEPT)
    if dry_run:
        return WrittenFile(path, PLANNED)
    _make_directory(path.parent)
    try:
        if exists and keep_old:
            path.replace(path.with_name(f"{path.name}.old"))
        atomic_files.write(path, text.encode(), mode=mode)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return WrittenFile(path, REPLACED if exists else WRITTEN)


def _texts(options: InitOptions, pool: str, directory: Path) -> dict[str, str]:
    """Return the text of ``site.toml``, and of the CA if there is one; ask for what is missing."""
    servers = options.servers or (_ask("server", "URL of the hub's NATS server (wss://HOST:PORT)"),)
    authority = options.ca_file
    if authority is None and not options.servers:  # a terminal, which gave the server
        name = click.prompt("File with its CA certificate (empty: the CAs of this machine)", default="", err=True)
        authority = Path(name).expanduser() if name else None
    home = options.folder or Path.home() / "podbridge-jobs" / pool
    choices = SiteChoices(
        pool=pool,
        servers=[site_plan.checked_server(url) for url in servers],
        batch=options.batch or _choose("Batch system", site_checks.detect_batch()),
        runtime=options.runtime or _choose("Container runtime", site_checks.detect_runtime()),
        folder=options.folder or Path(_choose("Directory of jobs: private, one path on all machines", str(home))),
        directory=directory,
        own_ca=authority is not None,
        settings=site_plan.checked_settings(options.settings),
    )
    _warn_unencrypted(choices.servers)
    texts = {CONFIG: site_plan.site_toml(choices)}
    return texts | ({AUTHORITY: _read_authority(authority)} if authority else {})


def _read_authority(file: Path) -> str:
    """Return the CA certificates in a file; raises :class:`ConfigError` if there are none."""
    allowed = f"--ca-file: {file} is not allowed; allowed: CA certificates (PEM)"
    try:
        text = file.read_text("utf-8")
        if "PRIVATE KEY" in text:
            raise ConfigError(f"{allowed} without a private key")
        ssl.create_default_context(cafile=file)
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(allowed) from error
    except OSError as error:
        raise ConfigError(f"--ca-file: cannot read {file}: {error.strerror}") from error
    return text


def _unit(options: InitOptions, config: SiteConfig, path: Path) -> tuple[Path, str] | None:
    """Return path and text of the systemd unit; ``None``: none is wanted."""
    if options.unit == "none":
        return None
    program = _program()
    of_system = options.unit == "system"
    folder = path.parent if of_system else Path.home() / ".config" / "systemd" / "user"
    search = os.environ.get("PATH") or os.defpath
    text = site_plan.unit(config, program, path, search, getpass.getuser() if of_system else "")
    return folder / site_plan.unit_name(config.pool), text


def _program() -> Path:
    """Return the path of the program ``podbridge``: that of this Python, or the one on PATH."""
    own = Path(sysconfig.get_path("scripts")) / "podbridge"
    found = str(own) if own.exists() else shutil.which("podbridge")
    if found is None:
        raise ConfigError(f"{own} does not exist, so no systemd unit can start it", hint="--unit none writes none")
    return Path(found).absolute()


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _ask(option: str, text: str) -> str:
    """Ask on a terminal for an option that has no default."""
    if not _is_terminal():
        raise ConfigError(f"--{option} is missing", hint="podbridge submitter init asks for it on a terminal only")
    answer: str = click.prompt(text, err=True)
    return answer.strip()


def _choose(text: str, default: str) -> str:
    """Ask on a terminal for an option; elsewhere, return its default."""
    if not _is_terminal():
        return default
    answer: str = click.prompt(text, default=default, err=True)
    return answer.strip()


def _warn_unencrypted(servers: Sequence[str]) -> None:
    for url in servers:
        if url.startswith(("nats://", "ws://")):
            click.echo(
                f"podbridge: {url} may not be encrypted, and scripts contain Secrets of pods: use wss://", err=True
            )


def _print(files: Sequence[WrittenFile], findings: Sequence[Finding]) -> None:
    for file in files:
        note = " (--force writes it again)" if file.action == KEPT else ""
        click.echo(f"{file.action}: {file.path}{note}")
    for finding in findings:
        click.echo(output.printable(f"{finding.result:4}  {finding.what:12}  {finding.found}"))
        if finding.fix:
            click.echo(output.printable(f"      fix: {finding.fix}"))
