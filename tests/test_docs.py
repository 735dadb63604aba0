"""The documents: what they show is run, and what they point to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.cuda
def test_the_code_in_the_readme_runs():
    samples = blocks(ROOT / "README.md", "python")
    assert samples
    for sample in samples:
        # As it is printed, in a process of its own.
        done = subprocess.run(
            [sys.executable, "-"], input=sample, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{sample}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_files_that_are_named_exist(page: Path):
    tops = "csrc|staging|tests|benchmarks|scripts|docs"
    for name in re.findall(rf"`((?:{tops})/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(), re.MULTILINE))
        assert named <= targets, relative(page)


def test_commands_that_are_named_exist():
    from staging.cli import COMMANDS

    for page in PAGES:
        named = set(re.findall(r"python -m staging (\w+)", page.read_text()))
        assert named <= COMMANDS.keys(), relative(page)


def test_the_index_lists_every_decision():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    listed = re.findall(r"^\| \[(\d{4})\]\(([\w.-]+)\)", index, re.MULTILINE)
    assert listed == [(path.name[:4], path.name) for path in DECISIONS]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_its_state_context_decision_and_consequences(page: Path):
    text = page.read_text()
    assert re.match(rf"# {page.name[:4]}\. .+\n\nState: (in force|replaced by \[)", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
