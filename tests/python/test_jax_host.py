"""Waiting for what a program of JAX writes from a GPU to the host; a thread stands for the GPU."""

import threading
import time

import numpy as np
import pytest

from mace_stream.jax.inference.host import POLLS, HostArrays


class Result:
    """What JAX says of an array while a program runs, and how often it was asked."""

    def __init__(self):
        self.done, self.error, self.asked = threading.Event(), None, 0

    def is_ready(self):
        self.asked += 1
        return self.done.is_set()

    def block_until_ready(self):
        assert self.done.wait(60)
        if self.error:
            raise self.error


@pytest.fixture
def host():
    arrays = HostArrays(np.zeros((1, 3)), np.zeros(2), np.full(1, 7.0))
    arrays.give(np.ones((1, 3)))
    return arrays


def after(seconds, act):
    threading.Timer(seconds, act).start()


def test_results_are_taken_before_jax_calls_the_program_done(host):
    result = Result()

    def copy():
        host.results[:], host.arrived[0] = (5, 6), 5

    after(0.05, copy)
    host.wait(result)
    assert host.results.tolist() == [5, 6]
    assert not result.done.is_set()


def test_results_of_the_step_before_are_not_taken_for_new_ones(host):
    host.arrived[0] = 3
    host.give(np.ones((1, 3)))
    start = time.perf_counter()
    after(0.1, lambda: host.arrived.fill(0))
    host.wait(Result())
    assert time.perf_counter() - start > 0.09


def test_a_program_that_fails_is_not_waited_for_for_ever(host):
    result = Result()
    result.error = RuntimeError("the device has run away")
    after(0.05, result.done.set)
    with pytest.raises(RuntimeError, match="run away"):
        host.wait(result)


def test_jax_is_asked_rarely(host):
    """It keeps an object of every question until the program is done, and then tidies up."""
    looks = 0

    class Arrived(np.ndarray):
        def __getitem__(self, key):
            nonlocal looks
            looks += 1
            return 4.0 if looks == 10 * POLLS else super().__getitem__(key)

    result = Result()
    host._replace(arrived=host.arrived.view(Arrived)).wait(result)
    assert (looks, result.asked) == (10 * POLLS, 9)
    assert POLLS > 1000
