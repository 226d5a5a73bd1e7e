from typing import Any

import pytest

from bridge.errors import KubeTooLargeError, KubeUnavailableError
from bridge.kube.paging import PAGE, pages


class Lists:
    """A list of objects with sizes; a page of several objects above ``most`` is refused."""

    def __init__(self, sizes: list[int], most: int) -> None:
        self.sizes, self.most = sizes, most
        self.limits: list[int] = []

    def get(self, path: str, params: dict[str, Any], *, metadata_only: bool = False) -> dict[str, Any]:
        begin, limit = int(params.get("continue", 0)), params["limit"]
        self.limits.append(limit)
        found = self.sizes[begin : begin + limit]
        if limit > 1 and sum(found) > self.most:
            raise KubeTooLargeError("GET: more than 1 bytes")
        rest = str(begin + limit) if begin + limit < len(self.sizes) else ""
        return {"metadata": {"continue": rest}, "items": found}


@pytest.mark.parametrize(
    "sizes", [[], [1], [1] * 2000, [10] * 2000, [1] * 600 + [90] * 30 + [1] * 600, [1000], [99, 1] * 40]
)
def test_each_object_comes_once_whatever_the_sizes(sizes: list[int]) -> None:
    lists = Lists(sizes, 100)
    assert [size for page in pages(lists, "/p", {"a": "b"}) for size in page["items"]] == sizes  # type: ignore[arg-type]
    assert lists.limits[0] == PAGE
    assert len(lists.limits) <= 20 + len(sizes)


def test_small_objects_need_no_more_requests() -> None:
    lists = Lists([1] * 1200, 500)
    list(pages(lists, "/p"))  # type: ignore[arg-type]
    assert lists.limits == [500, 500, 500]


def test_one_object_that_is_too_large_is_an_error() -> None:
    class Refusing(Lists):
        def get(self, path: str, params: dict[str, Any], *, metadata_only: bool = False) -> dict[str, Any]:
            raise KubeTooLargeError("GET: more than 1 bytes")

    with pytest.raises(KubeUnavailableError):
        list(pages(Refusing([1], 0), "/p"))  # type: ignore[arg-type]
