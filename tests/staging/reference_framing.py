"""The framing once more, written from docs/digest-framing.md and from nothing else."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import torch
import xxhash
from reference_blake3 import blake3

MAGIC = bytes.fromhex("73746167696e672d6672616d652d310a")

HASHES: dict[str, Callable[[bytes], bytes]] = {
    "blake3": lambda data: blake3(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "xxh3_128": lambda data: xxhash.xxh3_128_intdigest(data).to_bytes(16, "big"),
}


def u64(n: int) -> bytes:
    return n.to_bytes(8, "little")


def flat_bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().cpu()
    tensor = tensor.int_repr() if tensor.is_quantized else tensor
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return bytes(tensor.untyped_storage())[tensor.storage_offset() * tensor.element_size() :][
        : tensor.numel() * tensor.element_size()
    ]


def encode(value: object, hash_bytes: Callable[[bytes], bytes]) -> bytes:
    if value is None:
        return b"N"
    if value is True or value is False:
        return b"T" if value else b"F"
    if isinstance(value, int):
        bits = len(bin(abs(value))) - 2 if value else 0
        nbytes = bits // 8 + 1
        return b"i" + u64(nbytes) + (value % 256**nbytes).to_bytes(nbytes, "little")
    if isinstance(value, float):
        if str(value) == "nan":
            return bytes.fromhex("64000000000000f87f")
        return b"d" + struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return b"s" + u64(len(text)) + text
    if isinstance(value, bytes):
        return b"b" + u64(len(value)) + value
    if isinstance(value, (list, tuple)):
        items = b"".join(encode(item, hash_bytes) for item in value)
        return (b"l" if isinstance(value, list) else b"t") + u64(len(value)) + items
    if isinstance(value, dict):
        entries = sorted(
            (encode(key, hash_bytes), encode(item, hash_bytes)) for key, item in value.items()
        )
        return b"m" + u64(len(value)) + b"".join(key + item for key, item in entries)
    assert isinstance(value, torch.Tensor)
    name = str(value.dtype).removeprefix("torch.").encode()
    header = (
        (b"q" if value.is_quantized else b"x")
        + u64(len(name))
        + name
        + u64(value.dim())
        + b"".join(u64(size) for size in value.shape)
        + hash_bytes(flat_bytes(value))
    )
    if not value.is_quantized:
        return header
    scheme = str(value.qscheme()).removeprefix("torch.")
    if value.qscheme() in {torch.per_tensor_affine, torch.per_tensor_symmetric}:
        parameters = [scheme, value.q_scale(), value.q_zero_point()]
    else:
        parameters = [
            scheme,
            value.q_per_channel_axis(),
            value.q_per_channel_scales(),
            value.q_per_channel_zero_points(),
        ]
    return header + b"".join(encode(parameter, hash_bytes) for parameter in parameters)


def digest(algorithm: str, *values: object) -> bytes:
    hash_bytes = HASHES[algorithm]
    return hash_bytes(MAGIC + b"".join(encode(value, hash_bytes) for value in values))
