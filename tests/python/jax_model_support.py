"""One structure through the JAX model; what its tests share. Skips them where it is not built."""

import numpy as np
from jax_support import jax, jnp
from model_support import graph_of, reduce

from mace_stream.jax import MACE, double_precision, pad_graph

__all__ = ["MACE", "double_precision", "jax", "jnp"]

QUICK = {"xla_backend_optimization_level": 0}
"""Tests spend their time in compilation, not in what is compiled."""


def sizes_of(graphs):
    """Room for the largest of the graphs and some more."""
    n_edges = max(len(graph.sender) for graph in graphs) + 7
    return {"n_edges": n_edges, "n_receivers": max(len(graph.species) for graph in graphs) + 2}


class Evaluator:
    """Energies and dE/d(edge_vec) of all structures by one compilation, which is counted."""

    def __init__(self, model, sizes):
        self.model, self.sizes, self.n_traces = model, sizes, 0
        self.function = jax.jit(
            jax.value_and_grad(self._energy, argnums=1, has_aux=True), compiler_options=QUICK
        )

    def _energy(self, parameters, *graph):
        self.n_traces += 1
        return self.model(parameters, *graph)

    def padded(self, graph):
        return pad_graph(*graph.arguments(), r_max=self.model.r_max, **self.sizes)

    def raw(self, graph, parameters=None):
        """Node energies and edge gradients of the padded arrays."""
        with double_precision():
            tree = self.model.parameters if parameters is None else parameters
            (_, node_energy), gradient = self.function(tree, *self.padded(graph))
        return np.asarray(node_energy), np.asarray(gradient)

    def __call__(self, graph, parameters=None):
        node_energy, gradient = self.raw(graph, parameters)
        vec = self.padded(graph)[0]
        real = np.linalg.norm(vec, axis=1) < self.model.r_max
        assert not gradient[~real].any(), "edges that only pad have a derivative"
        assert not node_energy[len(graph.species) :].any(), "nodes that only pad have an energy"
        return reduce(graph, node_energy[: len(graph.species)], gradient[real])


def evaluators(spec, tensors, atoms_list, **options):
    """An evaluator for each head, and the graphs that fit into it."""
    graphs = [graph_of(atoms, spec.elements, spec.r_max) for atoms in atoms_list]
    sizes = sizes_of(graphs)
    for head in spec.heads:
        yield Evaluator(MACE.from_spec(spec, tensors, head=head, **options), sizes), graphs
