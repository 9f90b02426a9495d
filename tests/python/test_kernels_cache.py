"""The folder of compiled kernels: what is found again, what is not, and what may go wrong."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from mace_stream.kernels import nvrtc
from mace_stream.kernels.nvrtc import CompileError, cache_directory, compile_program

pytest.importorskip("cuda.bindings.nvrtc", reason="needs NVRTC: pip install 'mace-stream[test]'")

SOURCE = "template <int N> __global__ void fill(int* x) { x[threadIdx.x] = N; }"
INSTANCES = ["fill<1>", "fill<2>"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MACE_STREAM_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compiled(source=SOURCE, instances=INSTANCES, arch="sm_90"):
    return compile_program(source, instances, arch)


def test_the_second_time_comes_from_disk(folder):
    first, second = compiled(), compiled()
    assert first.seconds > 0
    assert second.seconds == 0
    assert (first.cubin, first.names) == (second.cubin, second.names)
    assert len(list(folder.iterdir())) == 1


def test_whatever_goes_in_changes_the_key(folder, monkeypatch):
    compiled()
    assert compiled(source=SOURCE + "\n").seconds > 0
    assert compiled(instances=INSTANCES[:1]).seconds > 0
    assert compiled(arch="sm_80").seconds > 0
    headers = dict(nvrtc.cuda_sources())
    name = next(iter(headers))
    monkeypatch.setattr(nvrtc, "cuda_sources", lambda: headers | {name: headers[name] + "\n"})
    assert compiled().seconds > 0
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, b"--fmad=false"))
    assert compiled().seconds > 0
    assert len(list(folder.iterdir())) == 6


def test_another_compiler_changes_the_key():
    arguments = SOURCE, INSTANCES, "sm_90", {}
    assert nvrtc._key(*arguments, (12, 8)) != nvrtc._key(*arguments, (13, 0))


def cut(content):
    return content[: len(content) // 2]


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


DAMAGE = {
    "cut": cut,
    "flipped bit": flip,
    "empty": lambda _: b"",
    "no header": lambda content: content.split(b"\n", 1)[1],
    "list": lambda _: b"[]\nabc",
    "no names": lambda content: json.dumps({"sha256": ""}).encode() + b"\nabc",
    "text": lambda _: b"not a program\n",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_compiled_again(damage, folder):
    first = compiled()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = compiled()
    assert again.seconds > 0
    assert again.cubin == first.cubin
    assert file.read_bytes() == whole
    assert compiled().seconds == 0


def compile_when_told(folder, start, results):
    os.environ["MACE_STREAM_CACHE"] = str(folder)
    start.wait()
    program = compiled()
    results.put((program.cubin, program.names))


def test_two_processes_at_once(folder):
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=compile_when_told, args=(folder, start, results)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert found[0] == found[1]
    assert compiled().seconds == 0
    assert len(list(folder.iterdir())) == 1  # nothing temporary is left


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("MACE_STREAM_CACHE", str(tmp_path / "chosen"))
    assert cache_directory() == tmp_path / "chosen"
    monkeypatch.delenv("MACE_STREAM_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "mace-stream" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "mace-stream" / "kernels"


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, monkeypatch, capsys):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("MACE_STREAM_CACHE", str(in_the_way / "kernels"))
    assert compiled().seconds > 0
    assert compiled().cubin.startswith(b"\x7fELF")
    told = capsys.readouterr().err
    assert told.count("cannot be kept in") == 1
    assert "set MACE_STREAM_CACHE" in told


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_serves_what_it_holds(folder, capsys):
    compiled()
    folder.chmod(0o500)
    assert compiled().seconds == 0
    assert compiled(arch="sm_80").seconds > 0
    assert "cannot be kept in" in capsys.readouterr().err
    folder.chmod(0o700)


def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch, capsys):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert compiled().seconds > 0
    assert "No space left" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CompileError, match="pip install cuda-bindings nvidia-cuda-nvrtc"):
        compiled()
