"""The submission of a job to podbridge's submitter, and of files of its volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bridge.errors import SiteRefusedError, SiteTooLargeError
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import JobSubmission, VolumeFile
from bridge.protocol.nats.envelope import GarbledError
from bridge.protocol.nats.messages import UNKNOWN_LIBRARY, File, Files, ScriptWithoutLibrary, SubmitMessage
from bridge.protocol.nats.request_table import FILES, SUBMIT, SubmitterClient
from bridge.script import library

LIBRARY_REFUSED = (UNKNOWN_LIBRARY, GarbledError.reason)
"""Reasons with which a submitter of another version refuses a script without its library."""

PORTION = 2**18
"""Bytes of files in one request: base64 and JSON make it a third larger, and NATS servers allow 1 MiB by default."""


def send(client: SubmitterClient, job: str, submission: JobSubmission, digest: str, timeout: float) -> JobStatus:
    """Submit a job to a site whose bash library has this digest; send the whole script if it refuses the other."""
    # the library is 30 of 35 kB of a script
    script = without_library(submission.script, digest)
    try:
        return client.call(SUBMIT, job, SubmitMessage.of(submission, script), timeout).status
    except SiteRefusedError as error:
        if script is submission.script or error.reason not in LIBRARY_REFUSED:
            raise
        return client.call(SUBMIT, job, SubmitMessage.of(submission, submission.script), timeout).status


def replace_files(
    client: SubmitterClient, job: str, files: Sequence[VolumeFile], volumes: Mapping[str, Sequence[str]]
) -> None:
    """Replace files in the volumes of a job; the last request has the paths of all files by volume, if any.

    A file that is too large for a request is left out; then raises SiteTooLargeError in the end.
    """
    too_large: SiteTooLargeError | None = None
    for portion in portions(files):
        try:
            client.call(FILES, job, Files(files=[File.of(file) for file in portion]))
        except SiteTooLargeError as error:
            names = ", ".join(file.path for file in portion)
            too_large = SiteTooLargeError(f"{names}: {error}", hint=error.hint)
    if volumes:
        lists = {name: list(paths) for name, paths in volumes.items()}
        client.call(FILES, job, Files(files=[], volumes=lists))
    if too_large is not None:
        raise too_large


def portions(files: Sequence[VolumeFile]) -> Iterator[list[VolumeFile]]:
    """Divide files into requests of :data:`PORTION` bytes at most; a larger file is alone in its request."""
    portion: list[VolumeFile] = []
    size = 0
    for file in files:
        if portion and size + len(file.data) > PORTION:
            yield portion
            portion, size = [], 0
        portion.append(file)
        size += len(file.data)
    if portion:
        yield portion


def without_library(script: str, digest: str) -> str | ScriptWithoutLibrary:
    """Return the script without the bash library of this digest.

    Return ``script`` itself if this version has another library, or if the script does not contain it.
    """
    parts = library.split(script, digest)
    return ScriptWithoutLibrary(before=parts[0], library=digest, after=parts[1]) if parts else script
