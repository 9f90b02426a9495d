"""Writes the polynomials of a symmetric contraction as CUDA C++, nested as by Horner.

Terms with the same output row and the same first factors share their partial sums::

    b_o = sum_i a_i (k_i + sum_j a_j (k_ij + sum_k a_k k_ijk))

The text is plain statements on scalars, one per node of a pack: compilers take long over thousands
of calls of small functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mace_stream.kernels.inference import Contraction


def write_contraction(contraction: Contraction, nodes: int, *, backward: bool) -> str:
    """Return ``contract_pack``, or ``contract_pack_backward``, of contraction.cuh."""
    writer = _Writer(nodes)
    walk = writer.backward if backward else writer.forward
    name = "contract_pack_backward" if backward else "contract_pack"
    arguments = ["const Real* coefs", "const Pack<NODES> (&a)[DIM]"]
    if backward:
        arguments += ["const Pack<NODES> (&b_bar)[DIM_OUT]", "Pack<NODES> (&a_bar)[DIM]"]
    else:
        arguments += ["Pack<NODES> (&b)[DIM_OUT]"]
    lines = [
        line
        for row, root in _trees(contraction).items()
        for line in walk(root, f"{'b_bar' if backward else 'b'}[{row}].v[#]", 1)
    ]
    head = f"__device__ __forceinline__ void {name}({', '.join(arguments)}) {{"
    return "\n".join([head, *lines, "}", ""])


@dataclass
class _Node:
    """A partial sum: a coefficient, and one child per further factor."""

    coef: int | None = None
    children: dict[int, _Node] = field(default_factory=dict)


def _trees(contraction: Contraction) -> dict[int, _Node]:
    roots: dict[int, _Node] = {}
    for index, (row, *factors) in enumerate(contraction.terms.tolist()):
        node = roots.setdefault(row, _Node())
        for factor in factors:
            if factor >= 0:
                node = node.children.setdefault(factor, _Node())
        node.coef = index
    return roots


class _Writer:
    """Statements for ``nodes`` nodes; ``#`` in a pattern stands for the node's number."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def forward(self, node: _Node, target: str, depth: int) -> Iterator[str]:
        """Add what hangs below ``node`` to ``target``."""
        for factor, child in node.children.items():
            if not child.children:
                yield from self._leaf(child, [(target, _factor(factor))])
                continue
            yield from self._open(child, depth)
            yield from self.forward(child, f"s{depth}_#", depth + 1)
            yield from self._multiply_add(target, _factor(factor), f"s{depth}_#")
            yield "}"

    def backward(self, node: _Node, bar: str, depth: int, total: str = "") -> Iterator[str]:
        """Add to ``a_bar`` of every factor below ``node``, whose sum has the cotangent ``bar``.

        The sum itself is added to ``total``, unless that is empty.
        """
        for factor, child in node.children.items():
            a, a_bar = _factor(factor), f"a_bar[{factor}].v[#]"
            if not child.children:
                yield from self._leaf(child, [(a_bar, bar), *([(total, a)] if total else [])])
                continue
            yield from self._open(child, depth)
            yield from self._each(f"const Real t{depth}_# = {bar} * {a};")
            yield from self.backward(child, f"t{depth}_#", depth + 1, f"s{depth}_#")
            yield from self._multiply_add(a_bar, bar, f"s{depth}_#")
            if total:
                yield from self._multiply_add(total, a, f"s{depth}_#")
            yield "}"

    def _leaf(self, node: _Node, sums: list[tuple[str, str]]) -> Iterator[str]:
        """Add the coefficient times the second to the first, for every pair of ``sums``."""
        yield f"{{ const Real k = {_coef(node)};"
        for target, factor in sums:
            yield from self._multiply_add(target, factor, "k")
        yield "}"

    def _open(self, node: _Node, depth: int) -> Iterator[str]:
        """Open a scope with the partial sum of ``node``, which its children add to."""
        yield "{"
        if node.coef is not None:
            yield f"const Real k = {_coef(node)};"
        yield from self._each(f"Real s{depth}_# = {'0' if node.coef is None else 'k'};")

    def _multiply_add(self, target: str, a: str, b: str) -> Iterator[str]:
        return self._each(f"{target} = fma({a}, {b}, {target});")

    def _each(self, statement: str) -> Iterator[str]:
        return (statement.replace("#", str(r)) for r in range(self.nodes))


def _factor(factor: int) -> str:
    return f"a[{factor}].v[#]"


def _coef(node: _Node) -> str:
    return f"coefs[{node.coef} * CHANNELS]"
