"""`mace-stream validate` on real LAMMPS runs: right ones pass, planted mistakes do not."""

import shutil

import ase
import ase.build
import ase.io
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import mace_stream
from mace_stream import io

SCRIPT = """
units {units}
atom_style charge
atom_modify map yes
region box prism 0 5.2 0 5.4 0 5.9 0.7 -0.4 0.5
create_box 2 box
create_atoms 1 random 10 4711 box overlap 1.6 maxtry 500
create_atoms 2 random 4 1147 box overlap 1.6 maxtry 500
mass 1 28.085
mass 2 15.999
pair_style mace/stream precision double
pair_coeff * * "{model}" {symbols}
neighbor 1.0 bin
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory, model):
    """(mace-torch file, .mace file) of a small random model of H, C, O and Si."""
    target = tmp_path_factory.mktemp("models") / "silicon oxide.mace"
    shutil.copy(model("plain").path, target)
    return model("plain").pickle, target


@pytest.fixture(scope="module")
def structures(tmp_path_factory):
    """A file with a triclinic left-handed crystal, a slab, a molecule and an atom."""
    rng = np.random.default_rng(11)
    cell = np.array([[0.3, 4.4, 0.2], [4.6, 0.1, -0.5], [0.4, 0.6, 4.2]])
    crystal = ase.Atoms("Si3O3", scaled_positions=rng.uniform(-1, 2, (6, 3)), cell=cell, pbc=True)
    slab = ase.build.hcp0001("Si", (2, 2, 2), a=2.6)
    slab.pbc = [True, True, False]
    slab.rattle(0.1, seed=1)
    slab.numbers[[1, 4]] = 8
    molecule = ase.Atoms("OSiO", positions=[[-1.7, 0.2, 0], [0, 0, 0.1], [1.6, 0, 0.3]])
    path = tmp_path_factory.mktemp("structures") / "mixed.xyz"
    ase.io.write(path, [crystal, slab, molecule, ase.Atoms("Si", positions=[[9, 9, 9]])])
    return path


@pytest.mark.parametrize("newton", ["on", "off"])
def test_lammps_agrees_with_mace_torch(models, structures, newton, tmp_path):
    source, target = models
    report = mace_stream.validate(
        target, [structures], reference=source, newton=newton, output=tmp_path
    )
    assert report.passed, report.to_json()
    assert len(report.frames) == 4
    assert np.abs(report.frames[0].reference.forces).max() > 1e-4
    assert "mace-torch" in report.reference
    assert (tmp_path / "frame_3.data").exists()


def test_single_precision_is_not_double(models, structures):
    source, target = models
    report = mace_stream.validate(target, [structures], reference=source, precision="single")
    assert report.passed, report.to_json()
    assert max(row.max for frame in report.frames for row in frame.differences) > 1e-9


@pytest.fixture(scope="module")
def changed(models, tmp_path_factory):
    """The .mace file with one weight changed by 1e-3 of itself."""
    spec, tensors = io.load(models[1])
    name = "layers.1.radial.1"
    tensors[name] = tensors[name].copy()
    tensors[name][3, 4] *= 1.001
    path = tmp_path_factory.mktemp("changed") / "changed.mace"
    io.save(path, spec, tensors)
    return path


def test_one_changed_weight_is_found(models, changed, structures):
    assert not mace_stream.validate(changed, [structures], reference=models[0]).passed


def test_without_a_reference_the_oracle_judges(models, tmp_path):
    chain = ase.Atoms("OSiC", positions=[[0, 0, 0], [0, 0.3, 1.7], [1.5, 0.4, 2]], cell=[4, 5, 3])
    chain.pbc = [False, False, True]
    ase.io.write(tmp_path / "chain.xyz", chain)
    report = mace_stream.validate(models[1], [tmp_path / "chain.xyz"])
    assert report.passed, report.to_json()
    assert "NumPy oracle" in report.reference


def test_the_oracle_finds_another_model(models, changed, tmp_path):
    from mace_stream.validation import BOUNDS, Frame, compare
    from mace_stream.validation.references import OracleReference

    frame = Frame.from_atoms("pair", ase.Atoms("OSi", positions=[[0, 0, 0], [0, 0, 1.7]]))
    right, wrong = (OracleReference(path, None)(frame) for path in (models[1], changed))
    assert compare("same", right, right, BOUNDS["double"]).passed
    assert not compare("other", wrong, right, BOUNDS["double"]).passed


def write_script(folder, model, symbols, units="metal"):
    path = folder / "in.oxide"
    path.write_text(SCRIPT.format(model=model, symbols=symbols, units=units))
    return path


@pytest.mark.parametrize("units", ["metal", "real"])
def test_a_users_own_script_passes(models, tmp_path, units):
    source, target = models
    script = write_script(tmp_path, target, "Si O", units)
    report = mace_stream.validate(target, script=script, reference=source)
    assert report.passed, report.to_json()
    assert report.frames[0].n_atoms == 14


def test_a_wrong_element_order_is_found(models, tmp_path):
    source, target = models
    script = write_script(tmp_path, target, "O Si")
    assert not mace_stream.validate(target, script=script, reference=source).passed


def test_a_script_that_lammps_refuses_is_reported(models, tmp_path):
    script = tmp_path / "in.bad"
    script.write_text("units metal\nno_such_command\n")
    with pytest.raises(RuntimeError, match="Unknown command: no_such_command"):
        mace_stream.validate(models[1], script=script, reference=models[0])


def test_unknown_elements_are_refused(models, tmp_path):
    ase.io.write(tmp_path / "gold.xyz", ase.build.bulk("Au"))
    with pytest.raises(ValueError, match="does not know Au; it knows H C O Si"):
        mace_stream.validate(models[1], [tmp_path / "gold.xyz"], reference=models[0])


def test_a_reference_that_is_no_model_is_refused(models, structures):
    with pytest.raises(ValueError, match="file already"):
        mace_stream.validate(models[1], [structures], reference=models[1])


def test_the_command_line_tells_by_its_status(models, changed, tmp_path):
    from mace_stream.cli.validate import validate

    app = typer.Typer()
    app.command()(validate)
    molecule, out = tmp_path / "molecule.xyz", tmp_path / "out"
    ase.io.write(molecule, ase.Atoms("OSi", positions=[[0, 0, 0], [0, 0, 1.7]]))
    options = [str(molecule), "--reference", str(models[0]), "--output", str(out)]
    passed = CliRunner().invoke(app, [str(models[1]), *options])
    assert (passed.exit_code, "PASS" in passed.output) == (0, True)
    assert (out / "validation.json").exists()
    assert (out / "parity.png").exists()
    failed = CliRunner().invoke(app, [str(changed), *options])
    assert (failed.exit_code, "FAIL" in failed.output) == (1, True)
    refused = CliRunner().invoke(app, [str(models[1]), *options, "--style", "no_such_keyword yes"])
    assert refused.exit_code == 2
