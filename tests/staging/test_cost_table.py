"""Stored cost tables: found, checked, replaced whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from staging import cost_table  # noqa: E402
from staging.extension import _C  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "table.json"
    monkeypatch.setenv("STAGING_COST_TABLE", str(path))
    monkeypatch.setattr(cost_table, "key", lambda device: f"here/device {device}")
    return path


def table(**changes):
    result = _C.default_cost_table()
    for name, value in changes.items():
        direction, method, field = name.split("__")
        result[direction][method][field] = value
    return result


def test_the_file_is_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("STAGING_COST_TABLE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cost_table.path() == tmp_path / "staging" / "cost-table.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cost_table.path() == Path.home() / ".cache" / "staging" / "cost-table.json"
    monkeypatch.setenv("STAGING_COST_TABLE", "")
    assert cost_table.path() is None


def test_what_was_stored_is_loaded_for_its_device_alone(file):
    assert cost_table.load(0) is None
    cost_table.store(0, table(host_to_device__copy__fixed_us=7.5), measured="now")
    cost_table.store(1, table(host_to_device__copy__fixed_us=8.5))
    assert cost_table.load(0)["host_to_device"]["copy"]["fixed_us"] == 7.5
    assert cost_table.load(1)["host_to_device"]["copy"]["fixed_us"] == 8.5
    assert cost_table.load(2) is None
    content = json.loads(file.read_text())
    assert content["version"] == cost_table.VERSION
    assert content["tables"]["here/device 0"]["measured"] == "now"
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"version": 0, "tables": {}}',
        '{"version": 1, "tables": {"here/device 0": {"table": {}}}}',
        '{"version": 1, "tables": {"here/device 0": 3}}',
    ],
)
def test_a_damaged_or_foreign_file_is_named_and_not_used(file, content):
    file.parent.mkdir()
    file.write_text(content)
    with pytest.warns(RuntimeWarning, match=r"table\.json.*calibrate"):
        assert cost_table.load(0) is None
    cost_table.store(0, table())  # and replaced by the next one
    assert cost_table.load(0) == table()


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "many", None])
def test_a_table_that_makes_no_sense_is_refused(file, bad):
    with pytest.raises(ValueError, match=r"device_to_host\.batch"):
        cost_table.store(0, table(device_to_host__batch__item_us=bad))
    assert not file.exists()


def test_with_the_variable_empty_there_is_nothing_to_store_in(monkeypatch):
    monkeypatch.setenv("STAGING_COST_TABLE", "")
    assert cost_table.load(0) is None
    with pytest.raises(ValueError, match="STAGING_COST_TABLE"):
        cost_table.store(0, table())


def test_a_stored_table_is_used_once_it_is_looked_for(file, monkeypatch):
    device = 40  # of no machine that runs this
    monkeypatch.setattr(cost_table, "_looked_for", set())
    cost_table.store(device, table(host_to_device__kernel__item_us=0.125))
    cost_table.use_stored(device)
    assert _C.cost_table(device)["host_to_device"]["kernel"]["item_us"] == 0.125
    cost_table.store(device, table(host_to_device__kernel__item_us=0.25))
    cost_table.use_stored(device)  # looks once
    assert _C.cost_table(device)["host_to_device"]["kernel"]["item_us"] == 0.125


def test_the_extension_refuses_what_is_no_table():
    with pytest.raises(ValueError, match="gb_per_s"):
        _C.set_cost_table(41, table(host_to_device__copy__gb_per_s=0.0))
    with pytest.raises(ValueError, match="device"):
        _C.set_cost_table(-1, table())


def test_the_page_shows_the_defaults():
    """docs/cost-table.md has the numbers that the code has."""
    page = (ROOT / "docs" / "cost-table.md").read_text()
    found = {}
    direction = ""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[1] in cost_table.METHODS:
            direction = cells[0].replace(" ", "_") or direction
            found[direction, cells[1]] = tuple(float(cell) for cell in cells[2:])
    defaults = {
        (direction, method): (cost["fixed_us"], cost["item_us"], cost["gb_per_s"])
        for direction, methods in _C.default_cost_table().items()
        for method, cost in methods.items()
    }
    assert found == defaults


def test_every_source_on_the_page_is_linked():
    page = (ROOT / "docs" / "cost-table.md").read_text()
    used = set(re.findall(r"\[([\w-]+ #\d+|DualPath)\]", page))
    linked = set(re.findall(r"^\[([^\]]+)\]: https://", page, re.MULTILINE))
    assert used == linked
