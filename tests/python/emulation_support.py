"""The sources of CUDA kernels, compiled for a CPU and run by ``emulated_cuda.h``."""

import ctypes
import hashlib
import os
import subprocess
from functools import partial
from pathlib import Path

from mace_stream.kernels.core import cuda_sources

HEADER = Path(__file__).with_name("emulated_cuda.h")
COMPILER = os.environ.get("CXX", "g++")
OPTIONS = ["-std=c++20", "-O1", "-march=native", "-w", "-fPIC", "-shared"]
LAUNCHER = """\
extern "C" int launch_{number}(unsigned x, unsigned y, unsigned threads, void** arguments) {{
  return emulation::run({instance}, x, y, threads, arguments);
}}
"""


def _digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Program:
    """A program that is compiled when one of its kernels is first launched."""

    seconds = 0.0

    def __init__(self, folder, text):
        self._stem = folder / _digest(text)
        self._text = text

    def library(self):
        path = self._stem.with_suffix(".so")
        if not path.exists():
            source = self._stem.with_suffix(".cpp")
            source.write_text(self._text)
            command = [COMPILER, *OPTIONS, f"-I{source.parent}", str(source), "-o", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:  # no AssertionError: those are what planted mistakes lead to
                raise RuntimeError(done.stderr[:4000])
        return ctypes.CDLL(str(path))


class Compiler:
    """Makes programs in a folder.

    ``plant`` is a file of csrc/cuda, a text in it, and what stands there instead.
    """

    def __init__(self, folder, plant=None):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        files = dict(cuda_sources())
        if plant:
            name, honest, wrong = plant
            assert honest in files[name]
            files[name] = files[name].replace(honest, wrong)
        for name, text in files.items():
            (folder / name).write_text(text)

    def __call__(self, source, instances, arch):
        launchers = [
            LAUNCHER.format(number=number, instance=instance)
            for number, instance in enumerate(instances)
        ]
        text = "\n".join([source, *launchers])
        # of its own, as loaded libraries share static variables of templates of one name
        space = "of_" + _digest(str(self.folder) + text)
        return Program(self.folder, f'#include "{HEADER}"\nnamespace {space} {{\n{text}\n}}\n')


def kernels(program, instances):
    """What stands for ``Kernels``: a function for each instance."""

    def call(number, *arguments):
        return program.library()[f"launch_{number}"](*arguments)

    return [partial(call, number) for number in range(len(instances))]


def launch(function, grid, threads, stream, *arguments):
    """Run a kernel; arguments are ctypes structures or addresses."""
    held = [a if isinstance(a, ctypes.Structure) else ctypes.c_void_p(a) for a in arguments]
    pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    assert function(*grid, threads, pointers) == 0, "threads wait for others that never come"
    return (0,)


def clear(array, n_bytes, stream):
    """Fill an array with zeros."""
    if array and n_bytes:
        ctypes.memset(array, 0, n_bytes)


def emulate(monkeypatch, module, folder, plant=None):
    """Let what a module launches run on this CPU."""
    monkeypatch.setattr(module, "compile_program", Compiler(folder, plant))
    monkeypatch.setattr(module, "Kernels", kernels)
    monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(module, "check", lambda answer: answer)
    monkeypatch.setattr(module, "clear", clear, raising=False)
