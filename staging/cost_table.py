"""The stored cost tables: what each way of copying costs on this machine.

``python -m staging calibrate`` measures and stores them; see docs/cost-table.md.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any, TypedDict

from staging.extension import _C, torch

VERSION = 1
DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device")
METHODS = ("copy", "batch", "kernel")


class MethodCost(TypedDict):
    """``fixed_us + count * item_us + nbytes / gb_per_s``, with 10^9 bytes a second."""

    fixed_us: float
    item_us: float
    gb_per_s: float


# direction -> method -> cost
CostTable = dict[str, dict[str, MethodCost]]

# Devices whose stored table was looked for.
_looked_for: set[int] = set()
_looked_everywhere = False


def path() -> Path | None:
    """Return the file of the stored tables, or None where there is to be none.

    ``STAGING_COST_TABLE`` names it; empty means that the defaults are used. By default it is
    ``staging/cost-table.json`` in the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``).
    """
    named = os.environ.get("STAGING_COST_TABLE")
    if named is not None:
        return Path(named) if named else None
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache or Path.home() / ".cache") / "staging" / "cost-table.json"


def key(device: int) -> str:
    """Return what a table is stored under: the host's name and the device's."""
    return f"{platform.node()}/{torch.cuda.get_device_name(device)}"


def load(device: int) -> CostTable | None:
    """Return the stored table of a device, or None where there is none.

    Warns
    -----
    RuntimeWarning
        The file cannot be read, is damaged or of another version.
    """
    file = path()
    if file is None or not file.exists():
        return None
    try:
        content = json.loads(file.read_text())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}, not {VERSION}")
        entry = content["tables"].get(key(device))
        return None if entry is None else checked(entry["table"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(
            f"the cost table {file} is not used: {error}. Run 'python -m staging calibrate', or "
            "set STAGING_COST_TABLE= to use the defaults",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def store(device: int, table: CostTable, **notes: Any) -> Path:
    """Store a device's table, beside those of others; return the file.

    Parameters
    ----------
    device
        Whose table it is.
    table
        The table.
    **notes
        What is stored with it: when and with what it was measured.

    Raises
    ------
    ValueError
        The table is no table, or ``STAGING_COST_TABLE`` is empty.
    """
    file = path()
    if file is None:
        raise ValueError("STAGING_COST_TABLE is empty: there is no file to store the table in")
    tables: dict[str, Any] = {}
    if file.exists():
        try:
            content = json.loads(file.read_text())
            if content["version"] == VERSION:
                tables = dict(content["tables"])
        except (ValueError, KeyError, TypeError):
            pass  # damaged: replaced
    tables[key(device)] = {"table": checked(table), **notes}
    file.parent.mkdir(parents=True, exist_ok=True)
    # Replaced in one step: others may be reading it.
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with os.fdopen(descriptor, "w") as stream:
            json.dump({"version": VERSION, "tables": tables}, stream, indent=2, sort_keys=True)
            stream.write("\n")
        os.replace(temporary, file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return file


def use_stored(device: int) -> None:
    """Let copies of a device follow its stored table, if there is one. Looks once."""
    if device in _looked_for:
        return
    _looked_for.add(device)
    table = load(device)
    if table is not None:
        _C.set_cost_table(device, table)


def use_all_stored() -> None:
    """Do the same for every device, as soon as CUDA is initialised."""
    global _looked_everywhere  # noqa: PLW0603
    if _looked_everywhere or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for device in range(torch.cuda.device_count()):
        use_stored(device)
    _looked_everywhere = True


def checked(table: Any) -> CostTable:
    """Return a table of which every entry is there and makes sense.

    Raises
    ------
    ValueError
        One does not.
    """
    result: CostTable = {}
    for direction in DIRECTIONS:
        result[direction] = {}
        for method in METHODS:
            where = f"{direction}.{method}"
            try:
                entry = table[direction][method]
                cost = MethodCost(
                    fixed_us=float(entry["fixed_us"]),
                    item_us=float(entry["item_us"]),
                    gb_per_s=float(entry["gb_per_s"]),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{where} is missing or no number: {error!r}") from error
            values = (cost["fixed_us"], cost["item_us"], cost["gb_per_s"])
            if not all(map(math.isfinite, values)) or min(values) < 0 or cost["gb_per_s"] == 0:
                raise ValueError(f"{where} must be finite and not negative, got {values}")
            result[direction][method] = cost
    return result
