"""What the tests of processes share."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Child processes find what they are to do there, by name.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "support"))


@pytest.fixture
def household() -> Iterator[object]:
    """Return all processes that the test starts; none may be left at its end.

    The test's process is a subreaper meanwhile, so that orphans are found, too.
    """
    from process_scenarios import Household, subreaper

    with subreaper():
        house = Household()
        try:
            yield house
            house.expect_empty()
        finally:
            house.kill()


def bundled_libzmq() -> str:
    """Return the path of the libzmq that this process's pyzmq runs on."""
    import zmq

    assert zmq.zmq_version_info() >= (4, 3)
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libzmq" in path.rsplit("/", maxsplit=1)[-1]:
            return path
    raise AssertionError("pyzmq runs, but no libzmq is mapped: is it linked statically?")


@pytest.fixture(scope="session")
def frontend_binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the native test frontend: ``STAGING_TEST_FRONTEND``, a build's, or a fresh one."""
    given = os.environ.get("STAGING_TEST_FRONTEND")
    if given:
        assert os.access(given, os.X_OK), f"STAGING_TEST_FRONTEND={given!r} is no executable"
        return given
    sources = ROOT / "tests" / "csrc" / "frontend"
    newest = max(path.stat().st_mtime for path in sources.iterdir())
    for built in sorted(ROOT.glob("build/**/staging_test_frontend")):
        if os.access(built, os.X_OK) and built.is_file() and built.stat().st_mtime >= newest:
            return str(built)
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    assert compiler, "no C++ compiler: install one, or name a binary in STAGING_TEST_FRONTEND"
    binary = tmp_path_factory.mktemp("frontend") / "staging_test_frontend"
    subprocess.run(
        [compiler, "-std=c++20", sources / "main.cpp", "-o", binary, "-pthread", "-ldl"],
        check=True,
        timeout=300,
    )
    return str(binary)


@pytest.fixture(scope="session")
def frontend_env() -> dict[str, str]:
    """Return what the test frontend needs in its environment."""
    return {"STAGING_TEST_FRONTEND_LIBZMQ": bundled_libzmq()}
