"""A child's descendants are found, whatever they did to hide, and nobody else is."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from staging.process import descendants

SLEEP = ["sleep", "1000"]


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_gone(pid):
    stat = descendants.read_stat(pid)
    return stat is None or stat.is_dead


@pytest.fixture
def tree(household, tmp_path):
    """A shell that leads a session and carries a mark, and the pids below it."""
    mark = descendants.new_mark()
    script = """
        echo $$ > shell
        sleep 1000 & echo $! > plain
        setsid sleep 1000 & echo $! > session
        sh -c 'setsid sleep 1000 & echo $! > orphan'
        env -i sleep 1000 & echo $! > scrubbed
        env -i setsid sleep 1000 & echo $! > hidden
        touch complete; wait
    """
    process = subprocess.Popen(
        ["sh", "-c", script],
        cwd=tmp_path,
        start_new_session=True,
        env=descendants.marked_environment(os.environ, [mark]),
    )
    wait_for((tmp_path / "complete").exists)
    names = ("plain", "session", "orphan", "scrubbed", "hidden")
    pids = {name: int((tmp_path / name).read_text()) for name in names}
    # Each must have come to its exec, so that its environment is its own.
    for pid in pids.values():
        wait_for(lambda pid=pid: pathlib.Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    yield process, mark, pids
    household.kill()
    process.wait()


def found(*args, **kwargs):
    return {stat.pid for stat in descendants.find_family(*args, **kwargs)}


def test_a_mark_is_inherited_across_sessions_and_orphanhood(tree):
    process, mark, pids = tree
    expected = {pids["plain"], pids["session"], pids["orphan"], process.pid}
    # The scrubbed are found as descendants of those that are.
    assert found([mark]) == expected | {pids["scrubbed"], pids["hidden"]}


def test_a_group_has_those_that_did_not_leave_it(tree):
    process, _, pids = tree
    by_group = found(groups=[process.pid])
    assert {process.pid, pids["plain"], pids["scrubbed"]} <= by_group
    assert pids["orphan"] not in by_group


def test_parents_lead_to_those_without_a_mark(tree):
    process, _, pids = tree
    below = found(roots=[process.pid])
    assert below == {pids[name] for name in ("plain", "session", "scrubbed", "hidden")}


def test_marks_of_others_do_not_count(tree):
    assert found([descendants.new_mark()]) == set()


def test_older_processes_are_not_asked_for_their_mark(tree):
    process, mark, _ = tree
    start = descendants.read_stat(process.pid).start
    assert process.pid in found([mark], since=start)
    assert found([mark], since=start + 100 * os.sysconf("SC_CLK_TCK")) == set()


def test_killing_a_family_leaves_none_of_it(tree):
    process, mark, pids = tree
    descendants.kill_family([mark], groups=[process.pid], roots=[process.pid], spare=[process.pid])
    for pid in pids.values():
        wait_for(lambda pid=pid: is_gone(pid))


def test_a_child_that_forks_while_it_is_looked_for_leaves_nothing(household, monkeypatch):
    """What it forks between a listing and its end has no mark, and soon no parent."""
    script = (
        "import os, time\n"
        "while True:\n"
        "  if os.fork() == 0: os.setsid(); time.sleep(1000)\n"
        "  time.sleep(0.002)\n"
    )
    root = subprocess.Popen(["sleep", "1000"])
    process = subprocess.Popen([sys.executable, "-S", "-c", script], env={})
    stat = descendants.read_stat(process.pid)
    wait_for(lambda: len(found(roots=[process.pid])) > 3)
    real = descendants._look_for

    def slow(*args):
        listing = real(*args)
        time.sleep(0.02)
        return listing

    monkeypatch.setattr(descendants, "_look_for", slow)
    killed = descendants.kill_family(roots=[os.getpid()], spare=[root.pid], timeout=5)
    monkeypatch.undo()
    assert stat.key in {other.key for other in killed}
    left = {other.pid for other in household.members() if not other.is_dead}
    assert left == {root.pid}
    root.kill()
    root.wait()
    process.wait()


def test_an_interrupted_kill_leaves_nothing_stopped(household, monkeypatch):
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    # It must have come to its exec: until then it is looked at again before it is stopped.
    wait_for(lambda: pathlib.Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    wait_for(lambda: descendants.read_command(process.pid))
    calls = []
    real = descendants._look_for

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(descendants, "_look_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        descendants.kill_family(groups=[process.pid])
    assert process.wait(20) == -signal.SIGKILL


def test_a_family_that_forks_all_the_time_is_killed_too(household, tmp_path):
    mark = descendants.new_mark()
    script = "import os\nwhile True:\n  pid = os.fork()\n  if pid: os._exit(0)\n"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", script],
        start_new_session=True,
        env=descendants.marked_environment(os.environ, [mark]),
    )
    process.wait()
    time.sleep(0.2)
    for _ in range(20):
        descendants.kill_family([mark], groups=[process.pid])
        household.reap()
        if not found([mark]):
            return
    pytest.fail("it outran twenty sweeps")


def test_lineages_add_up():
    environment = descendants.marked_environment({"A": "b"}, ["one"])
    environment = descendants.marked_environment(environment, ["two", "three"])
    assert environment[descendants.LINEAGE] == "one:two:three"
    assert environment["A"] == "b"


def test_marks_are_read_wherever_they_stand_in_the_environment(household):
    for before, after in (({}, {}), ({"AA": "1"}, {"ZZ": "2"})):
        env = {**before, descendants.LINEAGE: "x:y", **after}
        process = subprocess.Popen(SLEEP, env=env, executable="/bin/sleep")
        wait_for(lambda p=process: descendants.read_marks(p.pid))
        assert descendants.read_marks(process.pid) == {"x", "y"}
        process.kill()
        process.wait()


def test_a_longer_name_is_not_the_lineage(household):
    env = {"NOT_" + descendants.LINEAGE: "x"}
    process = subprocess.Popen(SLEEP, env=env, executable="/bin/sleep")
    wait_for(lambda: pathlib.Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
    assert descendants.read_marks(process.pid) == frozenset()
    process.kill()
    process.wait()


def test_a_name_with_parentheses_does_not_confuse_the_line(household, tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "1000"])
    wait_for(lambda: b")" in pathlib.Path(f"/proc/{process.pid}/comm").read_bytes())
    stat = descendants.read_stat(process.pid)
    assert stat.ppid == os.getpid()
    assert stat.sid == os.getsid(process.pid)
    process.kill()
    process.wait()


def test_a_pid_that_was_given_away_is_not_signalled(household):
    process = subprocess.Popen(SLEEP)
    stat = descendants.read_stat(process.pid)
    assert descendants.kill(stat._replace(start=stat.start - 1)) is None
    time.sleep(0.05)
    assert process.poll() is None
    handle = descendants.kill(stat)
    assert handle is not None
    os.close(handle)
    assert process.wait() == -signal.SIGKILL


TRACKED = (
    "from multiprocessing import resource_tracker; resource_tracker.ensure_running(); "
    "import os; os.write(1, b'%d\\n' % resource_tracker._resource_tracker._pid); "
    "import time; time.sleep(1000)"
)


def test_the_resource_tracker_is_spared(household):
    mark = descendants.new_mark()
    process = subprocess.Popen(
        [sys.executable, "-c", TRACKED],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=descendants.marked_environment(os.environ, [mark]),
    )
    tracker = int(process.stdout.readline())
    killed = descendants.kill_family([mark], groups=[process.pid])
    assert {stat.pid for stat in killed} == {process.pid}
    process.wait()
    process.stdout.close()
    wait_for(lambda: is_gone(tracker))  # by itself, when its pipe is closed


# Forks, and execs a resource tracker in the fork once it is told to, as Python does where it
# has no vfork: until then the tracker looks like any fork of its parent. (Its name is written
# in two parts, or the parent's own command line would be taken for a tracker's.)
SLOW_TRACKER = """
import os, sys, time
data, alive = os.pipe()
go = int(sys.argv[1])
os.set_inheritable(data, True)
pid = os.fork()
if pid == 0:
    os.close(alive)
    os.write(1, b"%d\\n" % os.getpid())
    os.read(go, 1)
    code = f"from multiprocessing.resource" + f"_tracker import main;main({data})"
    os.execv(sys.executable, [sys.executable, "-c", code])
os.close(data)
time.sleep(1000)
"""


@pytest.fixture
def slow_tracker(household):
    """A process with a tracker between fork and exec; write to the pipe to let it go on."""
    mark = descendants.new_mark()
    go, gone = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TRACKER, str(go)],
        stdout=subprocess.PIPE,
        pass_fds=[go],
        start_new_session=True,
        env=descendants.marked_environment(os.environ, [mark]),
    )
    os.close(go)
    tracker = int(process.stdout.readline())
    yield process, mark, tracker, gone
    household.kill()
    process.wait()
    process.stdout.close()
    os.close(gone)


def test_a_resource_tracker_between_fork_and_exec_is_spared_too(slow_tracker, monkeypatch):
    """Killed, it would leave behind whatever shared memory its parent has told it of."""
    process, mark, tracker, gone = slow_tracker
    monkeypatch.setattr(descendants, "_EXEC_PATIENCE", 20.0)
    real, listings = descendants._look_for, []

    def release_at_the_second(*args):
        listings.append(args)
        if len(listings) == 2:
            os.write(gone, b"!")
        return real(*args)

    monkeypatch.setattr(descendants, "_look_for", release_at_the_second)
    killed = descendants.kill_family([mark], groups=[process.pid])
    assert {stat.pid for stat in killed} == {process.pid}
    process.wait()
    wait_for(lambda: is_gone(tracker))  # by itself, when its pipe is closed


def test_a_fork_that_does_not_exec_is_not_waited_for_for_long(slow_tracker, monkeypatch):
    process, mark, tracker, _ = slow_tracker
    monkeypatch.setattr(descendants, "_EXEC_PATIENCE", 0.0)
    killed = descendants.kill_family([mark], groups=[process.pid])
    assert {stat.pid for stat in killed} == {process.pid, tracker}


def test_a_resource_tracker_whose_new_image_has_no_command_yet_is_spared_too(
    household, monkeypatch
):
    """vfork lets the parent go before that, and it may tell the tracker of memory at once."""
    mark = descendants.new_mark()
    process = subprocess.Popen(
        [sys.executable, "-c", TRACKED],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=descendants.marked_environment(os.environ, [mark]),
    )
    tracker = int(process.stdout.readline())
    read, unready = descendants._read, 5

    def without_a_command(path):
        nonlocal unready
        if path == f"/proc/{tracker}/cmdline" and unready > 0:
            unready -= 1
            return b""
        return read(path)

    monkeypatch.setattr(descendants, "_read", without_a_command)
    monkeypatch.setattr(descendants, "_EXEC_PATIENCE", 20.0)
    killed = descendants.kill_family([mark], groups=[process.pid])
    assert {stat.pid for stat in killed} == {process.pid}
    assert unready == 0
    process.wait()
    process.stdout.close()
    wait_for(lambda: is_gone(tracker))


def test_a_process_in_the_middle_of_exec_is_read_once_its_image_is_there(monkeypatch):
    """vfork lets the parent go before the child's new image has an environment."""
    child = subprocess.Popen(
        ["sleep", "60"], env=descendants.marked_environment(os.environ, ["in-exec"])
    )
    try:
        read = descendants._read
        unready = 3

        def without_an_image(path):
            nonlocal unready
            if path.endswith("/environ") and unready > 0:
                unready -= 1
                return b""
            return b"" if path.endswith("/cmdline") else read(path)

        monkeypatch.setattr(descendants, "_read", without_an_image)
        assert "in-exec" in descendants.read_marks(child.pid)
        assert unready == 0
    finally:
        child.kill()
        child.wait()
