"""The command line lists its commands and hands over to them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from staging import cli


def test_without_a_command_it_lists_them(capsys):
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert name in shown


def test_an_unknown_command_is_an_error_that_lists_them(capsys):
    assert cli.main(["no-such-command"]) == 2
    shown = capsys.readouterr().err
    assert "'no-such-command'" in shown
    assert "demo" in shown


def test_the_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("staging ")


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_exists_and_has_help_with_an_example(name):
    module, _ = cli.COMMANDS[name]
    assert importlib.util.find_spec(module) is not None
    result = subprocess.run(
        [sys.executable, "-m", "staging", name, "--help"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "example" in result.stdout.lower()


def test_python_dash_m_staging_is_the_command_line():
    result = subprocess.run(
        [sys.executable, "-m", "staging"], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0
    assert "commands:" in result.stdout
