"""The pages of docs/ say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from mace_stream.bridge.options import KEYWORDS
from mace_stream.spec import INPUT_DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "mace_stream"
PLUGIN = ROOT / "pair_mace_stream"
PAGE = (ROOT / "docs" / "pair_mace_stream.md").read_text(encoding="utf-8")
COMPUTE = (ROOT / "docs" / "compute_mace_stream_deviation.md").read_text(encoding="utf-8")

# Files whose messages a user of the pair style can meet.
PYTHON_FILES = [
    *sorted((PACKAGE / "bridge").glob("*.py")),
    PACKAGE / "compiled.py",
    PACKAGE / "evaluation.py",
    PACKAGE / "io.py",
    PACKAGE / "jax" / "evaluator.py",
    PACKAGE / "jax" / "evaluators.py",
    PACKAGE / "jax" / "inference" / "evaluator.py",
    PACKAGE / "jax" / "placement.py",
    PACKAGE / "jax" / "__init__.py",
    PACKAGE / "kernels" / "launching.py",
    PACKAGE / "kernels" / "nvrtc.py",
    PACKAGE / "lammps_plugin.py",
    PACKAGE / "spec.py",
    PACKAGE / "tables" / "building.py",
    PACKAGE / "tables" / "grid.py",
    PACKAGE / "torch" / "evaluator.py",
    PACKAGE / "torch" / "evaluators.py",
    PACKAGE / "torch" / "placement.py",
    PACKAGE / "torch" / "ranks.py",
    PACKAGE / "torch" / "inference" / "evaluator.py",
    PACKAGE / "torch" / "inference" / "memory.py",
    PACKAGE / "torch" / "inference" / "tables.py",
]
CPP_FILES = sorted(PLUGIN.glob("*.cpp"))

WORDS = 5
"""How many words of a message the page must repeat."""
NO_MESSAGES = {
    "half, newton on",
    "half, newton off",
    "made on the device",
    "the mace-stream developers",
    "no reason given",
    "module \0 has no attribute \0",
    "radial table: expected a model in float64, got \0",  # of callers in Python
}
"""What the search below takes for messages."""
RETURNS_MESSAGES = re.compile(r"^describe_error$|warning$")
"""Names of functions that return what a user reads."""


# ---- keywords ----


def documented_keywords(page: str) -> dict[str, tuple[str, str]]:
    """Keyword -> (values, default) of the page's table."""
    table = page.split("| keyword | values |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", table, re.MULTILINE)
    return {name: (values.replace("`", ""), default.strip("`")) for name, values, default in rows}


NO_DEFAULT = {
    "head": "the only head of the file",
    "charge": f"{INPUT_DEFAULTS['total_charge']:g}, where the model takes it",
    "spin": f"{INPUT_DEFAULTS['total_spin']:g}, where the model takes it",
}


def expected_keywords() -> dict[str, tuple[str, str]]:
    """The same from the code."""
    return {
        name: (keyword.accepts, keyword.default or NO_DEFAULT[name])
        for name, keyword in KEYWORDS.items()
    }


def test_keyword_table_is_that_of_the_code():
    assert documented_keywords(PAGE) == expected_keywords()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| `conv` | `auto` or `streaming` or `standard` | `auto` |\n", ""),
        ("| `auto`, `cpu`, `cuda` or `cuda:N` |", "| `auto`, `cpu` or `cuda` |"),
        ("| `yes` or `no` | `yes` |", "| `yes` or `no` | `no` |"),
    ],
)
def test_a_planted_mistake_in_the_keyword_table_is_found(old, new):
    assert old in PAGE
    assert documented_keywords(PAGE.replace(old, new)) != expected_keywords()


# ---- environment variables and links ----


def environment_variables(source: str) -> set[str]:
    """Names that a file of C++ or Python reads from the environment."""
    return set(re.findall(r'(?:getenv\(|environ\.get\(|environ\[)"(\w+)"', source))


def test_environment_variables_are_documented():
    files = [*CPP_FILES, *sorted((PACKAGE / "bridge").glob("*.py"))]
    used = set().union(*(environment_variables(p.read_text(encoding="utf-8")) for p in files))
    assert {"MACE_STREAM_PYTHON", "OMP_NUM_THREADS"} <= used
    table = PAGE.split("## Environment variables")[1].split("\n## ")[0]
    assert not {name for name in used if f"`{name}`" not in table}


def broken_links(folder: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    return [k for k in links if "://" not in k and not (folder / k).exists()]


PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    assert not broken_links(path.parent, path.read_text(encoding="utf-8"))


def test_a_broken_link_is_found():
    assert broken_links(ROOT, "[a](README.md) [b](https://x.org/y) [c](docs/none.md#top)") == [
        "docs/none.md"
    ]


# ---- the map of the code ----

MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def unmapped(page: str) -> list[str]:
    """C++ files and Python rooms that docs/architecture.md does not name."""
    files = {path.stem for path in PLUGIN.glob("*.*") if path.suffix in (".h", ".cpp")}
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    return sorted(name for name in files | rooms if not re.search(rf"(`|\*\*){name}\b", page))


def test_every_file_and_room_is_on_the_map():
    assert not unmapped(MAP)


@pytest.mark.parametrize("name", ["edge_graph", "openmp_guard", "couplings"])
def test_a_planted_gap_in_the_map_is_found(name):
    assert unmapped(MAP.replace(name, "")) == [name]


# ---- messages ----


def python_messages(source: str) -> list[str]:
    """Texts that a file raises or returns as messages; ``\\0`` stands for a filled-in value."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found += [template(argument) for argument in node.exc.args[:1]]
        elif isinstance(node, ast.FunctionDef) and RETURNS_MESSAGES.search(node.name):
            returns = [n for n in ast.walk(node) if isinstance(n, ast.Return)]
            found += [template(statement.value) for statement in returns]
    return [text for text in found if re.search("[a-z]", text) and text not in NO_MESSAGES]


def template(node: ast.expr) -> str:
    """The literal parts of a string expression."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    return "\0"


def cpp_messages(source: str) -> list[str]:
    """String literals of a C++ file that are sentences; neighbouring literals are joined."""
    source = re.sub(r"//.*|/\*.*?\*/|^#.*$", "", source, flags=re.MULTILINE)
    literal = r'"((?:[^"\\\n]|\\.)*)"'
    joined = re.findall(rf"{literal}((?:\s*{literal})*)", source)
    texts = [first + "".join(re.findall(literal, rest)) for first, rest, _ in joined]
    texts = [re.sub(r"^(Pair style|Compute) mace/stream[^:]*: ", "", text) for text in texts]
    texts = [re.sub(r"\{[^}]*\}", "\0", text) for text in texts]
    sentences = [t for t in texts if len(t.split()) > 2 and re.match(r"[a-z\0]", t)]
    return [text for text in sentences if text not in NO_MESSAGES]


def pattern(message: str) -> str:
    """Pattern of the first words of a message; a filled-in value may be anything in its row."""
    words = re.findall(r"\0|[^\s\0]+", message)
    count = [word != "\0" for word in words]
    kept = [word for k, word in enumerate(words) if sum(count[:k]) < WORDS]
    return r"\s*".join(r"[^\n|]*?" if word == "\0" else re.escape(word) for word in kept)


def missing(messages: list[str], page: str) -> list[str]:
    """Messages whose first words are not in the page."""
    return [text for text in messages if not re.search(pattern(text), page)]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: path.name)
def test_python_messages_are_documented(path):
    assert not missing(python_messages(path.read_text(encoding="utf-8")), PAGE)


@pytest.mark.parametrize("path", CPP_FILES, ids=lambda path: path.name)
def test_cpp_messages_are_documented(path):
    page = COMPUTE if path.name.startswith("compute") else PAGE
    assert not missing(cpp_messages(path.read_text(encoding="utf-8")), page)


def test_messages_are_seen():
    python = [m for p in PYTHON_FILES for m in python_messages(p.read_text(encoding="utf-8"))]
    cpp = [m for p in CPP_FILES for m in cpp_messages(p.read_text(encoding="utf-8"))]
    assert len(python) > 15
    assert len(cpp) > 15
    assert any(text.startswith("keyword \0 has no value") for text in python)
    assert any(text.startswith("the model has a ZBL repulsion") for text in python)
    assert any(text.startswith("needs an atom map") for text in cpp)


@pytest.mark.parametrize("source", ['raise ValueError(f"box {n} is too large for the model")'])
def test_a_planted_python_message_is_missed(source):
    assert missing(python_messages(source), PAGE)


@pytest.mark.parametrize(
    "source",
    [
        'error->all(FLERR, "Pair style mace/stream: the box is too {} "\n  "by far", size);',
        'return "this LAMMPS is built without threads; use another";',
    ],
)
def test_a_planted_cpp_message_is_missed(source):
    assert missing(cpp_messages(source), PAGE)
