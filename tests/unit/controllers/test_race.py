"""A place of a pod that races: offered, claimed by one Binding, granted or withdrawn."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.core.job_lifecycle import Lifecycle, State
from bridge.errors import KubeUnavailableError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import GRANTED, JobStatus
from bridge.script.buildconfig import BuildConfig
from bridge.workload import places
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.pod_state import Cancellation, Entry, PodView, PoolView
from controllers.virtual.prune_nodes import prune
from controllers.virtual.race_decide import Claim, Grant, Offer, Racers, Withdraw
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.virtual_pod_act import PodActor
from controllers.virtual.virtual_pod_decide import Fail, Look, Orphan, Refresh, Submit, Wait, Write
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.memory_kube import MemoryKube, Writes
from tests.fakes.pool import FakePool

NOW, TICKET, PATH = 1000.0, "t-1", "/api/v1/namespaces/ns/pods/p"


def pod(node: str = "", granted: str = "", recorded: str = "site,other", **metadata: Any) -> dict[str, Any]:
    annotations = {names.POOLS: "*", names.PLACEMENT: "race", names.PLACES: recorded}
    if granted:
        annotations[names.GRANT] = granted
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "i", "command": ["true"]}],
        "tolerations": [{"key": names.POOL_TAINT, "operator": "Exists"}],
    }
    identity = {"name": "p", "resourceVersion": "5", **metadata}
    return {**builders.pod(node=node, annotations=annotations, metadata=identity, **spec), "status": {}}


def job(phase: Any = "queued", **values: Any) -> JobStatus:
    return builders.job_status(phase=phase, job_id="7", **values)


def look(bound: Any = None, racer: Any = None, the_job: Any = None, entry: Any = None, ready: bool = True) -> Any:
    pool = PoolView("site", True, 900.0, ready, 500.0, "10.0.0.1")
    return virtual_pod_decide.decide(PodView(bound, the_job, entry or Entry(), pool, NOW, NOW, racer=racer))


# --- the decision -----------------------------------------------------------------------------------------------------
def test_a_place_is_offered_once():
    the_pod = pod()
    assert look(racer=the_pod) == Offer(the_pod)
    assert look(racer=the_pod, the_job=job()) is None
    assert look(racer=the_pod, ready=False) is None


def test_an_offer_without_an_answer_is_looked_up_first():
    entry = Entry(lifecycle=Lifecycle(State.UNKNOWN, until=NOW + 20))
    assert look(racer=pod(), entry=entry) == Look(pod())
    entry.answered(NOW, None)
    assert look(racer=pod(), entry=entry) == Wait(20)


def test_a_place_that_asks_is_claimed():
    the_pod = pod()
    assert look(racer=the_pod, the_job=job(asks=TICKET)) == Claim(the_pod, TICKET)
    assert look(racer=the_pod, the_job=job(asks=TICKET), entry=Entry(not_before=NOW + 3)) == Wait(3)


def test_an_unused_place_is_offered_again_after_a_pause_that_grows():
    the_pod, unused = pod(), job("ended", outcome="Failed", unused=True)
    assert look(racer=the_pod, the_job=unused) == Offer(the_pod)  # after a restart of the hub
    assert look(racer=the_pod, the_job=unused, entry=Entry(offers=1, offered_at=NOW - 4)) == Wait(6)
    assert look(racer=the_pod, the_job=unused, entry=Entry(offers=3, offered_at=NOW - 4)).seconds > 6
    assert look(racer=the_pod, the_job=job("ended", outcome="Failed")) is None


def test_a_missing_place_is_withdrawn_and_not_claimed():
    assert look(racer=pod(), the_job=job(missing=True)) == Withdraw(pod())


def test_a_bound_pod_does_not_fail_for_a_missing_job_that_has_no_grant():
    won = pod("site", places.grant("site", TICKET))
    entry = Entry(cancellation=Cancellation("", NOW - 3))
    for waiting in (job(missing=True, reason="AwaitingGrant"), job(missing=True, reason="Cancelling")):
        assert look(won, the_job=waiting) == Withdraw(won)
        assert isinstance(look(won, the_job=waiting, entry=entry), Wait)
    for begun in (job(missing=True, reason=GRANTED), job("running", missing=True)):
        assert isinstance(look(won, the_job=begun), Fail)


def test_a_job_that_asks_for_a_bound_pod_without_its_ticket_is_withdrawn_at_once():
    for bound in (pod("site"), pod("site", places.grant("site", "t-2"))):
        assert look(bound, the_job=job(asks=TICKET)) == Withdraw(bound)


def member(rank: int, gang: str = "g", node: str = "", granted: str = "") -> dict[str, Any]:
    made = pod(node, granted)
    made["metadata"]["annotations"] |= {names.PLACE_IN_JOB: f"{gang}/{rank}/3", **builders.group(3)}
    return made


def test_only_the_first_pod_of_a_group_is_claimed():
    asking = job(asks=TICKET, gang="g")
    assert look(racer=member(0), the_job=asking) == Claim(member(0), TICKET)
    assert look(racer=member(1), the_job=asking) is None
    # the scheduler binds it after the first one
    assert look(won := member(1, node="site", granted=f"site/{TICKET}"), the_job=asking) == Grant(won, TICKET)


@pytest.mark.parametrize("asks", ["", TICKET])
def test_an_offer_for_another_job_of_the_group_is_withdrawn_and_made_again(asks):
    other = job(asks=asks, gang="before")
    assert look(racer=member(0), the_job=other) == Withdraw(member(0))
    assert isinstance(look(racer=member(0), the_job=other, entry=Entry(cancellation=Cancellation("", NOW - 3))), Wait)
    ended = job("ended", outcome="Failed", unused=True, gang="before")
    assert look(racer=member(0), the_job=ended) == Offer(member(0))
    bound = member(0, node="site")
    assert look(bound, the_job=other) == Withdraw(bound)
    assert look(bound, the_job=ended) == Submit(bound)


def test_the_queued_job_of_a_group_without_a_race_stays():
    bound = member(1, node="site")
    bound["metadata"]["annotations"][names.REMOTE_JOB] = "site/7"
    for version in ("g", ""):  # of an older site
        assert isinstance(look(prune(bound), the_job=job(gang=version)), Write | None)


def test_tokens_of_a_pod_that_waits_long_are_renewed():
    assert look(racer=pod(), the_job=job(), entry=Entry(refresh_at=NOW)) == Refresh(pod())


def test_a_job_without_a_place_is_checked_with_the_api_server():
    assert look(the_job=job(asks=TICKET)) == Orphan(job(asks=TICKET))


def test_a_grant_needs_the_binding_to_this_pool_with_this_ticket():
    won = pod("site", places.grant("site", TICKET))
    assert look(won, the_job=job(asks=TICKET)) == Grant(won, TICKET)
    for other in (pod("site"), pod("site", places.grant("site", "t-2")), pod("site", places.grant("other", TICKET))):
        assert not isinstance(look(other, the_job=job(asks=TICKET)), Grant)


def test_a_grant_is_repeated_until_the_job_no_longer_asks():
    won = pod("site", places.grant("site", TICKET))
    entry = Entry(granted_at=NOW - 1)
    assert isinstance(look(won, the_job=job(asks=TICKET), entry=entry), Write)
    entry.granted_at = NOW - 2
    assert look(won, the_job=job(asks=TICKET), entry=entry) == Grant(won, TICKET)
    assert isinstance(look(won, the_job=job(), entry=entry), Write)


def test_a_bound_pod_whose_script_gave_its_place_back_is_submitted_again():
    won = pod("site", places.grant("site", TICKET))
    assert look(won, the_job=job("ended", outcome="Failed", reason="NoGrant", unused=True)) == Submit(won)


@pytest.mark.parametrize("granted", ["", places.grant("site", TICKET)])
def test_a_pod_whose_job_gave_its_place_back_is_read_whole_before_it_is_submitted_again(world, granted):
    """The cache has only a part of a pod with a job, whether it was bound with a grant or without."""
    won = world.api.pod = pod("site", granted)
    won["metadata"]["annotations"][names.REMOTE_JOB] = "site/7"
    small = prune(won)
    assert "command" not in small["spec"]["containers"][0]
    assert places.is_granted(small, "site", TICKET) == bool(granted)
    world.act(Submit(small))
    assert "true" in world.pool.submits["u1"].script.split()


def test_a_pod_that_was_deleted_meanwhile_is_not_submitted_again(world):
    small = pod("site")
    small["metadata"]["annotations"][names.REMOTE_JOB] = "site/7"
    world.api.pod = copy.deepcopy(small)
    world.api.pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.act(Submit(small))
    world.api.objects.clear()
    world.act(Submit(small))
    assert world.pool.asked == []


def test_pods_without_places_are_small_in_memory():
    assert race_decide.prune(pod()) == pod()
    assert race_decide.prune(pod(recorded=""))["spec"] == {}


def test_the_index_follows_the_cache_and_wakes_every_place():
    woken: list[tuple[str, str]] = []
    racers = Racers(lambda pool, uid: woken.append((pool, uid)))
    racers.changed("add", None, pod())
    assert (racers.get("site", "u1"), racers.uids("other"), racers.get("third", "u1")) == (pod(), ["u1"], None)
    racers.changed("update", pod(), pod(recorded="site,third"))
    assert racers.get("other", "u1") is None
    woken.clear()
    racers.changed("delete", pod(recorded="site,third"), None)  # it is bound, or gone
    assert (racers.uids("site"), woken) == ([], [("site", "u1"), ("third", "u1")])


# --- the actions ------------------------------------------------------------------------------------------------------
class Api(MemoryKube):
    """An API server with one pod."""

    def __init__(self, the_pod: dict[str, Any]) -> None:
        self.writes, self.lose_answer = Writes(), False
        super().__init__(self.writes)
        self.pod = the_pod

    @property
    def pod(self) -> Any:
        return self.objects.get(PATH)

    @pod.setter
    def pod(self, the_pod: dict[str, Any]) -> None:
        self.objects[PATH] = the_pod

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = super().create(path, body)
        if self.lose_answer:
            raise KubeUnavailableError("no answer")
        return answer


class World:
    def __init__(self) -> None:
        self.api, self.clock, self.pool, self.entry = Api(pod()), FakeClock(NOW), FakePool("site"), Entry()
        self.pool.config = BuildConfig.model_validate({"runtime": {"kind": "none"}, "limits": {"allow_race": True}})
        self.told: list[str] = []
        reader = ReferenceReader(self.api, Config(), self.clock)  # type: ignore[arg-type]
        self.actor = PodActor(self.api, self, reader, self.clock, lambda: None, "10.0.0.1", 30, 60)  # type: ignore[arg-type]

    def event(self, obj: Any, reason: str, message: str, **_: Any) -> None:
        self.told.append(reason)

    def apply(self, obj: Any) -> None:
        pass

    def act(self, action: Any) -> None:
        self.actor.act(action, self.pool, self.entry, self)  # type: ignore[arg-type]


@pytest.fixture
def world() -> World:
    return World()


def test_an_offer_submits_a_script_that_waits(world):
    world.act(Offer(pod()))
    assert world.told == ["BridgePlace"]
    assert (world.entry.offers, world.entry.answer.phase) == (1, "queued")


def test_a_site_that_refuses_keeps_the_pod_alive_and_is_asked_later(world):
    world.pool.config = BuildConfig.model_validate({"runtime": {"kind": "none"}})
    world.act(Offer(pod()))
    world.act(Offer(pod()))
    assert world.told == ["BridgePlaceRefused"]
    assert (world.entry.not_before, world.pool.asked) == (NOW + 300, [])
    world.pool.config = BuildConfig.model_validate({"runtime": {"kind": "none"}, "limits": {"allow_race": True}})
    world.pool.problem = SiteRefusedError("no", reason="RaceNotAllowed")
    world.act(Offer(pod()))
    assert world.api.pod["status"] == {}


def test_an_offer_without_an_answer_is_remembered(world):
    world.pool.swallow = True
    with pytest.raises(SiteUnknownOutcomeError):
        world.act(Offer(pod()))
    assert world.entry.lifecycle == Lifecycle(State.UNKNOWN, until=NOW + 35)


def test_a_claim_is_one_binding(world):
    world.act(Claim(pod(), TICKET))
    assert places.is_granted(world.api.pod, "site", TICKET)
    assert world.told == ["BridgeGranted"]
    world.act(Claim(pod(), "t-2"))
    assert world.api.writes.count == 1
    assert places.is_granted(world.api.pod, "site", TICKET)


def test_a_claim_after_another_write_is_sent_again(world):
    world.api.pod["metadata"]["resourceVersion"] = "6"
    world.act(Claim(pod(), TICKET))
    assert places.is_granted(world.api.pod, "site", TICKET)


@pytest.mark.parametrize("change", ["bound", "deleted", "place gone", "another pod"])
def test_a_claim_is_not_sent_again_where_the_place_is_lost(world, change):
    now = world.api.pod
    now["metadata"]["resourceVersion"] = "6"
    if change == "bound":
        now["spec"]["nodeName"] = "other"
    elif change == "deleted":
        now["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    elif change == "place gone":
        now["metadata"]["annotations"][names.PLACES] = "other"
    else:
        now["metadata"]["uid"] = "u2"
    world.act(Claim(pod(), TICKET))
    assert (world.api.writes.count, world.told) == (0, [])
    assert world.entry.not_before > NOW


def test_a_claim_without_an_answer_is_found_by_the_next_one(world):
    world.api.lose_answer = True
    with pytest.raises(KubeUnavailableError):
        world.act(Claim(pod(), TICKET))
    assert world.told == []
    world.act(Claim(pod(), TICKET))
    assert world.told == ["BridgeGranted"]


def test_a_grant_reaches_the_site(world):
    world.act(Offer(pod()))
    world.pool.set("u1", asks=TICKET)
    world.act(Grant(pod("site", places.grant("site", TICKET)), TICKET))
    assert world.pool.site["u1"].phase == "running"
    assert world.entry.granted_at == NOW


@pytest.mark.parametrize("lost_by", ["node", "deletion"])
def test_a_place_whose_pod_is_elsewhere_is_withdrawn(world, lost_by):
    world.act(Offer(pod()))
    if lost_by == "node":
        world.api.pod["spec"]["nodeName"] = "other"
    else:
        world.api.pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.act(Orphan(world.pool.site["u1"]))
    assert world.pool.asked[-1] == ("cancel", "u1")
    world.act(Orphan(world.pool.site["u1"]))
    assert world.pool.asked[-1] == ("forget", "u1")


def test_a_place_of_a_pod_that_waits_or_is_bound_here_is_kept(world):
    world.act(Offer(pod()))
    world.act(Orphan(world.pool.site["u1"]))
    world.api.pod["spec"]["nodeName"] = "site"
    world.act(Orphan(world.pool.site["u1"]))
    assert world.pool.asked == [("submit", "u1")]
    assert look(the_job=world.pool.site["u1"], entry=world.entry) == Wait(5)
    bound = pod("site", places.grant("site", TICKET))
    assert look(bound, the_job=job(asks=TICKET), entry=world.entry) == Grant(bound, TICKET), "when the cache shows it"


@pytest.mark.parametrize("recorded", ["other", ""])
@pytest.mark.parametrize("races", [True, False])
def test_a_place_whose_pod_may_return_is_withdrawn_and_its_record_stays(world, recorded, races):
    world.act(Offer(pod()))
    annotations = world.api.pod["metadata"]["annotations"]
    annotations[names.PLACES] = recorded
    if not races:
        del annotations[names.PLACEMENT]
    world.act(Orphan(world.pool.site["u1"]))
    assert (world.pool.asked[-1], world.pool.site["u1"].unused) == (("withdraw", "u1"), True)
    world.act(Orphan(world.pool.site["u1"]))
    assert world.pool.asked[-1] == ("withdraw", "u1")
    assert look(the_job=world.pool.site["u1"], entry=world.entry) == Wait(30)
    assert look(racer=pod(), the_job=world.pool.site["u1"], entry=world.entry) == Wait(10), "its pause, as ever"
    assert look(pod("site"), the_job=world.pool.site["u1"], entry=world.entry) == Submit(pod("site")), "at once"
    world.api.pod["spec"]["nodeName"] = "other"
    world.act(Orphan(world.pool.site["u1"]))
    assert world.pool.asked[-1] == ("forget", "u1")


def test_a_job_that_needs_no_grant_is_kept_until_its_pod_is_bound_elsewhere(world):
    world.act(Submit(pod("site")))
    world.api.pod["metadata"]["annotations"] = {}  # such as after the restore of an older etcd
    world.act(Orphan(world.pool.site["u1"]))
    world.pool.run("u1")
    world.act(Orphan(world.pool.site["u1"]))
    assert (world.pool.site["u1"].phase, world.pool.count("withdraw"), world.pool.count("cancel")) == ("running", 1, 0)
    world.api.pod["spec"]["nodeName"] = "other"
    world.act(Orphan(world.pool.site["u1"]))
    assert world.pool.site["u1"].phase == "ended"
