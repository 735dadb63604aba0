"""The exceptions that come from the device runtime."""

from __future__ import annotations

from staging.extension import _C

DeviceError = _C.DeviceError
OutOfMemory = _C.OutOfMemory

__all__ = ["DeviceError", "OutOfMemory"]
