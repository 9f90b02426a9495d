"""The benchmark of the convolution: what it calls right, what it calls wrong, what it writes."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mace_stream.bench import cases, conv, peers
from mace_stream.cli import app

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"
SMALL = {"device": "cpu", "n_nodes": 30, "repeats": 2}


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(conv, "WARM_UP_SECONDS", 0)


def test_every_implementation_is_checked_and_right():
    rows = list(conv.run(["first"], ["plain"], **SMALL))
    assert [(row.impl, row.pass_name) for row in rows] == [
        (impl, name) for impl in ("streaming", "standard", "plain") for name in conv.PASSES
    ]
    assert all(row.status == "ok" and 0 < row.rel_err < 1e-6 for row in rows)
    assert all(row.q25_ms <= row.median_ms <= row.q75_ms for row in rows)


@pytest.mark.parametrize("n_nodes", [30, 450])
def test_the_uniform_graph_is_regular_symmetric_local_and_sorted(n_nodes):
    edges = cases.uniform_graph(n_nodes, 56, np.random.default_rng(0))
    indptr, sender = cases.row_pointers(*edges)
    receiver = np.repeat(np.arange(n_nodes), np.diff(indptr))
    assert set(np.diff(indptr)) == {56}
    pairs = list(zip(receiver, sender, strict=True))
    assert pairs == sorted(pairs) == sorted(zip(sender, receiver, strict=True))
    gap = abs(receiver - sender)
    assert np.minimum(gap, n_nodes - gap).max() < cases.SENDER_SPREAD


def test_titanium_has_its_own_graph():
    (row, *_) = conv.run(["first"], [], graph="hcp_ti", dtype=torch.float64, **SMALL)
    assert row.status == "ok"
    assert row.rel_err < 1e-14
    assert (row.graph, row.n_nodes) == ("hcp_ti", 500)


def test_jax_stands_beside_torch():
    conv_jax = pytest.importorskip("mace_stream.bench.conv_jax", exc_type=ImportError)
    rows = list(conv_jax.run(["first"], **SMALL))
    assert [row.pass_name for row in rows] == list(conv.PASSES)
    assert all(row.status == "ok" and 0 < row.rel_err < 1e-6 for row in rows)
    assert {row.label for row in rows} == {"streaming, jax"}


def test_a_planted_wrong_implementation_is_called_wrong(monkeypatch):
    def wrong(problem):
        right = peers.plain(problem)
        return replace(right, call=lambda *arrays: 1.001 * right.call(*arrays))

    monkeypatch.setitem(peers.PEERS, "plain", {"plain": wrong})
    rows = [row for row in conv.run(["first"], ["plain"], **SMALL) if row.impl == "plain"]
    assert {row.status for row in rows} == {"wrong_result"}


def test_a_missing_peer_is_a_row_that_says_so(monkeypatch):
    def missing(problem):
        raise ModuleNotFoundError("No module named 'peer'")

    monkeypatch.setitem(peers.PEERS, "plain", {"plain": missing})
    *_, row = conv.run(["first"], ["plain"], **SMALL)
    assert row.status == "not installed: No module named 'peer'"
    assert row.median_ms is None


def test_the_command_writes_the_documented_columns(tmp_path):
    table = tmp_path / "conv.csv"
    options = ["--case", "first", "--device", "cpu", "--nodes", "20", "--repeats", "2"]
    options += ["--csv", str(table)]
    result = CliRunner().invoke(app, ["bench", "conv", *options, "--plot", str(tmp_path / "p.png")])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 6
    published = list(csv.DictReader((DOCS / "conv.csv").open()))
    assert list(rows[0]) == list(published[0])
    text = (DOCS / "README.md").read_text()
    assert all(f"`{column}`" in text for column in rows[0])
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize("option", [("--case", "tiny"), ("--with", "nobody"), ("--graph", "fcc")])
def test_unknown_names_are_refused(option):
    result = CliRunner().invoke(app, ["bench", "conv", *option])
    assert result.exit_code == 2
    assert "expected one of" in result.output
