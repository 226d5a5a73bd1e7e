from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from bridge.pools.nunet import capacity
from bridge.pools.nunet.capacity import Group
from bridge.pools.nunet.choice import PeerRequirements, choose
from bridge.pools.nunet.dialect import peers
from bridge.pools.nunet.gpus import kind_of
from bridge.pools.nunet.peer import Gpu, Peer, Resources
from cluster import dms

GIB = 2**30
CARD = kind_of("RTX 3080", 10240)


def peer(name, cpus=8, gpus=0, **more):
    cards = tuple(Gpu(CARD, 10240, 10240) for _ in range(gpus))
    return Peer(name, True, Decimal(cpus), Decimal(cpus * 3000), 16 * GIB, gpus=cards, **more)


def pick(found, asked, requirements=None, own=None):
    free = {each.id: each.resources(0.9) for each in found}
    return choose(found, free, own or {}, asked, requirements or PeerRequirements())


ASKED = Resources(Decimal(2), GIB)


def test_the_cheapest_then_the_nearest_then_the_tightest():
    dear, near = peer("a", price=9.0, latency=1), peer("b", price=2.0, latency=5)
    far, unknown = peer("c", price=2.0, latency=50), peer("d")
    assert pick([dear, unknown, far, near], ASKED).peer.id == "b"
    assert pick([dear, unknown], ASKED).peer.id == "a"
    assert pick([peer("x", gpus=2), peer("y"), peer("z", cpus=3)], ASKED).peer.id == "z"  # GPUs stay for pods with GPUs


def test_what_a_pod_requires_of_its_peer():
    here = peer("here", localities=frozenset({"it"}), channels=frozenset({"lab"}), latency=10.0, price=3.0)
    there = peer("there")
    for requirements, chosen in (
        (PeerRequirements(localities=frozenset({"it"})), "here"),
        (PeerRequirements(channels=frozenset({"lab"})), "here"),
        (PeerRequirements(max_latency=20), "here"),
        (PeerRequirements(max_price=1), "there"),
        (PeerRequirements(peers=frozenset({"there"})), "there"),
        (PeerRequirements(frequency=3000), "here"),
    ):
        assert pick([here, there], ASKED, requirements).peer.id == chosen
    refused = pick([here, there], ASKED, PeerRequirements(localities=frozenset({"fr"}), frequency=1))
    assert refused.peer is None
    assert "peer here: locality it" in refused.reason
    assert "peer there: locality not stated" in refused.reason
    assert "CPUs of 3000 MHz" in pick([here], ASKED, PeerRequirements(frequency=4000)).reason


def test_a_refusal_names_what_is_free():
    found = pick([peer("a", cpus=2, gpus=1)], Resources(Decimal(4), GIB))
    assert found.reason == (
        "no peer takes the pod (cpu 4, memory 1024Mi): peer a: less than cpu 4; free: cpu 2, memory 16384Mi, "
        "1 GPU nvidia.rtx.3080.10gb"
    )
    assert not found.may_fit_later


def test_a_pod_that_fits_when_own_jobs_have_ended_waits():
    asked = Resources(Decimal(4), GIB)
    assert pick([peer("a", cpus=2)], asked, own={"a": Resources(Decimal(6), GIB)}).may_fit_later
    assert not pick([peer("a", cpus=2)], asked, own={"b": Resources(Decimal(6), GIB)}).may_fit_later


AMOUNTS = st.builds(
    peer,
    st.sampled_from("abcdefgh"),
    st.integers(0, 16),
    st.integers(0, 4),
    price=st.none() | st.floats(0, 10),
    latency=st.none() | st.floats(0, 100),
)


@given(
    st.lists(AMOUNTS, max_size=6, unique_by=lambda each: each.id),
    st.integers(1, 20),
    st.integers(0, 5),
    st.none() | st.floats(0, 10),
)
def test_a_chosen_peer_always_fits_and_none_cheaper_does(found, cpus, gpus, max_price):
    asked = Resources(Decimal(cpus), GIB, gpus={str(CARD): gpus} if gpus else {})
    requirements = PeerRequirements(max_price=max_price)
    chosen = pick(found, asked, requirements)
    fitting = [each for each in found if not requirements.refusal(each) and not each.resources(0.9).lacks(asked)]
    assert (chosen.peer is not None) == bool(fitting)
    if chosen.peer is not None:
        assert chosen.peer in fitting
        prices = [each.price for each in fitting if each.price is not None]
        assert not prices or chosen.peer.price == min(prices)
    else:
        assert chosen.reason


def test_the_rule_for_the_published_peers():
    """Available peers only, sums, the largest single peer; the published answer contradicts the published list."""
    found = peers(dms.published_peers())
    free = {each.id: each.resources(0.9) for each in found if each.available}
    whole = capacity.total(free.values())
    assert whole.quantities() == {
        "cpu": "18",
        "memory": f"{4000 + 113855}Mi",
        "nunet.io/cpu.mhz": str(4000 + 114299),
        "nunet.io/gpu.nvidia.rtx.3080.10gb": "4",
        "nunet.io/gpu.nvidia.rtx.3090.24gb": "2",
    }
    assert capacity.labels(free) == {
        "type": "virtual-kubelet",
        "gpu-type": "nvidia.rtx.3080.10gb",
        "nunet.io/largest-peer-cpu": "17",
        "nunet.io/largest-peer-memory": "113855Mi",
        "nunet.io/largest-peer-gpus": "6",
    }
    flat = capacity.flat({**whole.quantities(), "pods": "7", "nvidia.com/gpu": "3"})
    assert flat == {
        "nunet.gpu.nvidia.rtx.3080.10gb": 4,
        "nunet.gpu.nvidia.rtx.3090.24gb": 2,
        "nunet.cpu.cores": 18,
        "nunet.cpu.mhz": 118299,
        "nunet.ram.gb": (4000 + 113855) // 1024,
    }
    assert flat.keys() < dms.PUBLISHED_RESOURCES.keys()


def test_a_peer_is_in_the_first_group_that_selects_it():
    found = peers(dms.published_peers())
    groups = [Group(gpu_types=("nvidia.rtx.*",)), Group(gpu_types=("none",)), Group()]
    names = [[each.id for each in capacity.members(found, groups, index)] for index in range(3)]
    assert names == [["QmPeer3"], ["QmPeer1"], ["QmPeer2"]]


def test_no_peers_are_no_resources():
    assert capacity.total([]).quantities() == {"cpu": "0", "memory": "0Mi", "nunet.io/cpu.mhz": "0"}
    assert capacity.labels({})["nunet.io/largest-peer-cpu"] == "0"
