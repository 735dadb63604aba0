"""Process 1 of a container reaps what it adopts, and nothing that others wait for."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from staging.process.adopted import reap_adopted

ROOT = pathlib.Path(__file__).resolve().parents[3]


def can_unshare():
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_another_process_reaps_nothing():
    assert os.getpid() != 1
    assert reap_adopted() == 0


PROGRAM = """
import os, subprocess, sys, time
from staging.process import adopted, descendants
from staging.process.children import ChildProcess
import process_targets

def zombies():
    return {s.pid for s in descendants.list_processes().values() if s.ppid == 1 and s.is_dead}

def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

if __name__ == "__main__":
    assert os.getpid() == 1
    child = ChildProcess(target=process_targets.exit_with, args=(3,))
    child.start()
    own = subprocess.Popen(["sh", "-c", "exit 4"])
    leader = subprocess.Popen(["sh", "-c", "exit 5"], start_new_session=True)
    # Orphans, of a session that is not ours and of sessions of their own.
    nest = subprocess.Popen(
        ["sh", "-c", "for i in 1 2 3; do sh -c 'sleep 0.1 &' ; done; sh -c 'setsid sleep 0.1 &'"],
        start_new_session=True,
    )
    assert nest.wait() == 0
    wait_for(lambda: len(zombies()) == 7)
    assert adopted.reap_adopted() == 3
    adopted._UNCLAIMED_AFTER = 0.0
    leader.wait()
    assert adopted.reap_adopted() == 1
    child.join()
    assert (child.exitcode, own.wait(), leader.returncode) == (3, 4, 5)
    assert not zombies()
"""


@pytest.mark.skipif(not can_unshare(), reason="cannot make a pid namespace here")
def test_process_1_reaps_orphans_and_leaves_children_to_those_who_started_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    support = pathlib.Path(__file__).resolve().parent / "support"
    subprocess.run(
        ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc",
         sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{support}"},
        check=True,
        timeout=60,
    )  # fmt: skip
