"""Rows between ranks: one process plays the others, by every route of a CPU and a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from mace_stream.halo import Halo
from mace_stream.torch import ranks
from mace_stream.torch.inference.exchange import FeatureExchange
from mace_stream.torch.inference.runs import GraphedRun, Stage, merged
from mace_stream.torch.ranks import (
    Compared,
    Direct,
    GhostFeatures,
    OnHost,
    RankRows,
    ThroughHost,
    choose_route,
)

N_NODES, PADDED, CHANNELS, DIM = 6, 8, 3, 4
SENT = np.array([1, 4, 5, 0, 4], dtype=np.int32)  # node 4 goes to both peers
COUNTS = np.array([3, 2], dtype=np.int64)


class Mirror:
    """Other ranks that own copies of this rank's sent nodes, in the same order."""

    def __init__(self) -> None:
        self.started: list[tuple[int, bool]] = []
        self.compares = True

    def start(self, out: int, into: int, row_bytes: int, home: bool) -> None:
        self.started.append((out, home))
        self._job = (out, into, row_bytes * len(SENT))

    def finish(self) -> None:
        out, into, size = self._job
        ctypes.memmove(into, out, size)

    def halo(self, gpu_aware: bool = False) -> Halo:
        return Halo(
            SENT, COUNTS, len(SENT), self.start, self.finish, lambda: self.compares, gpu_aware
        )


class DelayedCopies:
    """Copies that arrive only when they are waited for."""

    def to_host(self, rows: torch.Tensor) -> torch.Tensor:
        self._rows, self._host = rows, torch.full_like(rows, torch.nan)
        return self._host

    def wait(self) -> None:
        self._host.copy_(self._rows)

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.clone()


def pageable(empty: Callable) -> Callable:
    """The same without page-locked memory, which needs a GPU."""

    def made(*shape: int, pin_memory: bool = False, **options: object) -> torch.Tensor:
        del pin_memory
        return empty(*shape, **options)

    return made


class FakeEvent:
    """Tells when it is recorded and waited for."""

    calls: ClassVar[list[str]] = []

    def record(self, stream: object) -> None:
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@pytest.fixture
def no_gpu(monkeypatch) -> None:
    """What the routes of a GPU ask of torch."""
    monkeypatch.setattr(FakeEvent, "calls", [])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(ranks.torch, "empty", pageable(torch.empty))


CPU = torch.device("cpu")
ROUTES = {
    "cpu": OnHost,
    "delayed": lambda halo: ThroughHost(halo, DelayedCopies()),
    "direct": lambda halo: Direct(halo, CPU),
    "compared": lambda halo: Compared(halo, Direct(halo, CPU), ThroughHost(halo, DelayedCopies())),
}


@pytest.fixture(params=ROUTES)
def rows(request, no_gpu) -> RankRows:
    """On a CPU, or with the order of calls of a GPU."""
    halo = Mirror().halo()
    made = RankRows(halo, CPU)
    made._route = ROUTES[request.param](halo)
    return made


def test_peers_have_rows_of_their_own(rows):
    assert [SENT[peer].tolist() for peer in rows.peers] == [[1, 4, 5], [0, 4]]


def test_ghost_features_and_their_gradient(rows):
    features = torch.randn(N_NODES, DIM, CHANNELS, dtype=torch.float64, requires_grad=True)
    out = GhostFeatures(rows).forward(features)
    assert torch.equal(out, torch.cat([features, features[SENT]]))
    bar = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, features, bar)
    expected = bar[:N_NODES].index_add(0, torch.tensor(SENT), bar[N_NODES:])
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-15)


@pytest.fixture
def exchange(rows) -> FeatureExchange:
    """Over arrays with padding, nodes in another order, and room for more nodes of others."""
    n_senders = PADDED + len(SENT) + 2
    place = torch.tensor([6, 0, 2, 3, 7, 1, *range(PADDED, PADDED + len(SENT))])
    up, up_bar = torch.randn(2, DIM, n_senders, CHANNELS, dtype=torch.float64)
    made = FeatureExchange(rows, up, up_bar, place, PADDED)
    made.arrays = up, up_bar, place[torch.tensor(SENT)]
    return made


def test_features_arrive_behind_the_own_ones(exchange):
    up, _, sent = exchange.arrays
    before = up.clone()
    exchange.send()
    exchange.receive()
    assert torch.equal(up[:, PADDED : PADDED + len(SENT)], before[:, sent])
    assert torch.equal(up[:, :PADDED], before[:, :PADDED])
    assert torch.equal(up[:, PADDED + len(SENT) :], before[:, PADDED + len(SENT) :])


def test_cotangents_are_added_at_home(exchange):
    _, up_bar, sent = exchange.arrays
    before = up_bar.clone()
    exchange.send_home()
    exchange.receive_home()
    expected = before.index_add(1, sent, before[:, PADDED : PADDED + len(SENT)])
    torch.testing.assert_close(up_bar, expected, rtol=0, atol=1e-15)
    assert not torch.equal(up_bar, before)


def test_nothing_to_exchange_is_fine():
    nothing = Halo(SENT[:0], COUNTS[:0], 0, lambda *_: None, lambda: None)
    empty = RankRows(nothing, torch.device("cpu"))
    up, up_bar = torch.randn(2, DIM, PADDED, CHANNELS)
    before = up.clone(), up_bar.clone()
    exchange = FeatureExchange(empty, up, up_bar, torch.arange(N_NODES), PADDED)
    for step in (exchange.send, exchange.receive, exchange.send_home, exchange.receive_home):
        step()
    assert torch.equal(up, before[0])
    assert torch.equal(up_bar, before[1])


# ---- straight from the memory of a device ----


def two_ways(mirror: Mirror) -> RankRows:
    halo = mirror.halo(gpu_aware=True)
    made = RankRows(halo, CPU)
    made._route = ROUTES["compared"](halo)
    return made


@pytest.mark.parametrize(
    ("device", "gpu_aware", "route"),
    [("cpu", False, OnHost), ("cuda:0", False, ThroughHost), ("cuda:0", True, Compared)],
)
def test_the_route_is_what_is_asked_for(no_gpu, device, gpu_aware, route):
    chosen = choose_route(Mirror().halo(gpu_aware), torch.device(device))
    assert type(chosen) is route
    if gpu_aware:
        assert (type(chosen._route), type(chosen._other)) == (Direct, ThroughHost)


def test_the_rows_themselves_go_and_only_once_they_are_there(no_gpu):
    mirror = Mirror()
    route = Direct(mirror.halo(), CPU)
    rows = torch.randn(len(SENT), 3)
    route.start(rows, len(SENT), False)
    assert FakeEvent.calls == ["record"]
    assert mirror.started == []
    assert torch.equal(route.finish(), rows)
    assert FakeEvent.calls == ["record", "synchronize"]
    assert mirror.started == [(rows.data_ptr(), False)]


def test_rows_that_do_not_come_are_no_numbers(no_gpu, monkeypatch):
    halo = Halo(SENT, COUNTS, len(SENT), lambda *_: None, lambda: None)
    route = Direct(halo, CPU, torch.ones)
    filled = []  # before MPI may write
    monkeypatch.setattr(FakeEvent, "record", lambda *_: filled.append(route._in.isnan().all()))
    route.start(torch.ones(len(SENT), 3, dtype=torch.float64), len(SENT), False)
    assert route.finish().isnan().all()
    assert filled == [True]


def test_both_ways_are_gone_while_the_halo_asks_for_it(no_gpu):
    mirror = Mirror()
    rows = two_ways(mirror)
    sent = torch.randn(len(SENT), 3)
    sent[1] = torch.nan  # the same bits, though not equal
    for compares, n_exchanges in ((True, 2), (False, 1)):
        mirror.compares, mirror.started = compares, []
        for home, send in ((False, rows.forward), (True, rows.reverse)):
            assert torch.equal(send(sent).view(torch.int32), sent.view(torch.int32))
            assert [way for _, way in mirror.started].count(home) == n_exchanges


def lose_all(into: int, size: int) -> None:
    """What lay there stays there."""
    ctypes.memset(into, 255, size)


def flip_a_bit(into: int, size: int) -> None:
    word = (ctypes.c_uint8 * size).from_address(into)
    word[size - 4] ^= 1


def shift(into: int, size: int) -> None:
    ctypes.memmove(into + 4, into, size - 4)


@pytest.mark.parametrize(("spoil", "n_wrong"), [(lose_all, 5), (flip_a_bit, 1), (shift, 5)])
@pytest.mark.parametrize("home", [False, True])
def test_a_planted_wrong_direct_way_is_found(no_gpu, spoil, n_wrong, home):
    mirror = Mirror()
    rows = two_ways(mirror)
    right = mirror.finish

    def wrong() -> None:
        right()
        if len(mirror.started) == 1:
            spoil(mirror._job[1], mirror._job[2])

    rows._route._route._halo = replace(mirror.halo(), finish=wrong)
    rows.start(torch.randn(len(SENT), 3), home=home)
    with pytest.raises(ValueError, match=rf"correctly: {n_wrong} of 5 rows .* leave gpu_aware out"):
        rows.finish()


# ---- stages ----


def test_fixed_stages_are_joined_between_exchanges():
    done = []
    stages = [
        Stage(lambda k=k: done.append(k), is_fixed=fixed)
        for k, fixed in enumerate([True, True, False, False, True])
    ]
    joined = merged(stages)
    assert [stage.is_fixed for stage in joined] == [True, False, False, True]
    for stage in joined:
        stage.run()
    assert done == [0, 1, 2, 3, 4]


class FakeGraph:
    """Remembers what was called while it was captured, and does that when it is replayed."""

    recording: list | None = None

    def replay(self) -> None:
        for action in self.actions:
            action()


def test_stages_are_captured_once_and_replayed_between_exchanges(monkeypatch):
    done: list[str] = []

    class Capture:
        def __init__(self, graph: FakeGraph, pool: object) -> None:
            self.graph = graph

        def __enter__(self) -> None:
            FakeGraph.recording = self.graph.actions = []

        def __exit__(self, *_: object) -> None:
            FakeGraph.recording = None

    def kernel(name: str) -> None:
        def action() -> None:
            done.append(name)

        (action() if FakeGraph.recording is None else FakeGraph.recording.append(action))

    fakes = {"CUDAGraph": FakeGraph, "graph": Capture, "synchronize": lambda device: None}
    fakes |= {
        "graph_pool_handle": lambda: None,
        "device": lambda device: Capture(FakeGraph(), None),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    stages = [
        Stage(lambda: kernel("a"), is_fixed=True),
        Stage(lambda: done.append("exchange")),
        Stage(lambda: kernel("b"), is_fixed=True),
    ]
    run = GraphedRun(torch.device("cuda:0"))
    for _ in range(3):
        run(stages)
    assert done == ["a", "exchange", "b"] * 3
    assert run.n_captures == 1
    run.forget()
    run(stages)
    run(stages)
    assert done == ["a", "exchange", "b"] * 5
    assert run.n_captures == 2
