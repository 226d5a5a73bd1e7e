import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config.documents import yaml_document, yaml_documents
from bridge.errors import ConfigError

TAGS = ["!!bool ", "!!int ", "!!float ", "!!timestamp ", "!!binary ", "!!set ", "!!omap "]
SIGNS = ["a: ", "- ", "{", "}", "[", "]", "&a ", "*a ", "<<: ", "? ", "\n", "  ", "'", "x", "|", "%", "---\n"]
WORDS = st.sampled_from([*TAGS, *SIGNS, "2024-99-99", "0b_", "1:99"])
TEXTS = st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=30).map("".join))


@given(TEXTS)
def test_each_text_is_a_document_or_a_named_error(text):
    for read in (yaml_document, yaml_documents):
        try:
            read(text, "file.yaml")
        except ConfigError as error:
            assert str(error).startswith("file.yaml: not YAML: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [("a: 1\nb: 2024-02-30", "line 2"), ("--- 1\n--- !!int b", "line 2"), ("a: [0b_]", "line 1")]
    + [(f"a: !!{tag}", "line 1") for tag in ("bool", "int", "float", "timestamp")],
)
def test_a_value_that_does_not_exist_is_named_with_its_place(text, place):
    with pytest.raises(ConfigError, match=rf"is not allowed: .*; a text needs quotes\n.*{place}"):
        yaml_documents(text, "file.yaml")


def test_documents_of_a_file():
    assert yaml_documents(io.StringIO("a: 1\n---\n---\n[2]"), "f") == [{"a": 1}, None, [2]]
    assert yaml_document("", "f") is None


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"a: \xff\xff")
    with path.open(encoding="utf-8") as file, pytest.raises(ConfigError, match="f: not UTF-8"):
        yaml_documents(file, "f")
