"""The choice of the API version for one slurmrestd: by a ping with each version, the newest first."""

from __future__ import annotations

from bridge.errors import SlurmUnavailableError
from bridge.slurm import slurm_answers
from bridge.slurm.slurm_transport import Transport
from bridge.slurm.versions import VERSIONS, ApiVersion, newest_common, of_release


class Negotiation:
    """The API version that podbridge and one slurmrestd share; ``pinned`` is the configured one.

    Pings until slurmrestd knows a version: at most eight answers of 200 bytes, 2 ms each (``/openapi/v3`` has 0.2 to
    0.9 MB). Raises :class:`ConfigError` if slurmrestd does not serve the pinned version. For any thread.
    """

    def __init__(self, transport: Transport, pinned: str | None) -> None:
        self._transport = transport
        self._pinned = pinned
        self._result: tuple[ApiVersion, str] | None = None
        self._doubted = False

    @property
    def version(self) -> ApiVersion:
        """The version, as found before, else now."""
        return (self._result or self._renegotiate())[0]

    @property
    def release(self) -> str:
        """Release of slurmrestd, as found with the version."""
        return (self._result or self._renegotiate())[1]

    def confirmed(self) -> ApiVersion:
        """Return the version; find it again after a doubt."""
        return self._renegotiate()[0] if self._doubted else self.version

    def doubt(self) -> None:
        """Report that slurmrestd does not seem to serve the version any more."""
        self._doubted = True

    def _renegotiate(self) -> tuple[ApiVersion, str]:
        # without a lock: several threads may negotiate at the same time, but none waits for one that hangs
        result = self._result = self._negotiate()
        self._doubted = False
        return result

    def _negotiate(self) -> tuple[ApiVersion, str]:
        for name in [self._pinned] if self._pinned else reversed(VERSIONS):
            status, body = self._transport.send("GET", f"/slurm/{name}/ping", "ping")
            data = slurm_answers.read_answer(body)
            if data is not None:  # slurmrestd knows the version, whatever slurmctld does
                release = slurm_answers.release(data)
                return of_release(newest_common([name], self._pinned), release), release
            if status != 404:
                slurm_answers.judge(None, "ping", status, body)
        served = slurm_answers.served(self._transport.send("GET", "/openapi/v3", "openapi")[1])
        if not served:
            raise SlurmUnavailableError("ping: HTTP 404 for every API version: not slurmrestd's address?", status=404)
        return newest_common(served, self._pinned), ""
