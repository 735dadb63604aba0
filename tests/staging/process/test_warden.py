"""The warden ends what a dead supervisor leaves, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from staging.process import descendants, pidfd, warden


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def child_packet(mark, process):
    stat = descendants.read_stat(process.pid)
    return b"\0".join([b"child", mark.encode(), b"%d" % process.pid, b"%d" % stat.start])


def path_packet(path, *, inode=None):
    stat = os.lstat(path)
    number = stat.st_ino if inode is None else inode
    device = stat.st_dev if inode is None else 0
    return b"\0".join([b"path", b"%d" % device, b"%d" % number, os.fsencode(path)])


def listening(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


@pytest.fixture
def house():
    return warden.Household(descendants.new_mark())


def test_a_child_is_killed_with_its_group_and_its_descendants(household, house, tmp_path):
    script = (
        "setsid sleep 1000 & echo $! > a; env -i setsid sleep 1000 & echo $! > b; touch c; wait"
    )
    process = subprocess.Popen(["sh", "-c", script], cwd=tmp_path, start_new_session=True)
    wait_for((tmp_path / "c").exists)
    fd = pidfd.open_pidfd(process.pid)
    house.learn(child_packet("m", process), [fd])
    os.kill(process.pid, signal.SIGSTOP)
    killed = house.clear(0)
    pids = {process.pid, int((tmp_path / "a").read_text()), int((tmp_path / "b").read_text())}
    assert pids <= killed
    process.wait(10)


def test_a_child_that_has_gone_is_forgotten(household, house):
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    house.learn(child_packet("m", process), [pidfd.open_pidfd(process.pid)])
    house.learn(b"gone\0m", [])
    assert house.is_empty
    house.clear(0)
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_child_whose_number_is_anothers_now_is_not_killed(household, house):
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    other = subprocess.Popen(["true"])
    fd = pidfd.open_pidfd(other.pid)
    other.wait()
    # The packet names a child that started earlier under this number.
    start = descendants.read_stat(process.pid).start - 10
    house.learn(b"child\0m\0%d\0%d" % (process.pid, start), [fd])
    house.clear(0)
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_process_that_carries_the_supervisors_mark_is_killed_though_nobody_told(household):
    mark = descendants.new_mark()
    house = warden.Household(mark)
    process = subprocess.Popen(
        ["sleep", "1000"], env=descendants.marked_environment(os.environ, [mark, "other"])
    )
    wait_for(lambda: mark in descendants.read_marks(process.pid))
    assert house.clear(0) == {process.pid}
    process.wait(10)


def test_a_path_is_removed_if_it_is_the_same_file(house, tmp_path):
    mine, replaced, dropped = (tmp_path / name for name in ("mine", "replaced", "dropped"))
    for path in (mine, replaced, dropped):
        listening(path).close()
        house.learn(path_packet(path), [])
    replaced.rename(tmp_path / "moved")
    listening(replaced).close()
    house.learn(b"drop\0" + os.fsencode(dropped), [])
    house.clear(0)
    assert not mine.exists()
    assert replaced.exists()
    assert dropped.exists()


def test_a_folder_goes_after_the_files_in_it_unless_it_has_others(house, tmp_path):
    for name in ("empty", "full"):
        folder = tmp_path / name
        folder.mkdir()
        house.learn(path_packet(folder), [])
        listening(folder / "socket").close()
        house.learn(path_packet(folder / "socket"), [])
    (tmp_path / "full" / "other").touch()
    house.clear(0)
    assert not (tmp_path / "empty").exists()
    assert (tmp_path / "full" / "other").exists()


def test_an_announced_socket_is_removed_only_when_nobody_listens(house, tmp_path):
    listening(tmp_path / "stale").close()
    (tmp_path / "file").touch()
    with listening(tmp_path / "live"):
        for name in ("stale", "file", "live"):
            house.learn(path_packet(tmp_path / name, inode=0), [])
        house.learn(b"path\0" + b"0\0" + b"0\0" + os.fsencode(tmp_path / "never"), [])
        house.clear(0)
        assert (tmp_path / "live").exists()
    assert not (tmp_path / "stale").exists()
    assert (tmp_path / "file").exists()


def test_shared_memory_that_was_being_made_is_removed(house):
    mine, other = f"/dev/shm/pym-{1 << 22}-x", f"/dev/shm/pym-{(1 << 22) + 1}-x"
    for path in (mine, other):
        with open(path, "w"):
            pass
    try:
        house.clear(1 << 22)
        assert not os.path.exists(mine)
        assert os.path.exists(other)
    finally:
        os.unlink(other)


@pytest.fixture
def started(household):
    """A warden that guards a sleeping process in the place of a supervisor."""
    supervisor = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = pidfd.open_pidfd(supervisor.pid)
    mark = descendants.new_mark()
    code = f"from staging.process.warden import main; main({theirs.fileno()}, {own}, 1, {mark!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=(theirs.fileno(), own), start_new_session=True
    )
    theirs.close()
    os.close(own)
    yield process, supervisor, ours, mark
    ours.close()
    for left in (process, supervisor):
        left.kill()
        left.wait()


def ignores(process, signum):
    with open(f"/proc/{process.pid}/status") as status:
        ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn"))
    return bool(ignored >> (signum - 1) & 1)


def test_it_leaves_when_told(started):
    process, _, channel, _ = started
    channel.send(b"bye")
    assert process.wait(10) == 0


def test_it_ignores_the_signals_of_a_terminal_and_of_a_service_manager(started):
    process, _, channel, _ = started
    wait_for(lambda: all(ignores(process, signum) for signum in warden.SIGNALS))
    for signum in warden.SIGNALS:
        process.send_signal(signum)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    channel.send(b"bye")
    assert process.wait(10) == 0


def test_packets_that_wait_when_the_supervisor_dies_count(started):
    process, supervisor, channel, mark = started
    process.send_signal(signal.SIGSTOP)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    fd = pidfd.open_pidfd(child.pid)
    socket.send_fds(channel, [child_packet(mark, child)], [fd])
    os.close(fd)
    supervisor.kill()
    supervisor.wait()
    process.send_signal(signal.SIGCONT)
    assert child.wait(10) == -signal.SIGKILL
    assert process.wait(10) == 0


def test_a_warden_that_was_lost_in_the_making_leaves(started):
    process, _, channel, _ = started
    channel.close()
    assert process.wait(10) == 0


def test_a_closed_channel_does_not_keep_it_from_its_task(started):
    process, supervisor, channel, mark = started
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    fd = pidfd.open_pidfd(child.pid)
    socket.send_fds(channel, [child_packet(mark, child)], [fd])
    os.close(fd)
    channel.close()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    supervisor.kill()
    supervisor.wait()
    assert child.wait(10) == -signal.SIGKILL
    assert process.wait(10) == 0


def test_it_loads_little():
    code = (
        "import sys, staging.process.warden; "
        "heavy = {'subprocess', 'multiprocessing', 'logging', 'asyncio', 'json'}; "
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(warden.__file__)))
    subprocess.run([sys.executable, "-S", "-c", code], cwd=root, check=True, timeout=60)
