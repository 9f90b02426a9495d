"""Writes spherical harmonics and their pull-back as CUDA C++, from the formula in ``couplings``."""

from __future__ import annotations

from dataclasses import dataclass

from mace_stream.couplings import spherical_harmonics


def write_harmonics(l_max: int) -> str:
    """Return the functions ``harmonics`` and ``pull_back`` that edge_batch.cuh asks for."""
    tape = _Tape([])
    x, y, z = (_Term(name, tape) for name in "xyz")
    columns = [_operand(column) for column in spherical_harmonics(x, y, z, l_max)]
    forward = [f"  const Real {name} = {a} {op} {b};" for name, op, a, b in tape.lines]
    read = {operand for _, _, *ab in tape.lines for operand in ab}
    stores = [f"  y_lm[{m}] = {column};" for m, column in enumerate(columns)]
    return "\n".join(
        [
            "__device__ __forceinline__ void harmonics(Real x, Real y, Real z,",
            "                                          Real (&y_lm)[DIM_EDGE]) {",
            *forward,
            *stores,
            "}",
            "__device__ __forceinline__ void pull_back(Real x, Real y, Real z, const Real* bar,",
            "                                          Real (&gradient)[3]) {",
            *(line for line, (name, *_) in zip(forward, tape.lines, strict=True) if name in read),
            *_adjoint(tape, columns),
            "  gradient[0] = x_bar; gradient[1] = y_bar; gradient[2] = z_bar;",
            "}",
            "",
        ]
    )


@dataclass
class _Tape:
    """Lines ``name = a op b``, in the order of evaluation."""

    lines: list[tuple[str, str, str, str]]

    def add(self, op: str, a: str, b: str) -> str:
        """Write a line, unless it is there already, and return the name of its result."""
        for name, *rest in self.lines:
            if rest == [op, a, b]:
                return name
        name = f"v{len(self.lines)}"
        self.lines.append((name, op, a, b))
        return name


@dataclass
class _Term:
    """A value of the program being written. Products with 0 and 1 and sums with 0 vanish."""

    name: str
    tape: _Tape

    def __mul__(self, other: _Term | float) -> _Term | float:
        if other in (0, 1):
            return self if other else 0.0
        return _Term(self.tape.add("*", self.name, _operand(other)), self.tape)

    def __add__(self, other: _Term | float) -> _Term:
        return (
            self if other == 0 else _Term(self.tape.add("+", self.name, _operand(other)), self.tape)
        )

    def __sub__(self, other: _Term | float) -> _Term:
        return (
            self if other == 0 else _Term(self.tape.add("-", self.name, _operand(other)), self.tape)
        )

    def __truediv__(self, other: float) -> _Term | float:
        return self * (1 / other)

    __rmul__ = __mul__
    __radd__ = __add__


def _operand(value: _Term | float) -> str:
    return value.name if isinstance(value, _Term) else f"Real({value!r})"


def _adjoint(tape: _Tape, columns: list[str]) -> list[str]:
    """Lines that accumulate the cotangents of all values, last value first."""
    names = ["x", "y", "z", *(name for name, *_ in tape.lines)]
    lines = [f"  Real {name}_bar = 0;" for name in names]
    for m, column in enumerate(columns):
        if column in names and m > 0:
            lines.append(f"  {column}_bar += bar[{m}];")
    for name, op, a, b in reversed(tape.lines):
        bar = f"{name}_bar"
        if a in names:
            lines.append(f"  {a}_bar += {bar + ' * ' + b if op == '*' else bar};")
        if b in names:
            sign = "-" if op == "-" else "+"
            lines.append(f"  {b}_bar {sign}= {bar + ' * ' + a if op == '*' else bar};")
    return lines
