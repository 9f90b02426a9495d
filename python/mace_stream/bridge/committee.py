"""Several models of one input: what is taken as the result, and how far their forces differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np

from mace_stream.bridge import report
from mace_stream.bridge.errors import EXPECTED
from mace_stream.bridge.session import Session
from mace_stream.evaluation import Evaluation
from mace_stream.halo import Halo


class Committee:
    """Several models on one device, called as one :class:`Session` is.

    ``committee mean`` evaluates all models at every step. ``committee first`` evaluates the first
    one, and the others where :meth:`all_forces` is called.

    Args:
        paths: ``.mace`` files, at least two.
        symbols: As for :class:`Session`; every model must know all of them.
        options: As for :class:`Session`; they hold for every model.
        counted: As for :class:`Session`.

    Raises:
        ValueError: A file is no model, is named twice, or does not know a symbol or the head; the
            message names the file.
    """

    def __init__(
        self,
        paths: Sequence[str],
        symbols: Sequence[str],
        options: Mapping[str, str],
        counted: Mapping[str, int] | None = None,
    ) -> None:
        self.members: list[Session] = []
        for path in paths:
            with _named(path):
                self.members.append(Session(path, symbols, options, counted))
        _refuse_repeats(self.members)
        first = self.members[0]
        self.type_species, self.type_masses = first.type_species, first.type_masses
        self.r_max = max(member.r_max for member in self.members)
        """Cutoff of the list in Å; every model leaves out what is beyond its own."""
        self.finds_pairs = all(member.finds_pairs for member in self.members)
        self._species = [_translation(first, member) for member in self.members]
        self._verifies = options["verify"] == "yes"
        self.rule = options["committee"]
        n_driving = 1 if self.rule == "first" else len(self.members)
        self._driving, self._others = self.members[:n_driving], self.members[n_driving:]
        self._atoms: tuple | None = None
        self._positions: np.ndarray | None = None
        self._forces: list[np.ndarray] = []
        self._n_compared = 0

    @property
    def n_models(self) -> int:
        """Number of models."""
        return len(self.members)

    @property
    def exchanges(self) -> list[bool]:
        """Which way each exchange of :meth:`evaluate` goes, True for home."""
        return [way for member in self._driving for way in member.exchanges]

    @property
    def other_exchanges(self) -> list[bool]:
        """The same for :meth:`all_forces`."""
        return [way for member in self._others for way in member.exchanges]

    @property
    def record(self) -> dict[str, str]:
        """What decides the numbers, as :attr:`Session.record` has it, model after model.

        The colon behind the files is that of ``pair_coeff``.
        """
        records = [member.record for member in self.members]
        joined = {name: " ".join(record[name] for record in records) for name in records[0]}
        joined["model"] += " :"
        joined["committee"] = self.rule
        return joined | {name: records[0][name] for name in ("precision", "elements")}

    def set_halo(self, halo: Halo) -> None:
        """Take over the nodes that ranks share; see :meth:`Session.set_halo`."""
        for member in self.members:
            member.set_halo(halo)

    def set_topology(
        self,
        indptr: np.ndarray,
        sender: np.ndarray,
        receiver_atom: np.ndarray,
        sender_atom: np.ndarray,
        species: np.ndarray,
    ) -> None:
        """Take over a new list; ``species`` are indices into the first model's elements."""
        self._atoms, self._forces = None, []
        for member, table in zip(self.members, self._species, strict=True):
            member.set_topology(indptr, sender, receiver_atom, sender_atom, table[species])

    def set_atoms(self, n_local: int, node: np.ndarray, species: np.ndarray, cutoff: float) -> None:
        """Take over atoms instead of a list; see :meth:`Session.set_atoms`."""
        self._atoms, self._forces = (n_local, node.copy(), species.copy(), cutoff), []
        self._find_pairs_anew(self.members)

    def _find_pairs_anew(self, members: Sequence[Session]) -> None:
        n_local, node, species, cutoff = self._atoms
        for member in members:
            table = self._species[self.members.index(member)]
            member.set_atoms(n_local, node, table[species], cutoff)

    def set_ids(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Take over what messages name atoms by; see :meth:`Session.set_ids`."""
        for member in self.members:
            member.set_ids(ids, rows)

    def evaluate(self, positions: np.ndarray, node_energy: bool, node_virial: bool) -> Evaluation:
        """Return the mean over the models, or what the first one says.

        Args and errors are those of :meth:`Session.evaluate`; messages name the model.
        """
        self._forces = []
        results = [
            _evaluate(member, positions, node_energy, node_virial) for member in self._driving
        ]
        self._positions = positions.copy() if self._others else None
        self._forces = [result.forces for result in results]
        return mean(results)

    def all_forces(self) -> list[np.ndarray]:
        """Return the forces of every model where the last evaluation was.

        Models that were not evaluated there are now.

        Returns:
            float64 [n_senders, 3] in eV/Å for each model; valid until the next evaluation.

        Raises:
            ValueError: There was no evaluation, or this one failed.
        """
        if not self._forces:
            raise ValueError("no forces have been computed for these atoms; type run 0 before")
        waiting = self.members[len(self._forces) :]
        if self._atoms is not None:  # a list that began at other positions may lack pairs here
            self._find_pairs_anew(waiting)
        self._forces += [_evaluate(m, self._positions, False, False).forces for m in waiting]
        self._n_compared += 1
        return self._forces

    def take_list(self, positions: np.ndarray) -> int:
        """Take over a new list before its first evaluation; see :meth:`Session.take_list`."""
        members = self.members if self._verifies else self._driving
        counts = [member.take_list(positions) for member in members]
        return counts[0]

    def verify(self, positions: np.ndarray) -> str:
        """Compare every model with its exact path where ``verify yes`` asks for it.

        Returns:
            A line for each model, or nothing.
        """
        if not self._verifies:
            return ""
        lines = []
        for member in self.members:
            with _named(member.path):
                lines.append(f"{member.verify(positions).rstrip()} ({member.path.name})\n")
        return "".join(lines)

    @property
    def placement(self) -> str:
        """Host, device and threads of this rank."""
        return self.members[0].placement

    def take_statistics(self) -> dict[str, float]:
        """Return times of all models together, edges of the first, and the largest memory."""
        taken = [member.take_statistics() for member in self.members]
        names = {name for one in taken for name in one}
        total = {name: sum(one.get(name, 0) for one in taken) for name in names}
        for name in ("device_peak_bytes", "resident_bytes"):
            total[name] = max(one[name] for one in taken)
        total |= {"edges": taken[0]["edges"], "compared": self._n_compared}
        self._n_compared = 0
        return total

    def start_report(self, facts: Mapping[str, str]) -> str:
        """Return the block that the pair style prints before the first step."""
        return report.start(self.members[0], facts, self)

    def end_report(self, total: Mapping[str, float], most: Mapping[str, float], ranks: int) -> str:
        """Return the table that the pair style prints after a run."""
        return report.end(total, most, ranks)


def mean(results: Sequence[Evaluation]) -> Evaluation:
    """Return the mean of every quantity over the models; None where it was not asked for."""
    if len(results) == 1:
        return results[0]
    values = {
        field.name: [getattr(result, field.name) for result in results]
        for field in fields(Evaluation)
    }
    n = len(results)
    return Evaluation(
        **{k: None if v[0] is None else sum(v[1:], v[0]) / n for k, v in values.items()}
    )


def _evaluate(member: Session, positions: np.ndarray, *wanted: bool) -> Evaluation:
    with _named(member.path):
        return member.evaluate(positions, *wanted)


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """Let messages begin with the file that they are about."""
    try:
        yield
    except EXPECTED as error:
        text = str(error)
        raise ValueError(text if str(path) in text else f"{path}: {text}") from error


def _refuse_repeats(members: Sequence[Session]) -> None:
    """Two that are the same would make the deviation too small, without a word."""
    seen: dict[str, Path] = {}
    for member in members:
        if member.sha256 in seen:
            raise ValueError(
                f"{seen[member.sha256]} and {member.path} are the same model; name each model of a "
                "committee once"
            )
        seen[member.sha256] = member.path


def _translation(first: Session, member: Session) -> np.ndarray:
    """Species of ``member`` for each of the first model's, int32; -1 for those not named."""
    table = np.full(len(first.spec.elements), -1, dtype=np.int32)
    named = first.type_species >= 0
    table[first.type_species[named]] = member.type_species[named]
    return table
