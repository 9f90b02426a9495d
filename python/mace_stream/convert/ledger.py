"""Book-keeping of what has been read from a source model, so that nothing is dropped silently.

Every module, parameter, buffer and attribute has to be asked for by name. What was never asked
for is listed at the end and the conversion is refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module())) | {
    "_backward_pre_hooks", "_compiled_call_impl", "_is_full_backward_hook",
    "_load_state_dict_post_hooks", "_state_dict_pre_hooks", "call_super_init",
}  # fmt: skip
_MISSING = object()


class ConversionError(ValueError):
    """A model cannot be converted. The message is complete: what, why, what to do."""


def qualified_name(obj: object) -> str:
    """Module and name of an object's class: the identity that decides what it means."""
    cls = type(obj)
    return f"{cls.__module__}.{cls.__qualname__}"


class Ledger:
    """All modules of a source model, with what was read of each."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.problems: list[str] = []
        self._seen: dict[str, set[str]] = {}
        self._opaque: set[str] = set()
        self.root = Node(self, model, "")

    def refuse_unknown_classes(self, known: frozenset[str], reasons: dict[str, str]) -> None:
        """Raise with every class of the model that is not in ``known``, and why if told."""
        counts = Counter(qualified_name(m) for m in self.root.module.modules())
        unknown = [
            f"{name} ({count}x{', ' + reasons[name] if name in reasons else ''})"
            for name, count in counts.items()
            if name not in known
        ]
        if unknown:
            raise ConversionError(_refusal("it has classes that are not supported", unknown))

    def visit(self, path: str) -> set[str]:
        """Mark a module as visited and return the names read from it so far."""
        return self._seen.setdefault(path, set())

    def skip_below(self, path: str) -> None:
        """Accept a module without parameters, with all below it, as known code."""
        self._opaque.add(path)

    def check_nothing_left(self) -> None:
        """Raise with every problem noted and every item that was not read."""
        left = self.problems + self._leftovers(self.root.module, "")
        if left:
            raise ConversionError(_refusal("these parts of it were not understood", left))

    def _leftovers(self, module: torch.nn.Module, path: str) -> list[str]:
        where = path or "model"
        if path in self._opaque:
            return []
        if path not in self._seen:
            return [f"module {where} ({qualified_name(module)})"]
        seen = self._seen[path]
        left = [f"{what} {where}.{name}" for name, what in _contents(module) if name not in seen]
        for name, child in module._modules.items():
            if child is not None:
                left += self._leftovers(child, f"{path}.{name}" if path else name)
        return left


class Node:
    """One module of the source model; everything read through it is noted in the ledger."""

    def __init__(self, ledger: Ledger, module: torch.nn.Module, path: str) -> None:
        self.ledger, self.module, self.path = ledger, module, path
        self._seen = ledger.visit(path)

    @property
    def kind(self) -> str:
        """Qualified name of the module's class."""
        return qualified_name(self.module)

    def has(self, name: str) -> bool:
        """Whether there is a child module of this name."""
        return self.module._modules.get(name) is not None

    def child(self, name: str, *kinds: str) -> Node:
        """The child module, which must be of one of these classes (any known one if empty)."""
        module = self.module._modules.get(name)
        if module is None:
            raise self.error(f"has no module {name}, which every supported model has")
        node = Node(self.ledger, module, f"{self.path}.{name}" if self.path else name)
        if kinds and node.kind not in kinds:
            raise node.error(f"expected {' or '.join(kinds)}, got {node.kind}")
        return node

    def children(self, name: str) -> list[Node]:
        """The members of a module list."""
        parent = self.child(name, "torch.nn.modules.container.ModuleList")
        return [parent.child(key) for key in parent.module._modules]

    def tensor(self, name: str) -> np.ndarray:
        """A parameter or buffer as an array of its own dtype."""
        self._seen.add(name)
        tensor = self.module._parameters.get(name)
        if tensor is None:
            tensor = self.module._buffers.get(name)
        if tensor is None:
            raise self.error(f"has no parameter or buffer {name}")
        array = tensor.detach().cpu().numpy()
        if not np.isfinite(array).all():
            raise self.error(f"{name} has numbers that are not finite: the model is broken")
        return array

    def derived(self, *names: str) -> None:
        """Note parameters, buffers or attributes that follow from others."""
        self._seen.update(names)

    def derived_if_none(self, name: str) -> None:
        """Note an attribute that is None; any other value stays a leftover."""
        if vars(self.module).get(name) is None:
            self._seen.add(name)

    def derived_empty(self, name: str) -> None:
        """Note a parameter or buffer if it holds no number; else it stays a leftover."""
        for group in (self.module._parameters, self.module._buffers):
            tensor = group.get(name)
            if tensor is not None and tensor.numel() == 0:
                self._seen.add(name)

    def code(self, *names: str) -> None:
        """Note child modules that are compiled code without parameters, if they are there."""
        for name in names:
            if self.has(name):
                child = self.child(name)
                if any(True for _ in child.module.parameters()):
                    raise child.error("compiled code with parameters of its own is not supported")
                self.ledger.skip_below(child.path)

    def attribute(self, name: str, default: Any = _MISSING) -> Any:
        """A plain attribute; ``default`` is what files without it mean."""
        self._seen.add(name)
        value = vars(self.module).get(name, default)
        if value is _MISSING:
            raise self.error(f"has no attribute {name}")
        return value

    def require(self, name: str, expected: Any, default: Any, why: str) -> None:
        """Note a problem unless the attribute has the one value that is supported."""
        value = self.attribute(name, default)
        if value != expected:
            where = self.path or "model"
            self.ledger.problems.append(f"attribute {where}.{name} = {value!r} ({why})")

    def error(self, text: str) -> ConversionError:
        """A refusal that names this module."""
        problems = [f"{self.path or 'model'} ({self.kind}): {text}", *self.ledger.problems]
        return ConversionError(_refusal("this part of it was not understood", problems))


def _contents(module: torch.nn.Module) -> list[tuple[str, str]]:
    """Name and sort of everything a module holds except child modules."""
    items = [(name, "parameter") for name, p in module._parameters.items() if p is not None]
    items += [(name, "buffer") for name, b in module._buffers.items() if b is not None]
    for name, value in vars(module).items():
        if name not in _MODULE_ATTRIBUTES:
            items.append((name, "attribute"))
        elif name.endswith("hooks") and value:
            items.append((name, "hook"))
    return items


def _refusal(why: str, items: list[str]) -> str:
    listed = "; ".join(items)
    return (
        f"the model cannot be converted, because {why}: {listed}. Nothing was written: a part left "
        "out would change energies silently. Use a model without these parts, or ask for support"
    )
