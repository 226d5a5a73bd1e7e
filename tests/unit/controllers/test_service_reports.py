"""Events about Services of pods: users and sites cause any number of texts."""

from __future__ import annotations

import threading
from typing import Any

from controllers import service_reports
from controllers.service_reports import ServiceReports
from tests.fakes.recorders import RecordedEvents


def pod(uid: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid}}


def made() -> tuple[ServiceReports, RecordedEvents]:
    events = RecordedEvents()
    return ServiceReports(events, "NotReached", "Reaching"), events  # type: ignore[arg-type]


def test_each_text_is_written_once_for_a_pod_that_is_there() -> None:
    reports, events = made()
    for uid in ("a", "a", "b"):
        reports.once(pod(uid), "refused")
    assert events.told == [("NotReached", "refused")] * 2
    reports.keep({"b"})
    for uid in ("a", "b"):
        reports.once(pod(uid), "refused")
    assert events.told == [("NotReached", "refused")] * 3


def test_new_texts_fill_no_memory() -> None:
    reports, events = made()
    for number in range(1000):
        reports.once(pod("a"), str(number))
    reports.once(pod("b"), "refused")
    assert len(events.told) == service_reports.MOST + 1
    assert len(reports._texts["a"]) == service_reports.MOST


def test_a_site_refuses_while_the_loop_forgets() -> None:
    reports, _ = made()

    def refuse() -> None:
        for number in range(3000):
            reports.once(pod(str(number)), "refused")

    threads = [threading.Thread(target=refuse) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        reports.keep({str(number) for number in range(3000)})
    reports.keep(())
    assert reports._texts == {}
