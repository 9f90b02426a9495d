"""What the programs of JAX launch on a GPU is what torch's pipeline launches; needs no GPU."""

import ctypes
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax_inference_support import Listed, carbide, jax_evaluator, torch_evaluator
from model_support import small_twin, spec_and_tensors

from mace_stream.jax import double_precision
from mace_stream.jax.inference import calls
from mace_stream.jax.inference.host import HostArrays
from mace_stream.kernels import inference_cuda, recording
from mace_stream.kernels.recording import (
    CLEAR,
    COPY,
    FIRST_RESULT,
    LAUNCH,
    MARK,
    CudaNotes,
    flat,
    mark,
)


@pytest.fixture
def launched(monkeypatch):
    """Kernels that nobody compiled, with numbers for names, and a list of what is launched."""
    notes, number = [], itertools.count(1000)

    def start(function, grid, threads, stream, *arguments):
        notes.append((function, grid, threads, [flat(argument) for argument in arguments]))
        return (0,)

    def clear(array, n_bytes, stream):
        notes.append(("clear", n_bytes))

    monkeypatch.setattr(inference_cuda, "compile_program", lambda *_: SimpleNamespace(seconds=0))
    monkeypatch.setattr(inference_cuda, "Kernels", lambda _, names: [next(number) for _ in names])
    monkeypatch.setattr(inference_cuda, "launch", start)
    monkeypatch.setattr(inference_cuda, "check", lambda answer: answer)
    monkeypatch.setattr(inference_cuda, "clear", clear)
    return notes


def passes_of(kind, setup, densities):
    """Passes whose kernels have the same numbers as those of another object."""
    passes = kind(setup, "sm_90", densities, lambda: 0)
    for key, number in zip(passes._loaded, range(0, 100 * len(passes._loaded), 100), strict=True):
        for k in range(len(passes._loaded[key].functions)):
            passes._loaded[key].functions[k] = number + k
    return passes


def split(numbers):
    """Launches and clears of a list of numbers, as the handler reads them."""
    numbers = iter(numbers)
    for kind in numbers:
        if kind == CLEAR:
            yield "clear", next(numbers), next(numbers)
            continue
        assert kind == LAUNCH
        function, x, y, threads, n_arguments = itertools.islice(numbers, 5)
        arguments = [list(itertools.islice(numbers, next(numbers))) for _ in range(n_arguments)]
        yield function, (x, y), threads, arguments


def kind_of(word):
    """A number as it is; an address only as one."""
    return "array" if word & MARK or word > 2**32 else word


def outline(launches):
    """Kernels, grids and all numbers; of arrays that there is one."""
    found = []
    for function, *rest in launches:
        if function == "clear":
            found.append((function, rest[-1]))
        else:
            grid, threads, arguments = rest
            words = tuple(tuple(map(kind_of, words)) for words in arguments)
            found.append((function, tuple(grid), threads, words))
    return found


def of_jax(model, densities, listed, tile):
    """What a program of JAX would launch, in the order in which it is traced."""
    evaluator = jax_evaluator(model, tile=tile)
    evaluator.set_topology(*listed.arrays)
    evaluator.take_list(listed.x)
    passes = passes_of(CudaNotes, evaluator.model.setup, densities)
    evaluator.model = _with_calls(evaluator.model, passes)
    numbers = []

    def run(call, note):
        assert list(note) == ["numbers"]
        numbers.extend(note["numbers"])
        return [jax.numpy.zeros(result.shape, result.dtype) for result in call.results]

    with pytest.MonkeyPatch.context() as patch, double_precision():
        patch.setattr(calls._Call, "run", run)
        arguments = evaluator.model.tree, evaluator._device_list, evaluator._upload(listed.x)
        jax.make_jaxpr(evaluator._without_virials)(*arguments)
    return list(split(numbers))


def _with_calls(model, passes):
    return type(model)(**{**vars(model), "calls": calls.Calls(passes)})


def of_torch(model, densities, listed, tile, launched):
    evaluator = torch_evaluator(model, tile=tile)
    evaluator.set_topology(*listed.arrays)
    evaluator.take_list(listed.x)
    evaluator._pipeline.passes = passes_of(
        inference_cuda.CudaPasses, evaluator.model.setup, densities
    )
    for stage in evaluator._pipeline.stages():
        stage.run()
    return list(launched)


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("MP-0a medium", None),
        ("OMAT-0 medium", 4),
        pytest.param("MH-1", None, marks=pytest.mark.slow),
    ],
)
def test_the_same_kernels_with_the_same_numbers(launched, name, tile):
    model = spec_and_tensors(small_twin(name))
    listed = Listed.of(carbide(), model[0].elements, model[0].r_max)
    densities = tuple(layer.block not in ("R", "RR") for layer in model[0].layers)
    expected = outline(of_torch(model, densities, listed, tile, launched))
    found = outline(of_jax(model, densities, listed, tile))
    assert found == expected
    assert len(found) > 10


def test_a_planted_other_number_is_seen(launched, monkeypatch):
    model = spec_and_tensors(small_twin("MP-0a medium"))
    listed = Listed.of(carbide(), model[0].elements, model[0].r_max)
    expected = outline(of_torch(model, (False, False), listed, None, launched))
    monkeypatch.setattr(recording, "flat", lambda argument: [0 * w for w in flat(argument)])
    assert outline(of_jax(model, (False, False), listed, None)) != expected


class Words(ctypes.Structure):
    """A structure as launches have them."""

    _fields_ = [("n", ctypes.c_int64), ("array", ctypes.c_void_p), ("none", ctypes.c_void_p)]


def test_marks_survive_structures():
    at = mark(FIRST_RESULT + 3, 40)
    assert flat(Words(7, at, 0)) == [7, at, 0]
    assert flat(at) == [at]
    assert at - 40 == mark(FIRST_RESULT + 3, 0)
    assert np.int64(at) > 0


def with_notes(monkeypatch):
    """An evaluator that knows a list and notes launches, and the numbers of every call."""
    model = spec_and_tensors(small_twin("MP-0a medium"))
    listed = Listed.of(carbide(), model[0].elements, model[0].r_max)
    evaluator = jax_evaluator(model)
    evaluator.set_topology(*listed.arrays)
    evaluator.take_list(listed.x)
    passes = passes_of(CudaNotes, evaluator.model.setup, (False, False))
    evaluator.model = _with_calls(evaluator.model, passes)
    noted, run = [], calls._Call.run
    monkeypatch.setattr(
        calls._Call, "run", lambda call, note: noted.append(note["numbers"]) or run(call, note)
    )
    return evaluator, listed.x, noted


def lowered(evaluator, x):
    with double_precision():
        arguments = evaluator.model.tree, evaluator._device_list, evaluator._given(x)
        traced = jax.jit(evaluator._without_virials).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def test_programs_lower_for_a_gpu(launched, monkeypatch):
    """XLA takes the calls with their attributes and aliases; nothing is compiled."""
    evaluator, x, _ = with_notes(monkeypatch)
    text = lowered(evaluator, x)
    assert text.count("@mace_stream_pass") == 18
    assert "output_operand_alias" in text


def test_a_program_fetches_positions_and_leaves_results(launched, monkeypatch):
    evaluator, x, noted = with_notes(monkeypatch)
    n_results = 12 + 3 * len(evaluator._device_list.place)
    host = HostArrays(np.full((len(x) + 5, 3), np.nan), np.zeros(n_results), np.zeros(1))
    evaluator._host = host
    text = lowered(evaluator, x)
    assert np.array_equal(host.positions[: len(x)], x)
    assert text.count("@mace_stream_pass") == 20
    target, source = host.results.ctypes.data, host.positions.ctypes.data
    assert noted[0] == [COPY, mark(FIRST_RESULT, 0), source, 24 * (len(x) + 5)]
    results = [COPY, target, mark(FIRST_RESULT, 0), 8 * n_results]
    arrived = [COPY, host.arrived.ctypes.data, mark(FIRST_RESULT, 0), 8]
    assert noted[-1] == results + arrived, "what says that results are there comes after them"
