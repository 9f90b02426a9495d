"""A model assembled from passes: the oracle's passes, and the torch model's own dense layers."""

from dataclasses import dataclass

import numpy as np
import torch
from model_support import graph_of

from mace_stream.kernels.inference import Setup
from mace_stream.reference.inference import (
    Edges,
    Neighbors,
    ReferencePasses,
    join_blocks,
    split_blocks,
)
from mace_stream.tables import RadialTables, contraction_terms
from mace_stream.torch import MACE
from mace_stream.torch.inference.tables import build_repulsion, build_tables
from mace_stream.torch.interaction import MeanNorm
from mace_stream.torch.linear import SpeciesGroups


@dataclass(frozen=True)
class Assembly:
    """What the passes need of a model; ``present`` are indices of elements, in any order."""

    model: MACE
    present: tuple[int, ...]
    tables: RadialTables
    setup: Setup
    coefs: list[np.ndarray]

    @classmethod
    def build(cls, spec, tensors, present, n_coef=6, bound=1e-10, head=None):
        model = MACE.from_spec(spec, tensors, head=head)
        tables = build_tables(model, present, n_coef, bound)
        contractions, coefs = zip(
            *(
                contraction_terms(layer, tensors, f"layers.{t}.product.", present)
                for t, layer in enumerate(spec.layers)
            ),
            strict=True,
        )
        setup = Setup(
            dtype="float64",
            n_species=len(present),
            l_max=spec.l_max,
            channels=model.products[0].contraction.channels,
            r_0=tables.grid.r_0,
            r_max=tables.grid.r_max,
            n_knots=tables.grid.n_knots,
            n_coef=n_coef,
            n_hidden=tables.hidden.shape[2],
            plans=(None, *(interaction.plan for interaction in model.interactions[1:])),
            contractions=contractions,
            repulsion=build_repulsion(model, present),
        )
        return cls(model, tuple(present), tables, setup, list(coefs))


def neighbors_of(atoms, elements, r_max, skin=0.5):
    """Receivers sorted by species, a padded one after each species; every slot its own image.

    Returns the neighbors, positions, and which nodes are atoms.
    """
    graph = graph_of(atoms, elements, r_max + skin)
    order, real = [], []
    for s in range(len(elements)):
        mine = np.flatnonzero(graph.species == s).tolist()
        order += [*mine, -1]
        real += [True] * len(mine) + [False]
    order, real = np.array(order), np.array(real)
    node_of_atom = np.empty(len(atoms), np.int64)
    node_of_atom[order[real]] = np.flatnonzero(real)
    species = np.repeat(
        np.arange(len(elements)), np.bincount(graph.species, minlength=len(elements)) + 1
    )
    receiver, sender = node_of_atom[graph.receiver], node_of_atom[graph.sender]
    by = np.lexsort((np.linalg.norm(graph.edge_vec, axis=1), species[sender], receiver))
    x = np.concatenate([atoms.positions, atoms.positions[graph.receiver] - graph.edge_vec])
    nodes = Neighbors(
        first=np.append(0, np.cumsum(np.bincount(receiver, minlength=len(order)))),
        node_atom=np.where(real, order, 0),
        slot_atom=len(atoms) + by,
        slot_node=sender[by],
        species=species,
    )
    return nodes, x, real


class Step:
    """One evaluation: energies of nodes, and dE/d(edge_vec) of slots in :attr:`edges`.

    Passes exchange arrays with layers at leaves of torch's graph: there gradients stop.
    """

    def __init__(self, assembly: Assembly, nodes: Neighbors, x: np.ndarray):
        self.assembly, self.nodes = assembly, nodes
        self.passes = ReferencePasses(assembly.setup)
        self.tile = (0, nodes.n_nodes)
        self.edges, self.pair_energy, self.closest = self.passes.edges(nodes, x)
        self.species = torch.tensor(assembly.present)[torch.tensor(nodes.species)]
        self.groups = SpeciesGroups.build(self.species, len(assembly.model.elements))
        self.sums, self.messages, self.bases, self.ups, self.feats = [], [], [], [], []
        for t in range(len(assembly.coefs)):
            self._layer(t)
        self.energy = self._readouts()
        self._backward()

    def _density(self, t):
        return self.assembly.tables.densities[t]

    def _layer(self, t):
        model, tables = self.assembly.model, self.assembly.tables
        interaction, product = model.interactions[t], model.products[t]
        if t == 0:
            self.ups.append(None)
            total, _ = self.passes.scatter(self.nodes, self.edges, tables.hidden, self._density(0))
            self.sums.append(leaf(total))
            message = first_message(interaction, self.sums[0], self.assembly.present)
            skip = interaction.skip_table[self.species] if interaction.residual else None
        else:
            self.ups.append(interaction.linear_up(self.feats[-1]))
            flat, _ = self.passes.conv(
                *(t, self.tile, self.nodes, self.edges),
                *(array(self.ups[t]).transpose(1, 0, 2), tables.convs[t], self._density(t)),
            )
            self.sums.append(leaf(split_blocks(interaction.plan, flat, self.nodes.n_nodes)))
            message = interaction.linear(self.sums[t])
            skip = interaction.skip(self.feats[-1], self.groups) if interaction.residual else None
        if not interaction.residual:
            message = interaction.skip(message, self.groups)
        self.messages.append(message)
        basis = self.passes.contract(t, *self._contract_arguments(t))
        self.bases.append(leaf(basis))
        feats = product.linear(self.bases[t].permute(1, 0, 2))
        self.feats.append(feats + skip if product.use_sc and skip is not None else feats)

    def _contract_arguments(self, t):
        message = array(self.messages[t]).transpose(1, 0, 2)
        return self.tile, self.nodes.species, self.assembly.coefs[t], message

    def _readouts(self):
        model = self.assembly.model
        energy = model.shift + torch.tensor(self.pair_energy)
        for readout in model.readouts:
            energy = energy + readout(self.feats[readout.layer])
        return energy

    def _backward(self):
        bars = self._pull_back(self.energy.sum(), None)
        for t in reversed(range(len(self.bases))):
            bar, dot = self.passes.contract_backward(t, *self._contract_arguments(t), bars[t])
            (sum_bar,) = torch.autograd.grad(
                self.messages[t], self.sums[t], torch.tensor(bar.transpose(1, 0, 2))
            )
            per_node = (sum_bar * self.sums[t]).movedim(1 if t == 0 else 0, 0).flatten(1).sum(1)
            assert np.allclose(array(per_node), dot, rtol=1e-10, atol=1e-13)
            self._to_edges(t, array(sum_bar), bars)

    def _to_edges(self, t, sum_bar, bars):
        """Add to the edges' gradients, and to the cotangents of the layers before."""
        tables, density = self.assembly.tables, self._density(t)
        if t == 0:
            self.edges.grad[:] += self.passes.scatter_backward(
                self.nodes, self.edges, tables.hidden, density, sum_bar
            )
            return
        grad, up_bar = self.passes.conv_backward(
            *(t, self.tile, self.nodes, self.edges, array(self.ups[t]).transpose(1, 0, 2)),
            *(tables.convs[t], density, join_blocks(self.assembly.setup.plans[t], sum_bar)),
        )
        self.edges.grad[:] += grad
        more = self._pull_back(self.ups[t], torch.tensor(up_bar.transpose(1, 0, 2)))
        for k in range(t):
            bars[k] += more[k]

    def _pull_back(self, out, out_bar):
        """Cotangents of all bases through dense layers alone."""
        bars = torch.autograd.grad(
            out, self.bases, out_bar, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return [array(bar) for bar in bars]


def first_message(interaction, total, present):
    """Sums [(l_max + 1)**2, n, S, H] to messages [n, dim, C]: the features of species fold in."""
    network = interaction.radial
    weights = network.last_weight.unflatten(1, (network.n_paths, -1))
    up = interaction.up_table[list(present), 0]
    out = total.new_zeros(total.shape[1], interaction.plan.dim_out, up.shape[1])
    for p, path in enumerate(interaction.plan.paths):
        sign = path.coupling[0, 0, 0]
        assert np.allclose(path.coupling[0], sign * np.eye(len(path.coupling[0])))
        assert abs(abs(sign) - 1) < 1e-12
        rows = torch.einsum("mish,hc,sc->imc", total[path.rows_edge], weights[:, p], up)
        out[:, path.rows_out] = sign * rows
    message = interaction.linear(out)
    norm = interaction.normalize
    return message / norm.avg_num_neighbors if isinstance(norm, MeanNorm) else message


def leaf(values):
    return torch.tensor(np.ascontiguousarray(values), requires_grad=True)


def array(tensor):
    return tensor.detach().numpy().copy()


def edge_arguments(nodes: Neighbors, edges: Edges, present):
    """Arguments of the torch model for the same edges, and their slots."""
    slots, _ = edges.slots(nodes)
    vec = edges.dir[slots, :3] / edges.dir[slots, 3:]
    indptr = np.append(0, np.cumsum(edges.count))
    species = np.array(present)[nodes.species]
    return (vec, indptr, edges.sender[slots].astype(np.int64), species), slots
