"""Every byte of a text is in one request of a pass, and in its place."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from staging.demo.corpus import (
    BEGIN_TOKEN,
    COMPLETION_BYTES,
    PROMPT_BYTES,
    SAMPLING_DTYPES,
    Document,
    cut,
    detokenize,
    read_documents,
    shipped_documents,
    tokenize,
)


def text_of(requests):
    return b"".join(bytes(request.tokens[1:].tolist()) for request in requests)


def test_the_package_ships_texts_in_utf8():
    documents = shipped_documents()
    assert [document.name for document in documents] == sorted(d.name for d in documents)
    assert len(documents) >= 3
    for document in documents:
        assert len(document.text.decode("utf-8").split()) > 500


def test_a_pass_uses_each_byte_once_and_in_order():
    documents = shipped_documents()
    requests = list(cut(documents, seed=3, passes=1))
    assert text_of(requests) == b"".join(document.text for document in documents)
    assert [request.number for request in requests] == list(range(len(requests)))


def test_requests_go_on_without_end_and_each_pass_is_cut_anew():
    documents = [Document("text", bytes(range(256)) * 20)]
    once = list(cut(documents, seed=1, passes=1))
    more = list(islice(cut(documents, seed=1), 3 * len(once)))
    assert len(more) == 3 * len(once)
    assert [len(r.tokens) for r in more[: len(once)]] == [len(r.tokens) for r in once]
    lengths = [len(request.tokens) for request in more]
    assert lengths[len(once) : 2 * len(once)] != lengths[: len(once)]


@pytest.mark.parametrize("size", [1, 2, 31, 5000])
def test_each_request_has_a_prompt_and_something_to_follow_it(size):
    for request in cut([Document("text", b"x" * size)], seed=0, passes=2):
        assert request.tokens[0] == BEGIN_TOKEN
        assert 1 <= request.prompt_tokens < len(request.tokens)
        assert len(request.tokens) <= 1 + PROMPT_BYTES[1] + COMPLETION_BYTES[1]
        assert request.prompt_tokens <= 1 + PROMPT_BYTES[1]
        assert set(request.sampling) == set(SAMPLING_DTYPES)


def test_a_seed_says_it_all():
    def facts(seed):
        requests = islice(cut(shipped_documents(), seed=seed), 50)
        return [(r.tokens.tolist(), r.prompt_tokens, r.sampling) for r in requests]

    assert facts(5) == facts(5)
    assert facts(5) != facts(6)


def test_tokens_are_bytes_and_come_back_as_text():
    text = "lycée — ¼"
    tokens = tokenize(text.encode())
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [BEGIN_TOKEN, *text.encode()]
    assert detokenize(tokens.tolist()) == text
    assert detokenize([0xC3]) == "\ufffd"


def test_files_are_read_as_bytes(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"\xff\x00\xfe")
    (document,) = read_documents([path])
    assert document == Document(str(path), b"\xff\x00\xfe")


def test_an_empty_or_missing_text_is_refused_by_name(tmp_path):
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        read_documents([empty])
    with pytest.raises(OSError, match=r"missing\.txt"):
        read_documents([tmp_path / "missing.txt"])
    for documents in ([], [Document("empty", b"")]):
        with pytest.raises(ValueError, match="one text or more"):
            cut(documents, seed=0)
