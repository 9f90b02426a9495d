"""docs/field_reports.md answers every row, and its tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "field_reports.md").read_text(encoding="utf-8")
ROWS = [f"R{number:02d}" for number in range(1, 104)]
NAME = re.compile(r"`(\w+/\w+\.py)::(\w+)`(?: \((gpu)\))?")
ROW = re.compile(r"^\| (R\d+) \| ([WCUP]) \| (.+?) \| (.+) \|$", re.MULTILINE)


def answers(page: str) -> dict[str, str]:
    """Answer of every row; a row that comes twice is a mistake."""
    found = ROW.findall(page)
    assert len({row for row, *_ in found}) == len(found), "a row is there twice"
    return {row: answer for row, _, _, answer in found}


@cache
def source(path: str) -> str:
    """Text of a test file, nothing if there is none."""
    file = ROOT / "tests" / path
    return file.read_text(encoding="utf-8") if file.exists() else ""


def is_named_rightly(path: str, name: str, gpu: str) -> bool:
    """Whether a file has this test, and the page tells if all of the file needs a GPU."""
    text = source(path)
    tests = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    marks = "".join(re.findall(r"^pytestmark = (\[.*?^\]|.*?$)", text, re.MULTILINE | re.DOTALL))
    fits = "mark.gpu" in text if gpu else "mark.gpu" not in marks
    return name in tests and fits


def wrong_names(page: str) -> list[str]:
    """Tests that are named and do not exist, or are not marked as the page says."""
    return [
        f"{path}::{name}"
        for path, name, gpu in NAME.findall(page)
        if not is_named_rightly(path, name, gpu)
    ]


def test_every_row_is_answered():
    found = answers(PAGE)
    assert list(found) == ROWS
    assert not [
        row for row, answer in found.items() if not (NAME.search(answer) or "Reason: " in answer)
    ]


def test_rows_of_wrong_results_are_tests():
    silent = [answer for _, kind, _, answer in ROW.findall(PAGE) if kind == "W"]
    assert len(silent) == 32
    assert all(NAME.search(answer) for answer in silent)


def test_every_test_that_is_named_exists():
    assert len(NAME.findall(PAGE)) > 150
    assert not wrong_names(PAGE)


@pytest.mark.parametrize(
    "mistake",
    [
        "`lammps/test_hybrid.py::test_that_is_not_there`",
        "`lammps/test_nowhere.py::test_units`",
        "`lammps/test_refusals.py::test_units` (gpu)",
        "`lammps/test_ranks_cuda.py::test_every_number_is_that_of_one_rank_on_the_cpu`",
    ],
)
def test_a_planted_name_is_found(mistake):
    assert wrong_names(mistake)


def test_a_planted_gap_is_found():
    assert list(answers(PAGE.replace("| R50 |", "| X50 |"))) != ROWS
