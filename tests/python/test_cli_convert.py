import os
import subprocess
import sys

import pytest
import torch
from convert_support import SHIPPED, twin, write
from typer.testing import CliRunner

from mace_stream import io
from mace_stream.cli import app

needs_mace = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("mace"),
    reason="needs mace-torch: pip install 'mace-stream[test]'",
)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_help_lists_the_commands_and_imports_nothing_heavy():
    code = (
        "import sys; from mace_stream.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'mace', 'ase', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("convert", "info", "validate", "doctor"):
        assert command in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_help_of_convert_names_the_extra_and_the_trust_question():
    text = " ".join(run("convert", "--help").output.split())
    assert "pip install 'mace-stream[convert]'" in text
    assert "convert only files of people you trust" in text


@needs_mace
def test_convert_writes_the_file_and_prints_the_self_test(tmp_path):
    source = write(twin("MP-0b2 medium", heads=("b", "a")), tmp_path / "twin.model")
    done = run("convert", source, "-o", tmp_path / "twin.mace", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    assert "self-test: largest difference of an atom's energy to mace-torch" in done.output
    assert "float32, heads b, a" in done.output
    assert io.load(tmp_path / "twin.mace")[0].heads == ("b", "a")


@needs_mace
def test_convert_keeps_the_head_asked_for(tmp_path):
    source = write(twin("MP-0b2 medium", heads=("b", "a")), tmp_path / "twin.model")
    assert run("convert", source, "-o", tmp_path / "a.mace", "--head", "a").exit_code == 0
    output = run("info", tmp_path / "a.mace").output
    assert "a (of 2)" in output


@needs_mace
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--head", "nope"], "head: expected one of b, a, got nope"),
        (["--dtype", "half"], "dtype: expected float32 or float64, got half"),
    ],
)
def test_a_wrong_option_is_one_paragraph_and_no_traceback(arguments, message, tmp_path):
    source = write(twin("MP-0b2 medium", heads=("b", "a")), tmp_path / "twin.model")
    done = run("convert", source, "-o", tmp_path / "x.mace", *arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert os.listdir(tmp_path) == ["twin.model"]


@needs_mace
def test_a_checkpoint_is_refused_on_the_command_line(tmp_path):
    torch.save({"model": twin("MP-0a small").state_dict()}, tmp_path / "ckpt.pt")
    done = run("convert", tmp_path / "ckpt.pt", "-o", tmp_path / "x.mace")
    assert done.exit_code == 1
    assert "a checkpoint or state dictionary" in done.output


@needs_mace
def test_a_target_that_cannot_be_written_is_one_paragraph(tmp_path):
    source = write(twin("MP-0a small"), tmp_path / "twin.model")
    (tmp_path / "folder").mkdir()
    done = run("convert", source, "-o", tmp_path / "folder")
    assert done.exit_code == 1
    assert "folder" in done.output
    assert "Traceback" not in done.output


def test_convert_without_output_says_so():
    done = run("convert", SHIPPED)
    assert done.exit_code == 2
    assert "--output" in done.output


def test_info_prints_everything_about_the_shipped_model():
    done = run("info", SHIPPED)
    assert done.exit_code == 0, done.output
    for text in (
        io.sha256(SHIPPED),
        "c568e8a1e0cb10994dd16c43b12fb438f67910ce0511b5ae26ed7883cc042fe3",
        "72,848",
        "ScaleShiftMACE",
        "6 Å",
        "Ti",
        "RR",
        "32x0e+32x1o",
        "8-64-64-64-320",
        "0.62523854",
        "-4.6752048",
        "mace.modules.models.ScaleShiftMACE",
        "MIT",
    ):
        assert text in done.output, text


@needs_mace
def test_info_prints_energies_of_every_head_and_element(tmp_path):
    source = write(twin("MP-0b2 medium", heads=("b", "a")), tmp_path / "twin.model")
    run("convert", source, "-o", tmp_path / "twin.mace")
    output = run("info", tmp_path / "twin.mace").output
    _, tensors = io.load(tmp_path / "twin.mace")
    for energy in tensors["atomic_energies"].ravel():
        assert f"{energy:.8g}" in output
    for text in ("E0 Si", "E0 C", "agnesi", "zbl", "scale", "shift"):
        assert text in output


def test_info_of_another_file_says_what_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    done = run("info", tmp_path / "notes.txt")
    assert done.exit_code == 1
    assert "expected a .mace file, found a text file" in done.output


def test_the_command_is_installed_without_mace_torch(tmp_path):
    """Without the extra, convert names it and info works."""
    (tmp_path / "mace.py").write_text("raise ModuleNotFoundError('blocked', name='mace')")
    code = "import sys; from mace_stream.cli import app; app(sys.argv[1:])"
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code, "info", SHIPPED],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "72,848" in done.stdout
