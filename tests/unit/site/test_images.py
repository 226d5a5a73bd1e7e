"""The cache of pulled images: what is removed from it, and that nothing in use is."""

import fcntl
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.site.config.site_config import Images, parse
from bridge.site.images import CachedImage, ImageCache, to_evict
from tests.fakes.clock import FakeClock

NOW = 10 * 86400.0
SIZES = st.integers(0, 100)
AGES = st.integers(-5, 100)
IMAGES = st.lists(st.tuples(SIZES, AGES, st.booleans()), max_size=12).map(
    lambda rows: [CachedImage(f"{n:02}", size, NOW - age, used) for n, (size, age, used) in enumerate(rows)]
)


@given(IMAGES, st.integers(0, 400), st.integers(0, 100))
def test_what_is_removed(images, most_bytes, most_seconds):
    gone = to_evict(images, NOW, most_bytes, most_seconds)
    by_key = {image.key: image for image in images}
    kept = [image for image in images if image.key not in gone]
    idle = [image for image in kept if not image.in_use]
    assert len(gone) == len(set(gone)) and not any(by_key[key].in_use for key in gone)
    # the limits hold, as far as images in use let them
    assert sum(image.size for image in kept) <= most_bytes or not idle
    assert not most_seconds or all(NOW - image.used_at <= most_seconds for image in idle)
    # the least recently used go first
    assert all(by_key[key].used_at <= image.used_at for key in gone for image in idle)
    # and nothing goes that both limits allow
    for number, key in enumerate(gone):
        before = sum(image.size for image in images if image.key not in gone[:number])
        assert before > most_bytes or (most_seconds and NOW - by_key[key].used_at > most_seconds)


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def cache_of(folder, **settings):
    held = {"settings": Images(**settings)}
    made = ImageCache(folder, lambda: held["settings"], FakeClock(NOW))
    made.prepare()
    return made, held


def put(cache, digit, size=10, age=0.0):
    at = cache.path / (digit * 64)
    at.mkdir()
    (at / "image").write_bytes(b"x" * size)
    (at / "name").write_text(f"docker://image/{digit}:1\n")
    os.utime(at / "image", (NOW - age, NOW - age))
    return at


def test_removed_for_its_age_or_the_size_of_all(folder):
    cache, held = cache_of(folder, cache_size="100", cache_days=1)
    old, used = put(cache, "a", age=90000), put(cache, "b", age=95000)
    middle, new = put(cache, "c", 60, 50), put(cache, "d", 30)
    os.link(used / "image", folder / "main.sif")
    cache.enforce_limits()
    assert [at.exists() for at in (old, used, middle, new)] == [False, True, True, True]
    held["settings"] = Images(cache_size="75", cache_days=0)
    cache.enforce_limits()
    assert [at.exists() for at in (used, middle, new)] == [True, False, True]
    (folder / "main.sif").unlink()
    held["settings"] = Images(cache_size="0")
    cache.enforce_limits()
    assert not used.exists() and not new.exists() and not (cache.path / "on").exists()


def test_what_a_killed_pull_left_goes_and_a_pull_under_way_stays(folder):
    cache, _ = cache_of(folder)
    whole, begun, busy = put(cache, "a"), put(cache, "b"), put(cache, "c")
    for at in (whole, begun, busy):
        (at / "new.Xy12Ab").mkdir()
        (at / "new.Xy12Ab" / "image").write_text("half")
    for at in (begun, busy):
        (at / "image").unlink()
    with (cache.path / "locks" / "ccc").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache.enforce_limits()
        assert sorted(os.listdir(whole)) == ["image", "name"] and not begun.exists()
        assert (busy / "new.Xy12Ab" / "image").read_text() == "half"
    cache.enforce_limits()
    assert not busy.exists()


def test_nothing_else_in_the_folder_is_touched(folder):
    cache, _ = cache_of(folder, cache_size="0")
    (cache.path / "podman").mkdir()
    (cache.path / "README").write_text("")
    cache.enforce_limits()
    assert sorted(os.listdir(cache.path)) == ["README", "locks", "podman"]


def test_nobody_else_can_put_an_image_there(folder):
    """The site's folder is 0700 as well; what somebody made in it before it was is refused."""
    cache, _ = cache_of(folder)
    assert cache.path.stat().st_mode & 0o777 == 0o700
    cache.path.chmod(0o770)
    with pytest.raises(ConfigError, match=r"image-cache is no folder that user [0-9]+ alone can read and write"):
        cache.prepare()
    cache.path.chmod(0o700)
    cache.path.rename(folder / "elsewhere")
    cache.path.symlink_to("elsewhere")
    with pytest.raises(ConfigError, match="image-cache is no folder"):
        cache.prepare()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('cache_size = "-1Gi"', r"images\.cache_size: '-1Gi' is not allowed; allowed: 0, or a quantity such as 20Gi"),
        ('cache_size = "20GB"', r"images\.cache_size: '20GB' is not a quantity"),
        ("cache_days = -1", r"images\.cache_days: .*greater than or equal to 0 \(value: -1\)"),
        ("cache_age = 3", r"unknown key images\.cache_age"),
    ],
)
def test_limits_that_are_none(line, message):
    with pytest.raises(ConfigError, match=message):
        parse(f'pool = "p"\n[images]\n{line}\n')


def test_limits_by_default():
    assert parse('pool = "p"').images.most_bytes == 20 * 2**30


def test_a_link_instead_of_the_name_of_an_image_is_not_followed(folder, caplog):
    """A container without an image has the same user; to read a FIFO in its place would never end."""
    cache, _ = cache_of(folder, cache_size="5")
    at = put(cache, "a")
    (folder / "secret").write_text("of somebody else")
    (at / "name").unlink()
    (at / "name").symlink_to(folder / "secret")
    with caplog.at_level("INFO"):
        cache.enforce_limits()
    [record] = caplog.records
    assert record.kv["image"] == ""
