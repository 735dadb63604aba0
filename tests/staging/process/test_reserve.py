"""Descriptors are kept from before they are needed, and given up when none is left."""

from __future__ import annotations

import errno
import os

import pytest

from staging.process import reserve


@pytest.fixture
def held(monkeypatch):
    monkeypatch.setattr(reserve, "_held", [])
    reserve.hold()
    yield reserve._held
    reserve.release()


def failing(times, number=errno.EMFILE):
    calls = []

    def open_():
        calls.append(1)
        if len(calls) <= times:
            raise OSError(number, "injected")
        return len(calls)

    return open_


def test_one_is_given_up_for_each_failure_and_the_reserve_is_filled_again(held):
    assert reserve.opened(failing(3)) == 4
    assert len(held) == reserve.SIZE - 3
    reserve.refill()
    assert len(held) == reserve.SIZE


def test_the_error_passes_through_once_the_reserve_is_used_up(held):
    with pytest.raises(OSError, match="injected"):
        reserve.opened(failing(reserve.SIZE + 1))
    assert held == []


def test_other_errors_use_nothing_up(held):
    with pytest.raises(FileNotFoundError):
        reserve.opened(failing(1, errno.ENOENT))
    assert len(held) == reserve.SIZE


def test_they_are_not_inherited_and_are_closed_at_the_end(held):
    fds = list(held)
    assert not any(os.get_inheritable(fd) for fd in fds)
    reserve.release()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def test_what_is_not_held_is_not_filled_again(monkeypatch):
    monkeypatch.setattr(reserve, "_held", [])
    reserve.refill()
    assert reserve._held == []
