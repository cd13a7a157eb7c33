"""README.md and docs/: what they show works as it is written, and what they name is there."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import inc_tb
from inc_tb.cli import cli
from tests.documents.blocks import HERE, PAGES, ROOT, blocks, commands, pages_run_by, prose
from tests.documents.play import play_page

LINKING = [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md"]
PROGRAMS = ("inc-tb", "make", "pip", "python", "tensorboard")
OF_OTHERS = {"--path_prefix", "--load_fast", "--array", "--wrap"}
"""Options of TensorBoard and Slurm."""


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_run_by(HERE))
def test_what_a_page_shows_works_as_it_is_written(page: str, tmp_path: Path) -> None:
    play_page(page, HERE, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_no_block_slips_through(page: str) -> None:
    for block in blocks(page):
        place = f"{page}:{block.line}"
        assert block.language in ("sh", "python", "yaml", "text"), place
        assert not block.file or block.language in ("python", "yaml"), place
        assert block.file or block.language != "yaml", place
        test = ROOT / block.run_by
        assert test.is_file(), place
        if test.name == "test_documents.py":
            continue
        scripts = re.findall(r"examples/(\w+\.py)", block.code)
        assert len(scripts) == len(commands(block.code)), f"{place} is not run by {block.run_by}"
        for script in scripts:
            assert f'"{script}"' in test.read_text(), place
    assert not re.search(r"~~~|```|^ {4}", prose(page), re.M), "a block that is no block here"


def test_what_was_printed_is_not_to_be_copied() -> None:
    """A command in it would not be run."""
    for block in (block for page in PAGES for block in blocks(page) if block.language == "text"):
        for line in block.code.splitlines():
            assert not line.lstrip("$ ").startswith(tuple(f"{program} " for program in PROGRAMS)), (block.page, line)


@cache
def spans(page: str) -> list[str]:
    """What is code in a sentence."""
    return re.findall(r"`([^`\n]+)`", prose(page).replace("\n", " "))


@cache
def all_commands() -> str:
    return "\n".join(block.code for page in PAGES for block in blocks(page) if block.language == "sh")


@pytest.mark.parametrize("page", PAGES)
def test_a_command_in_a_sentence_is_one_of_those_that_are_run(page: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for span in spans(page):
        command = span.removeprefix(".venv/bin/")
        program, *arguments = command.split()
        if program not in PROGRAMS or not arguments:
            continue
        if program == "make":
            assert set(arguments) <= set(targets), span
        elif program == "inc-tb" and len(arguments) == 1:
            assert arguments[0] in cli.commands, span
        else:
            assert command in all_commands(), f"{page} has {span!r} in a sentence only: give it a block"


@cache
def help_of_all_commands() -> str:
    return "\n".join(CliRunner().invoke(cli, [*name, "--help"]).output for name in [[], *([n] for n in cli.commands)])


@pytest.mark.parametrize("page", PAGES)
def test_the_options_in_sentences_are_there(page: str) -> None:
    there = OF_OTHERS | {"--help", *re.findall(r"--[a-z][\w-]*", help_of_all_commands())}
    assert {option for span in spans(page) for option in re.findall(r"--[a-z][\w-]*", span)} <= there


@pytest.mark.parametrize("page", PAGES)
def test_the_names_in_sentences_are_there(page: str) -> None:
    """Of inc_tb, and of scripts."""
    for span in spans(page):
        for name in re.findall(r"\binc_tb\.(\w+)", span):
            assert name in dir(inc_tb) or find_spec(f"inc_tb.{name}"), span
        for script in re.findall(r"\b(?:examples|benchmarks)/\w+\.py", span):
            assert (ROOT / script).is_file(), span


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of the headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", LINKING)
def test_links_resolve(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.is_file(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 8000


def test_every_page_is_in_the_index_and_in_the_readme() -> None:
    names = {Path(page).name for page in PAGES if page.startswith("docs/")} - {"README.md"}
    assert set(re.findall(r"^\* \[.+?\]\((\S+\.md)\): ", (ROOT / "docs" / "README.md").read_text(), re.M)) == names
    assert names <= set(re.findall(r"\(docs/(\S+\.md)\)", (ROOT / "README.md").read_text()))


def test_figures_say_which_script_prints_them() -> None:
    page = (ROOT / "docs" / "figures.md").read_text()
    for section in page.split("\n## ")[1:]:
        assert re.search(r"`benchmarks/\w+\.py", section), section.splitlines()[0]
