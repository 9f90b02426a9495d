"""A loaded model behind plain arrays: the Python side of the pair style."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path

import numpy as np

from mace_stream import io
from mace_stream.bridge import report
from mace_stream.bridge.elements import map_types
from mace_stream.bridge.gpu_aware import check_gpu_aware, route_text
from mace_stream.bridge.launch import Launch
from mace_stream.bridge.linking import own_symbols_first
from mace_stream.bridge.options import INPUTS, given_inputs
from mace_stream.bridge.verify import nodes_of_atoms, verify
from mace_stream.embedding import input_values
from mace_stream.evaluation import Evaluation, TooCloseError, check_array, check_finite
from mace_stream.halo import Halo
from mace_stream.spec import ModelSpec


class Session:
    """One model on one device, for one instance of the pair style.

    Args:
        path: A ``.mace`` file.
        symbols: Chemical symbol of each atom type; ``NULL`` for types of other styles.
        options: A value for every keyword, as from :func:`mace_stream.bridge.check_options`.
        counted: What MPI counted on this node, see :class:`mace_stream.bridge.launch.Launch`.

    Raises:
        ValueError: The file is no model, or does not know a symbol or the head.
    """

    def __init__(
        self,
        path: str,
        symbols: Sequence[str],
        options: Mapping[str, str],
        counted: Mapping[str, int] | None = None,
    ) -> None:
        self.backend = options["backend"]
        self.backend_version, choose_evaluator = load_backend(self.backend)
        self.path = Path(path)
        self.spec, tensors = io.load(self.path)
        self.sha256 = io.sha256(self.path)
        self.head = choose_head(self.spec, options["head"])
        self.inputs = choose_inputs(self.spec, options)
        self.symbols = tuple(symbols)
        self.type_species, self.type_masses = map_types(self.spec.elements, symbols)
        self.r_max = self.spec.r_max
        self._ids = self._rows = np.zeros(0, dtype=np.int64)
        self._verifies = options["verify"] == "yes"
        self.energies = tensors["atomic_energies"][self.spec.heads.index(self.head)]
        self.launch = Launch.find(counted or {})
        self.evaluator = choose_evaluator(
            *(self.spec, tensors, options),
            head=self.head,
            inputs=self.inputs,
            species=sorted({int(z) for z in self.type_species if z >= 0}),
            launch=(self.launch.rank, self.launch.threads()),
        )
        self._is_alone = True
        self._gpu_aware = options["gpu_aware"] == "yes"
        self._takes_gpu_memory = (counted or {}).get("takes_gpu_memory", -1)
        if self._gpu_aware:
            on_gpu = self.evaluator.placement.on_gpu
            check_gpu_aware(self.backend, on_gpu, self._takes_gpu_memory)

    n_models = 1

    @property
    def exchanges(self) -> list[bool]:
        """Which way each exchange of an evaluation goes on several ranks, True for home."""
        later_layers = len(self.spec.layers) - 1
        return [False] * later_layers + [True] * later_layers

    @property
    def record(self) -> dict[str, str]:
        """What decides the numbers, one line each, for restart files."""
        return {
            "model": str(self.path.resolve()),
            "SHA-256": self.sha256,
            "head": self.head,
            **{INPUTS[name]: f"{value:g}" for name, value in self.inputs.items()},
            "precision": self.evaluator.placement.precision,
            "elements": " ".join(self.symbols),
        }

    def set_halo(self, halo: Halo) -> None:
        """Take over the nodes that ranks share; before each new list on several ranks."""
        if self._verifies:
            raise ValueError(
                "verify yes works on one MPI rank; use it there, with run 0, and leave it out here"
            )
        self._is_alone = False
        self.evaluator.set_halo(replace(halo, gpu_aware=self._gpu_aware))

    def set_topology(
        self,
        indptr: np.ndarray,
        sender: np.ndarray,
        receiver_atom: np.ndarray,
        sender_atom: np.ndarray,
        species: np.ndarray,
    ) -> None:
        """Take over a new neighbor list; the arrays are copied.

        Args:
            indptr: int64 [n_nodes + 1]; receiver ``i`` owns edges ``indptr[i]:indptr[i + 1]``.
            sender: int32 [n_edges]; node of each edge's sender. Nodes of other ranks follow the
                receivers.
            receiver_atom: int32 [n_edges]; row of the positions that is the receiver's.
            sender_atom: int32 [n_edges]; row of the positions that is the sender's.
            species: int32 [n_senders]; index into the model's elements.

        Raises:
            ValueError: An array has the wrong shape or dtype.
        """
        n_edges, n_nodes = len(sender), max(0, len(indptr) - 1)
        check_array("indptr", indptr, (n_nodes + 1,), "int64")
        for name, array in (("receiver_atom", receiver_atom), ("sender_atom", sender_atom)):
            check_array(name, array, (n_edges,), "int32")
        self.evaluator.set_topology(indptr, sender, receiver_atom, sender_atom, species)

    @property
    def finds_pairs(self) -> bool:
        """Whether :meth:`set_atoms` works: on a GPU, on the inference path."""
        return self.evaluator.finds_pairs

    def set_atoms(self, n_local: int, node: np.ndarray, species: np.ndarray, cutoff: float) -> None:
        """Take over atoms instead of a neighbor list; the arrays are copied.

        Args:
            n_local: Local atoms come first, then images.
            node: int64 [n_atoms]; node of each atom's owner, -1 for atoms of other styles.
            species: int32 [n_nodes]; index into the model's elements.
            cutoff: Å; all pairs up to it at the next evaluation's positions are taken.

        Raises:
            ValueError: An array has the wrong dtype.
        """
        check_array("node", node, (len(node),), "int64")
        check_array("species", species, (len(species),), "int32")
        self.evaluator.set_atoms(n_local, node, species, cutoff)

    def set_ids(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Take over what messages name atoms by, after a new list.

        Args:
            ids: int64 [n_senders]; of the nodes' atoms.
            rows: int64 [n_senders]; rows of the positions that are theirs.
        """
        check_array("ids", ids, (len(ids),), "int64")
        check_array("rows", rows, (len(ids),), "int64")
        self._ids, self._rows = ids.copy(), rows.copy()

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Return energy, forces and virial at these positions.

        Args:
            positions: float64 [n_atoms, 3] in Å, images included; not kept.
            node_energy: Whether the energy of every node is wanted.
            node_virial: Whether the virials of every node are wanted.

        Raises:
            ValueError: The positions have the wrong shape, two atoms are closer than the radial
                tables reach, or the result is not finite.
        """
        check_array("positions", positions, (len(positions), 3), "float64")
        try:
            result = self.evaluator.evaluate(positions, node_energy, node_virial)
        except TooCloseError as pair:
            first, second = self._ids[list(pair.nodes)]
            places = " and ".join(self._place(node, positions) for node in pair.nodes)
            raise ValueError(
                f"atoms {first} and {second} are {pair.distance:.4f} Å apart, closer than "
                f"{pair.reach:g} Å, where the radial tables start; they are at {places} Å; check "
                "the structure, use a smaller timestep, or add the keyword: radial exact"
            ) from None

        def node_energies() -> np.ndarray | None:
            """On several ranks the others do not take part in another evaluation."""
            if result.node_energy is not None or not self._is_alone:
                return result.node_energy
            return self.evaluator.evaluate(positions, True, False).node_energy

        check_finite(result, lambda node: self._atom(node, positions), node_energies)
        return result

    def _atom(self, node: int, positions: np.ndarray) -> str:
        return f"atom {self._ids[node]} at {self._place(node, positions)} Å"

    def _place(self, node: int, positions: np.ndarray) -> str:
        x, y, z = positions[self._rows[node]]
        return f"({x:.4f}, {y:.4f}, {z:.4f})"

    def take_list(self, positions: np.ndarray) -> int:
        """Take over a new list before its first evaluation, at these positions.

        Returns:
            Number of pairs of the list, each counted from both sides.
        """
        if self._verifies:
            self._pairs = self.evaluator.pairs(positions)
        return self.evaluator.take_list(positions)

    def verify(self, positions: np.ndarray) -> str:
        """Compare with the exact path, where ``verify yes`` asks for it, after :meth:`take_list`.

        Returns:
            A line for the log, or nothing.

        Raises:
            ValueError: A difference is above its bound.
        """
        if not self._verifies:
            return ""
        try:
            return self._verify(positions)
        finally:
            self.evaluator.placement.forget_peak()

    def _verify(self, positions: np.ndarray) -> str:
        placement = self.evaluator.placement
        tensors = io.load(self.path)[1]
        evaluators = import_module(f"mace_stream.{self.backend}.evaluators")
        exact = evaluators.exact_evaluator(self.spec, tensors, self.head, placement, self.inputs)
        pairs, self._pairs = self._pairs, ()
        exact.set_topology(*pairs)
        return verify(
            lambda x: self.evaluate(x, False, False),
            lambda x: exact.evaluate(x, False, False),
            positions,
            nodes_of_atoms(len(positions), *pairs[:4]),
            placement.precision,
        )

    def route(self, n_ranks: int) -> str:
        """How rows travel between ranks and why, for the log, or nothing."""
        on_gpu = self.evaluator.placement.on_gpu
        return route_text(self._gpu_aware, on_gpu, self._takes_gpu_memory, n_ranks)

    @property
    def placement(self) -> str:
        """Host, device and threads of this rank."""
        place = self.evaluator.placement
        return f"{socket.gethostname()}: {place.device_name}, threads: {place.threads}"

    def take_statistics(self) -> dict[str, float]:
        """Return seconds of the parts of evaluations and other measurements since the last call."""
        return self.evaluator.take_statistics() | {"resident_bytes": report.resident_bytes()}

    def start_report(self, facts: Mapping[str, str]) -> str:
        """Return the block that the pair style prints before the first step."""
        return report.start(self, facts)

    def end_report(self, total: Mapping[str, float], most: Mapping[str, float], ranks: int) -> str:
        """Return the table that the pair style prints after a run.

        Args:
            total: Timings and statistics, summed over ranks.
            most: The largest of any rank.
            ranks: How many there are.
        """
        return report.end(total, most, ranks)


def load_backend(name: str) -> tuple[str, Callable]:
    """Import the backend ``torch`` or ``jax``, and not the other.

    Returns:
        Its version, and what chooses an evaluator.

    Raises:
        ImportError: JAX is asked for and is not there.
    """
    with own_symbols_first():
        if name == "jax":
            from mace_stream.jax.evaluators import choose_evaluator
        else:
            from mace_stream.torch.evaluators import choose_evaluator
    return f"{name} {metadata.version(name)}", choose_evaluator


def choose_inputs(spec: ModelSpec, options: Mapping[str, str]) -> dict[str, float]:
    """Return the value of every input that the model takes, given or not.

    Raises:
        ValueError: A keyword gives an input that the model does not take.
    """
    given, taken = given_inputs(options), {item.name for item in spec.inputs}
    for name in given:
        if name not in taken:
            raise ValueError(
                f"keyword {INPUTS[name]}: the model takes no {name}; leave the keyword out"
            )
    return input_values(spec, given)


def choose_head(spec: ModelSpec, name: str) -> str:
    """Return the name of the head to use.

    Raises:
        ValueError: The file has several heads and none is named, or the named one is not there.
    """
    listing = ", ".join(spec.heads)
    if not name and len(spec.heads) > 1:
        raise ValueError(
            f"the model has several heads: {listing}; add the keyword: head {spec.heads[0]}"
        )
    if name and name not in spec.heads:
        raise ValueError(f"head {name} is not in the model; its heads are: {listing}")
    return name or spec.heads[0]
