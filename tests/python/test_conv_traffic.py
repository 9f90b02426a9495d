"""What each way of doing a pass moves, and what follows from it."""

import pytest
from conv_torch_support import derivatives, largest_gap, problem

from mace_stream.couplings import ConvPlan
from mace_stream.torch import ops

UVU = [(0, 0, 0, "uvu", True)]


def test_traffic_is_counted():
    """By hand: one path, one row in, three harmonics, three rows out, four channels."""
    plan = ConvPlan.from_irreps("4x0e", "1o", "4x1o", UVU)
    forward, first, second = plan.traffic
    assert forward.by_receiver == 4 + 4 + 3
    assert first.by_receiver == (4 + 4 + 3) + (4 + 3) + 2 * 4
    assert first.by_sender == (4 + 4 + 3) + (4 + 3) + (4 + 3 + 12)
    assert second.by_receiver == 2 * (4 + 4 + 3) + (4 + 3) + 2 * 4
    assert second.by_sender == 2 * (4 + 4 + 3) + (4 + 3) + 2 * (4 + 3 + 12)
    assert not plan.sender_owned
    text = plan.describe("float64")
    assert f"{8 * first.by_sender}" in text
    assert "mode streaming: every path keeps its channels" in text


def test_wide_inputs_with_few_outputs_are_owned_by_the_sender():
    wide = ConvPlan.from_irreps("32x4e", "4e", "32x0e", UVU)
    assert wide.sender_owned
    assert wide.sender_owned_second
    assert "by sender: fewest bytes" in wide.describe()
    between = ConvPlan.from_irreps("32x2e", "2e", "32x1e+32x0e", [*UVU, (0, 0, 1, "uvu", True)])
    assert between.sender_owned
    assert not between.sender_owned_second


def test_describe_says_why_streaming_cannot_serve():
    many = ConvPlan.from_irreps("4x0e", "33x0e", "4x0e", UVU)
    assert "mode standard: the harmonics have 33 components" in many.describe()
    with pytest.raises(ValueError, match="dtype: expected one of float32, float64"):
        ConvPlan.from_irreps("4x0e", "0e", "4x0e", UVU).describe("float16")


@pytest.mark.gpu
def test_sender_owned_passes_are_those_of_other_plans():
    """The plan itself decides here, once for the first derivative and once for both."""
    for outputs, paths in (("32x0e", UVU), ("32x1e+32x0e", [*UVU, (0, 0, 1, "uvu", True)])):
        plan = ConvPlan.from_irreps("32x2e", "2e", outputs, paths)
        assert plan.sender_owned
        given = problem(plan, (5, 0, 40), "cuda")
        actual = derivatives(given.conv, given.leaves())
        assert largest_gap(actual, derivatives(given.plain, given.leaves())) < 1e-12


def test_the_plan_decides_who_owns_node_cotangents(monkeypatch):
    asked = []
    decide = ops._Call.needs_senders

    def needs_senders(self, preferred):
        asked.append(preferred)
        return decide(self, preferred)

    monkeypatch.setattr(ops._Call, "needs_senders", needs_senders)
    first_only = ConvPlan.from_irreps("32x2e", "2e", "32x1e+32x0e", [*UVU, (0, 0, 1, "uvu", True)])
    for plan, expected in (
        (ConvPlan.from_irreps("32x2e", "2e", "32x0e", UVU), [True, True]),
        (first_only, [True, False]),
        (ConvPlan.from_irreps("32x0e", "2e", "32x2e", UVU), [False, False]),
    ):
        asked.clear()
        given = problem(plan)
        derivatives(given.conv, given.leaves())
        assert asked == expected
