"""The algorithms by name, and that they survive a fork and a missing package."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
xxhash = pytest.importorskip("xxhash")

from reference_blake3 import against_the_package, blake3  # noqa: E402

from staging import algorithms  # noqa: E402
from staging.extension import _C  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "tests" / "data" / "blake3_vectors.json").read_text())["cases"]


def pattern(nbytes: int) -> bytes:
    return (bytes(range(251)) * (nbytes // 251 + 1))[:nbytes]


@against_the_package
@pytest.mark.parametrize("nbytes", [0, 1, 100, 3 << 20])
def test_digests_are_those_of_the_packages(nbytes):
    data = pattern(nbytes)
    assert algorithms.digest_bytes("blake3", data) == blake3(data).digest()
    assert algorithms.digest_bytes("sha256", data) == hashlib.sha256(data).digest()
    assert algorithms.digest_bytes("xxh3_128", data) == xxhash.xxh3_128(data).digest()


@pytest.mark.parametrize("name", ["md5", "BLAKE3", "", None, 3])
def test_an_unknown_algorithm_is_refused_and_the_known_are_listed(name):
    with pytest.raises(ValueError, match=r"'blake3', 'sha256', 'xxh3_128', got"):
        algorithms.new_hasher(name)


def test_the_list_of_algorithms_is_complete():
    for name in algorithms.ALGORITHMS:
        assert len(algorithms.digest_bytes(name, b"x")) in {16, 32}


def test_the_extensions_blake3_matches_the_official_vectors():
    assert len(VECTORS) == 35
    for case in VECTORS:
        hasher = _C.Blake3()
        hasher.update(pattern(case["input_len"]))
        assert hasher.digest().hex() == case["hash"]


@against_the_package
def test_the_extensions_blake3_matches_the_package_for_every_length(seed):
    rng = random.Random(seed)
    data = rng.randbytes(1 << 20)
    # As many short ones as long ones, in terms of their logarithm; and the tree's boundaries.
    lengths = [int(2 ** rng.uniform(0, 20)) for _ in range(10_000)]
    lengths += [
        1024 * 2**k + d for k in range(11) for d in (-1, 0, 1) if 1024 * 2**k + d <= 1 << 20
    ]
    for nbytes in lengths:
        at = rng.randint(0, len(data) - nbytes)
        part = memoryview(data)[at : at + nbytes]
        hasher = _C.Blake3()
        hasher.update(part)
        assert hasher.digest() == blake3(part).digest(), nbytes


@against_the_package
def test_the_extensions_blake3_is_incremental(seed):
    rng = random.Random(seed)
    ours, theirs = _C.Blake3(), blake3()
    for _ in range(200):
        part = rng.randbytes(rng.choice([0, 1, 63, 64, 65, 1023, 1024, 1025, 5000]))
        ours.update(bytearray(part))
        theirs.update(part)
        assert ours.digest() == theirs.digest()
        copy = ours.copy()
        copy.update(b"more")
        assert ours.digest() == theirs.digest()


def test_the_extensions_blake3_refuses_what_is_no_buffer():
    with pytest.raises(TypeError):
        _C.Blake3().update("text")


def test_without_the_package_blake3_comes_from_the_extension():
    code = (
        "import sys; sys.modules['blake3'] = None\n"
        "from staging import algorithms\n"
        "hasher = algorithms.new_hasher('blake3')\n"
        "assert type(hasher).__module__.startswith('staging'), type(hasher)\n"
        "print(algorithms.digest_bytes('blake3', b'abc').hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == blake3(b"abc").digest().hex(), done.stderr


def test_without_its_package_an_algorithm_says_what_to_install():
    code = (
        "import sys; sys.modules['xxhash'] = None\n"
        "from staging import algorithms\n"
        "algorithms.new_hasher('xxh3_128')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'tensor-staging[hash]'" in done.stderr


def test_a_forked_child_does_not_wait_for_its_parents_threads():
    data = bytes(4 << 20)
    expected = algorithms.digest_bytes("blake3", data)  # starts blake3's threads here
    child = os.fork()
    if child == 0:
        os._exit(0 if algorithms.digest_bytes("blake3", data) == expected else 1)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pytest.fail("the child waits for ever")
