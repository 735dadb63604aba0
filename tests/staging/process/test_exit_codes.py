"""An exit code is learned though other threads ask for it, and never made up."""

from __future__ import annotations

import os
import threading
import time
import types

import pytest

from staging.process import pidfd
from staging.process.exit_codes import exit_code_of


@pytest.fixture
def ended():
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    fd = pidfd.open_pidfd(pid)
    pidfd.wait_any([fd], 20)
    yield fd
    pidfd.reap(fd)
    os.close(fd)


def test_what_the_object_says_counts():
    assert exit_code_of(types.SimpleNamespace(exitcode=3)) == 3


def test_a_pidfd_knows_what_the_object_does_not(ended):
    assert exit_code_of(types.SimpleNamespace(exitcode=None), ended) == 7


def test_a_code_that_another_thread_is_about_to_note_is_waited_for():
    proc = types.SimpleNamespace(exitcode=None)
    threading.Timer(0.02, lambda: setattr(proc, "exitcode", 5)).start()
    assert exit_code_of(proc) == 5


def test_a_code_that_cannot_be_known_is_none_soon(ended):
    pidfd.reap(ended)
    begin = time.monotonic()
    assert exit_code_of(types.SimpleNamespace(exitcode=None), ended) is None
    assert time.monotonic() - begin < 3


def test_a_closed_object_is_no_error():
    class Closed:
        @property
        def exitcode(self):
            raise ValueError("closed")

    assert exit_code_of(Closed()) is None


def test_a_descriptor_of_another_kind_is_no_error():
    reader, writer = os.pipe()
    assert exit_code_of(types.SimpleNamespace(exitcode=0), reader) == 0
    os.close(reader)
    os.close(writer)
