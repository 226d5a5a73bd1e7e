"""The options of ``kubectl logs`` in the form of interLink, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.clock import parse_rfc3339, rfc3339
from bridge.interlink.messages import NO_TIME, LogOpts, LogStruct
from bridge.protocol.model.requests import LogOptions

Pod = Mapping[str, Any]


def sent_options(pod: Pod, options: LogOptions, now: float) -> LogStruct:
    """Return the body of a request. ``now``: seconds since 1970.

    interLink refuses a tail together with a limit of bytes, so the limit is not sent and the client applies it.
    interLink takes a tail of 0 for no tail, so the request is for lines since ``now`` instead.
    """
    since = now if options.tail == 0 else options.since
    return LogStruct(
        namespace=pod["metadata"]["namespace"],
        pod_uid=pod["metadata"]["uid"],
        pod_name=pod["metadata"]["name"],
        container_name=options.container,
        opts=LogOpts(
            tail=options.tail or 0,
            limit_bytes=0 if options.tail else options.limit_bytes or 0,
            timestamps=options.timestamps,
            follow=options.follow,
            previous=options.previous,
            since_time=NO_TIME if since is None else rfc3339(since),
        ),
    )


def received_options(request: LogStruct, now: float) -> LogOptions:
    """Return the options of a request; raises ``ValueError`` with the path of the field. ``now``: since 1970."""
    opts = request.opts
    since: float | None = None
    if opts.since_time not in (None, "", NO_TIME):
        try:
            since = parse_rfc3339(str(opts.since_time))
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"Opts.SinceTime: {str(opts.since_time)[:40]!r} is not allowed; allowed: a time such as "
                f"2026-01-31T12:00:00Z"
            ) from error
    if opts.tail and opts.limit_bytes:
        raise ValueError("Opts.Tail, Opts.Bytes: at most one of them is allowed")
    if opts.since_seconds and since is not None:
        raise ValueError("Opts.SinceSeconds, Opts.SinceTime: at most one of them is allowed")
    if opts.since_seconds:
        since = now - opts.since_seconds
    return LogOptions(
        container=request.container_name,
        follow=bool(opts.follow),
        tail=opts.tail or None,
        since=since,
        timestamps=bool(opts.timestamps),
        limit_bytes=opts.limit_bytes or None,
        previous=bool(opts.previous),
    )
