"""The admission part of a process: the web application, its server, certificate and registration."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection

import flask

from admission import group_reader, owner_annotations, review
from admission.certificate_store import CertificateRotator, SecretCertificateStore, read_files
from admission.group_reader import GroupReader
from admission.large_reviews import BusyError, LargeReviews
from admission.owner_annotations import OwnerAnnotations
from admission.permissions import Permissions, ask_api_server
from admission.review import Json, MalformedReviewError, Review
from admission.reviewer import NodesView, Reviewer
from admission.webhook_registration import MUTATE, NAMED, NAMESPACES, TEMPLATES, VALIDATE, WebhookRegistration
from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.config.hub import Config
from bridge.core.threads import Supervisor
from bridge.kube import namespaces
from bridge.kube.kube_client import KubeClient
from bridge.kube.namespaces import Namespaces
from bridge.kube.resources import Resource
from bridge.logs import kv
from bridge.serving.certificates import Certificates, expires
from bridge.serving.https import Server
from bridge.telemetry.metrics import ADMISSION_REVIEWS, ADMISSION_SECONDS

log = logging.getLogger(__name__)

SELF_SUBJECT_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", False)
REVIEW_LIMIT = 20 * 2**20
"""Bytes of a review of two pods of 1.5 MiB, as etcd stores them, each of whose characters JSON escapes by six. If an
update were too large for a review, nobody could remove a finalizer of the pod."""
# raised for a review with an unexpected structure of its pod
_SHAPE_ERRORS = (TypeError, AttributeError, KeyError, ValueError)


def make_app(reviewer: Reviewer, threads: int = 16) -> flask.Flask:
    """Create the application: ``/mutate`` and ``/validate``, both also with ``/named``, and two paths below the latter.

    ``/validate/namespaces`` and ``/validate/templates`` review namespaces, and Jobs and their kin.

    :mod:`admission.webhook_registration` describes the paths. ``threads``: how many reviews can be handled at once.
    """
    app = flask.Flask(__name__)
    large = LargeReviews(max(0, threads // 4 - 1))

    def endpoint(
        path: str, decide: Callable[[Review, bool], Json], selected: bool, reviewed: Collection[str] = review.PODS
    ) -> Callable[[], flask.Response]:
        seconds = ADMISSION_SECONDS.labels(path)
        counters = {
            name: ADMISSION_REVIEWS.labels(path, name) for name in ("allowed", "patched", "denied", "malformed")
        }

        def handle() -> flask.Response:
            begin = time.perf_counter()
            try:
                request = review.parse(flask.request.get_data(cache=False), reviewed)
                document = decide(request, selected)
            except MalformedReviewError as error:
                counters["malformed"].inc()
                return _text(f"malformed review: {error}", 400)
            except _SHAPE_ERRORS as error:
                counters["malformed"].inc()
                log.exception("malformed review")
                return _text(f"malformed review: {type(error).__name__}: {error}", 400)
            response = document["response"]
            result = "denied" if not response["allowed"] else "patched" if "patch" in response else "allowed"
            counters[result].inc()
            if result == "denied":
                message = response["status"]["message"][:500]
                extra = kv(namespace=request.namespace, user=request.user_name, message=message)
                log.info("request denied", extra=extra)
            seconds.observe(time.perf_counter() - begin)
            return flask.Response(json.dumps(document, separators=(",", ":")), content_type="application/json")

        def answer() -> flask.Response:
            size = flask.request.content_length or 0
            try:
                with large.turn(size):  # before the body is read, which copies it twice
                    return handle()
            except BusyError:
                log.warning("large review refused: others are being handled", extra=kv(path=path, bytes=size))
                return _text("too many large reviews at once; try again", 503)

        return answer

    for path, decide in ((MUTATE, reviewer.mutate), (VALIDATE, reviewer.validate)):
        for suffix, selected in (("", True), (NAMED, False)):
            name = path.strip("/")
            app.add_url_rule(path + suffix, name + suffix, endpoint(name, decide, selected), methods=["POST"])
    check = endpoint("namespaces", reviewer.validate_namespace, False, review.NAMESPACES)
    app.add_url_rule(VALIDATE + NAMESPACES, "namespaces", check, methods=["POST"])
    warn = endpoint("templates", reviewer.warn, True, review.TEMPLATES)
    app.add_url_rule(VALIDATE + TEMPLATES, "templates", warn, methods=["POST"])
    return app


class Admission:
    """The webhook: server, certificate, registration.

    ``nodes`` returns the allocatable resources of the managed nodes (:class:`admission.node_sizes.NodeSizes`).
    """

    def __init__(
        self,
        config: Config,
        client: KubeClient,
        supervisor: Supervisor,
        nodes: NodesView,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config = config
        self._client = client
        self._supervisor = supervisor
        self._nodes = nodes
        self._clock = clock
        self._certificates = Certificates()
        self._registration: WebhookRegistration | None = None
        self._rotator: CertificateRotator | None = None
        self.server: Server | None = None

    def start(self) -> None:
        """Get a certificate, listen and register; raises :class:`BridgeError`, after which it can be called again.

        An existing registration gets the certificate's authority before the certificate is served. A missing
        registration is created after the server listens.
        """
        config, settings = self._config, self._config.admission
        # accounts that write to pods: of the scheduler, of the controllers, of `podbridge run`
        home, installation = settings.service_namespace, config.installation
        parts = (names.part_user(part, home, installation) for part in ("scheduler", "controllers", "run"))
        trusted = frozenset({whoami(self._client), *parts, *settings.trusted_users})
        reviewer = Reviewer(
            config,
            Permissions(ask_api_server(self._client), self._clock),
            OwnerAnnotations(owner_annotations.read_from(self._client), self._clock),
            Namespaces(namespaces.read_from(self._client), self._clock),
            GroupReader(group_reader.read_from(self._client), self._clock),
            trusted=trusted,
            nodes=self._nodes,
        )
        if settings.register_webhooks:
            self._registration = WebhookRegistration(self._client, config, trusted, self._clock)
        folder = settings.cert_dir  # without ca.crt in it, podbridge does not set caBundle
        store = SecretCertificateStore(self._client, config, self._clock)
        ensure = store.ensure if folder is None else lambda _: read_files(folder, config)
        rotator = CertificateRotator(ensure, self._certificates, self._trust)
        rotator.step(self._supervisor.stopping)
        if self.server is None:
            self.server = self._serve(reviewer)
        if self._registration is not None:
            self._registration.ensure(self._certificates.ca_bundle, create=True)
            for problem in self._registration.collisions():
                log.warning("collision with another installation of podbridge", extra=kv(problem=problem))
        self._supervisor.spawn("admission-certificate", lambda: rotator.run(self._supervisor.stopping))
        self._rotator = rotator
        log.info("admission started", extra=kv(port=self.server.port, trusted=",".join(sorted(trusted))))

    def _serve(self, reviewer: Reviewer) -> Server:
        settings = self._config.admission
        server = Server(
            make_app(reviewer, settings.threads),
            settings.host,
            settings.port,
            threads=settings.threads,
            certificates=self._certificates,
            name="admission",
            body_limit=REVIEW_LIMIT,
        )
        server.start()
        self._supervisor.spawn("admission-server", lambda: server.run(self._supervisor.stopping))
        return server

    def ready(self) -> str | None:
        """Return why reviews cannot be answered now; ``None`` if they can."""
        if self._rotator is None or self._certificates.pair is None:
            return "not started: no certificate, or no registration yet"
        if expires(self._certificates.pair.cert) <= self._clock.time():
            return "the certificate has expired"
        return None

    def _trust(self, ca: bytes) -> None:
        if self._registration is None:
            return
        missing = self._registration.ensure(ca, create=False)
        if missing and self.server is not None:
            log.warning(
                "webhook configurations are missing: pods are not processed; restart admission to register again",
                extra=kv(missing=",".join(missing)),
            )


def unregister(config: Config, client: KubeClient) -> list[str]:
    """Delete the webhook configurations; return the names of those that existed."""
    return WebhookRegistration(client, config).remove()


def whoami(client: KubeClient) -> str:
    """Return the user name of this process at the API server. Raises ``Kube*`` errors."""
    body = {"apiVersion": SELF_SUBJECT_REVIEWS.api_version, "kind": "SelfSubjectReview"}
    status = client.create(SELF_SUBJECT_REVIEWS.path(), body).get("status") or {}
    return str((status.get("userInfo") or {}).get("username") or "")


def _text(text: str, status: int) -> flask.Response:
    return flask.Response(text + "\n", status=status, content_type="text/plain; charset=utf-8")
