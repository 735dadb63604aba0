"""A connection goes to the least loaded process, and waits for none that does not take it."""

from __future__ import annotations

import errno

import pytest

from staging.process.accept_gate import PATIENCE_S, PAUSE_S, UNREPORTED, AcceptGate


class Task:
    def add_done_callback(self, callback):
        self.finish = lambda: callback(self)


class Loop:
    """An event loop whose clock and events are the test's."""

    def __init__(self):
        self.now = 100.0
        self.reader = None
        self.timer = None
        self.tasks = []

    def time(self):
        return self.now

    def add_reader(self, fd, callback):
        assert self.reader is None
        self.reader = callback

    def remove_reader(self, fd):
        assert self.reader is not None
        self.reader = None

    def call_later(self, seconds, callback):
        assert self.timer is None
        self.timer = (self.now + seconds, callback)
        loop = self

        class Handle:
            def cancel(self):
                loop.timer = None

        return Handle()

    def create_task(self, coroutine):
        coroutine.close()
        self.tasks.append(Task())
        return self.tasks[-1]

    def run_until(self, when):
        """Let the time pass; the socket counts as readable throughout."""
        while True:
            if self.reader is not None:
                self.reader()
            if self.timer is None or self.timer[0] > when:
                break
            due, callback = self.timer
            self.now = max(self.now, due)
            self.timer = None
            callback()
        self.now = when


class Connection:
    def setblocking(self, flag):
        assert not flag


class Socket:
    """A listening socket with a number of connections in its queue."""

    def __init__(self, waiting=0):
        self.waiting = waiting
        self.error = None
        self.calls = []

    def fileno(self):
        return 3

    def setblocking(self, flag):
        self.calls.append(("setblocking", flag))

    def listen(self, backlog):
        self.calls.append(("listen", backlog))

    def accept(self):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if not self.waiting:
            raise BlockingIOError
        self.waiting -= 1
        return Connection(), None


def gate(loads, index=0, waiting=0):
    loop, sock = Loop(), Socket(waiting)
    return AcceptGate(loop, sock, lambda: None, loads=loads, index=index), loop, sock


def settle(made, loop, held):
    """Finish the handshakes; their connections are now held."""
    for task in loop.tasks:
        task.finish()
    loop.tasks.clear()
    made.set_held(held)


def test_it_listens_and_reports_itself_ready():
    loads = [UNREPORTED, UNREPORTED]
    _, _, sock = gate(loads, index=1)
    assert loads == [UNREPORTED, 0]
    assert ("listen", 2048) in sock.calls
    assert ("setblocking", False) in sock.calls


def test_the_least_loaded_accepts_until_another_is_less_loaded():
    loads = [UNREPORTED, 1]
    _, loop, sock = gate(loads, waiting=5)
    loop.reader()
    assert loads == [2, 1]  # the second while it held as many as the other
    assert sock.waiting == 3
    assert loop.reader is None  # it looks away


def test_a_process_that_has_not_reported_is_not_waited_for():
    loads = [UNREPORTED, UNREPORTED]
    _, loop, sock = gate(loads, waiting=5)
    loop.reader()
    assert sock.waiting == 0
    assert loop.timer is None


def test_a_connection_that_another_takes_in_time_is_left_to_it():
    loads = [UNREPORTED, 0]
    made, loop, sock = gate(loads)
    made.set_held(3)
    sock.waiting = 1
    loop.run_until(loop.now + PATIENCE_S / 2)
    assert sock.waiting == 1
    loads[1] = 4
    sock.waiting = 0
    loop.run_until(loop.now + PAUSE_S)
    assert loop.reader is not None
    assert loads[0] == 3


def test_a_connection_that_nobody_takes_is_accepted_after_a_while():
    loads = [UNREPORTED, 0]
    made, loop, sock = gate(loads)
    made.set_held(3)
    sock.waiting = 1
    start = loop.now
    loop.run_until(start + PATIENCE_S - 2 * PAUSE_S)
    assert sock.waiting == 1
    loop.run_until(start + PATIENCE_S + 2 * PAUSE_S)
    assert sock.waiting == 0


def test_who_let_a_connection_wait_is_ignored_until_its_number_moves():
    loads = [UNREPORTED, 0]
    made, loop, sock = gate(loads)
    made.set_held(3)
    sock.waiting = 1
    loop.run_until(loop.now + 2 * PATIENCE_S)
    settle(made, loop, 4)
    sock.waiting = 10
    loop.run_until(loop.now + PAUSE_S)
    assert sock.waiting == 0  # at once, and not one in 50 ms
    settle(made, loop, 14)
    loads[1] = 1  # it lives
    sock.waiting = 1
    loop.run_until(loop.now + PATIENCE_S / 2)
    assert sock.waiting == 1


def test_each_connection_that_waits_is_waited_for_anew():
    loads = [UNREPORTED, 0]
    made, loop, sock = gate(loads)
    made.set_held(3)
    sock.waiting = 1
    loop.run_until(loop.now + PATIENCE_S * 0.8)  # nearly, then another takes it
    sock.waiting = 0
    loop.now += 10  # nothing is readable for long
    sock.waiting = 1
    loop.run_until(loop.now + PATIENCE_S * 0.8)
    assert sock.waiting == 1


def test_while_no_connection_waits_no_timer_runs():
    loads = [UNREPORTED, 0]
    made, loop, _ = gate(loads)
    made.set_held(3)
    assert loop.timer is None
    assert loop.reader is not None


def test_a_connection_that_another_process_took_first_is_no_error():
    _, loop, _ = gate([UNREPORTED])
    loop.reader()
    assert loop.reader is not None


def test_a_connection_that_was_aborted_in_the_queue_is_passed_over():
    _, loop, sock = gate([UNREPORTED], waiting=1)
    sock.error = ConnectionAbortedError()
    loop.reader()
    assert sock.waiting == 0


def test_without_descriptors_it_pauses_and_goes_on():
    _, loop, sock = gate([UNREPORTED], waiting=1)
    sock.error = OSError(errno.EMFILE, "too many open files")
    loop.reader()
    assert loop.reader is None
    loop.run_until(loop.now + 1.5)
    assert sock.waiting == 0


def test_any_other_error_is_passed_on():
    _, loop, sock = gate([UNREPORTED])
    sock.error = OSError(errno.EBADF, "bad")
    with pytest.raises(OSError, match="bad"):
        loop.reader()


@pytest.mark.parametrize("looks_away", [False, True])
def test_once_closed_it_accepts_nothing_and_claims_no_connection(looks_away):
    loads = [UNREPORTED, 0]
    made, loop, sock = gate(loads)
    if looks_away:
        made.set_held(3)
        sock.waiting = 1
        loop.reader()
    made.close()
    made.close()
    assert loads[0] == UNREPORTED
    assert loop.reader is None
    assert loop.timer is None
    made.set_held(1)  # its last connections go
    assert loads[0] == UNREPORTED
