"""TensorHasher and content_key: equal content has equal keys, everything else differs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xxhash")

import staging  # noqa: E402
from staging import TensorHasher, content_key, sim, tensor_hexdigest  # noqa: E402

# Where the package that is tested lies: the checkout, or site-packages.
PACKAGE_ROOT = Path(staging.__file__).resolve().parents[1]


def request_of(device: str) -> dict[str, object]:
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).reshape(8, 8, 3).to(device)
    return {
        "images": [image, image.permute(2, 0, 1)],
        "prompt": "a café",
        "sampling": {"temperature": 0.5, "top_k": 40, "stop": None, "stream": True},
        "blob": b"\x00\x01",
        "embeds": (torch.linspace(0, 1, 10, dtype=torch.bfloat16).to(device),),
    }


def test_it_is_incremental():
    one = TensorHasher().update(1, "a", torch.ones(2))
    two = TensorHasher().update(1).update("a")
    two.update(torch.ones(2))
    assert one.digest() == two.digest()
    assert one.hexdigest() == one.digest().hex()
    assert one.digest() == one.digest()
    assert one.update(None).digest() != two.digest()


def test_values_side_by_side_are_not_a_list():
    assert TensorHasher().update(1, 2).digest() != TensorHasher().update([1, 2]).digest()
    assert TensorHasher().update("ab", "c").digest() != TensorHasher().update("a", "bc").digest()
    assert TensorHasher().digest() != TensorHasher().update(b"").digest()


@pytest.mark.parametrize("algorithm", ["blake3", "sha256", "xxh3_128"])
def test_a_copy_is_independent(algorithm):
    hasher = TensorHasher(algorithm).update("common")
    copy = hasher.copy()
    assert copy.algorithm == algorithm
    before = hasher.digest()
    assert copy.digest() == before
    copy.update(torch.ones(3))
    assert hasher.digest() == before
    assert copy.digest() == hasher.update(torch.ones(3)).digest()


def test_one_tensor_has_the_digest_of_the_tensor():
    tensor = torch.arange(12).reshape(3, 4)
    for algorithm in ("blake3", "sha256", "xxh3_128"):
        expected = tensor_hexdigest(tensor, algorithm)
        assert TensorHasher(algorithm).update(tensor).hexdigest() == expected
        assert content_key(tensor, algorithm=algorithm) == expected


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="'blake3', 'sha256', 'xxh3_128'"):
        TensorHasher("crc32")


@pytest.mark.parametrize(
    "value",
    [[torch.ones(2), object()], [torch.ones(2), torch.empty(2, device="meta")]],
    ids=["no encoding", "no bytes"],
)
def test_a_refused_update_adds_nothing(value):
    hasher = TensorHasher().update("before")
    digest = hasher.digest()
    with pytest.raises(TypeError):
        hasher.update("partly", value)
    assert hasher.digest() == digest


def test_equal_content_has_equal_keys_whatever_the_strides():
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    same = [
        base,
        base.clone(),
        base.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        torch.cat([base, base])[:2],
        torch.zeros(2, 3, 8)[:, :, ::2].copy_(base),
        base.clone().requires_grad_(),
        torch.nn.Parameter(base.clone()),
        base.numpy(),
        np.asfortranarray(base.numpy()),
    ]
    assert len({content_key(each) for each in same}) == 1


def test_different_content_has_different_keys():
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    changed = base.clone()
    changed[1, 2, 3] += 1
    different = [
        base, changed, base.reshape(4, 6), base.transpose(0, 1), base.double(),
        base.view(torch.int32), base[:1], [base], (base,), [base, base],
    ]  # fmt: skip
    assert len({content_key(each) for each in different}) == len(different)


@pytest.mark.cuda
def test_equal_content_has_equal_keys_on_every_device():
    expected = content_key(request_of("cpu"))
    for index in range(torch.cuda.device_count()):
        assert content_key(request_of(f"cuda:{index}")) == expected
    for algorithm in ("sha256", "xxh3_128"):
        assert content_key(request_of("cuda"), algorithm=algorithm) == content_key(
            request_of("cpu"), algorithm=algorithm
        )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_equal_content_has_equal_keys_in_every_process(device):
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_hasher import content_key, request_of\n"
        f"print(content_key(request_of({device!r})))"
    )
    keys = set()
    # A process without anything of this one's but the package; and one with the device.
    base = {"PATH": ""} if device == "cpu" else dict(os.environ)
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True,
            env={**base, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(PACKAGE_ROOT)},
        )  # fmt: skip
        keys.add(done.stdout.strip())
    assert keys == {content_key(request_of("cpu"))}


def test_the_key_of_a_request_is_what_it_always_was():
    """A change of the format must not go unnoticed: keys are stored."""
    assert (
        content_key(request_of("cpu"))
        == "a7070ac8166fbb9501c85a1e48d83df818798b112ba271544f058e8419bc6aa0"
    )


@pytest.mark.sim
def test_the_tensors_of_an_update_take_one_launch():
    value = request_of("cuda")
    content_key(value)
    torch.cuda.synchronize()
    with sim.count() as counts:
        content_key(value)
    assert counts["cudaLaunchKernel"] == 1
