"""The messages on the wire are those of version 1, and the vocabulary of pools becomes messages without loss."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.model.announcement import Announcement
from bridge.protocol.model.requests import JobSubmission, LogOptions, VolumeFile
from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import pack, parse
from bridge.protocol.nats.messages import Announce, File, Logs, ScriptWithoutLibrary, SubmitMessage
from bridge.site.jobs.sent_files import decoded

# Written by podbridge before the vocabulary of pools had a package of its own. Never change a line of the file: sites
# that were not upgraded send and read these messages.
OLD = [
    pytest.param(getattr(messages, line["kind"]), line["message"], id=line["kind"])
    for line in map(json.loads, Path(__file__).with_name("old_messages.jsonl").read_text().splitlines())
]


LATER = {
    "grant_wait": None,
    "asks": "",
    "unused": False,
    "occurrences": [],
    "volumes": {},
    "user": None,
    "place": None,
    "array": None,
    "gangs": False,
    "heterogeneous_gangs": False,
    "commands": False,
    "ports": False,
    "reach": False,
    "gang": "",
}
"""Keys that later versions have added, with the value that means what a message without them means."""


@pytest.mark.parametrize(("kind", "content"), OLD)
def test_a_message_of_an_older_peer_is_read_and_written_as_it_was(kind: type[Any], content: dict[str, Any]) -> None:
    message = parse(kind, json.dumps(content).encode())
    written = json.loads(pack(message))
    for key, value in LATER.items():  # an older peer ignores them
        status = written.get("status", {})
        for part in (written, status, *status.get("init_containers", ()), *status.get("containers", ())):
            assert part.pop(key, value) == value
    assert written == content


@pytest.mark.parametrize(("kind", "content"), OLD)
def test_a_key_of_a_newer_peer_is_ignored(kind: type[Any], content: dict[str, Any]) -> None:
    assert parse(kind, json.dumps({**content, "newer": 1}).encode()) == parse(kind, json.dumps(content).encode())


@given(
    st.builds(
        JobSubmission,
        namespace=st.just("ns"),
        name=st.just("pod"),
        script=st.text(),
        cpus=st.integers(1, 99),
        time_limit=st.none() | st.floats(0, 1e6),
        flags=st.lists(st.text(max_size=5), max_size=3),
    )
)
def test_a_submission_becomes_a_message_without_loss(submission: JobSubmission) -> None:
    assert dict(SubmitMessage.of(submission)) == dict(submission)
    short = ScriptWithoutLibrary(before="a", library="d", after="b")
    assert dict(SubmitMessage.of(submission, script=short)) == {**dict(submission), "script": short}


@given(st.builds(LogOptions, container=st.text(), tail=st.none() | st.integers(0), follow=st.booleans()))
def test_log_options_become_a_message_without_loss(options: LogOptions) -> None:
    assert dict(Logs.of(options, stream="s" * 8)) == {**dict(options), "stream": "s" * 8}


@given(st.builds(VolumeFile, path=st.text(), data=st.binary(), mode=st.integers(0, 0o777)))
def test_a_file_arrives_at_the_site_as_it_was(file: VolumeFile) -> None:
    message = File.encoded(file)
    assert (message.path, decoded(message), message.mode) == (file.path, file.data, file.mode)


def test_an_announcement_on_the_wire_has_all_that_the_vocabulary_has() -> None:
    assert Announcement.model_fields.keys() <= Announce.model_fields.keys()
