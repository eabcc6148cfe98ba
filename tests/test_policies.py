"""Policies say when a chain of deltas ends; they are written as text, and by users."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import Chain, ChainLimit, DeltaPolicy, EveryN, Never, Options, WhilePaying
from orbax_gds.delta import parse_policy
from orbax_gds.errors import Unsupported


def steps(policy: DeltaPolicy, sizes: list[int]) -> str:
    """The steps of a run as letters: f for full, d for delta; `sizes` are those of the deltas."""
    chain, said = None, ""
    for size in sizes:
        if chain is None or policy.is_full(chain):
            chain, said = Chain(n_deltas=0, bytes_full=100), said + "f"
        else:
            deltas = (*chain.bytes_deltas, size)
            chain, said = (
                Chain(n_deltas=len(deltas), bytes_full=100, bytes_deltas=deltas),
                said + "d",
            )
    return said


def test_policies_end_chains_where_they_say():
    sizes = [10] * 7
    assert steps(Never(), sizes) == "fffffff"
    assert steps(EveryN(1), sizes) == "fffffff"
    assert steps(EveryN(3), sizes) == "fddfddf"
    assert steps(ChainLimit(0), sizes) == "fffffff"
    assert steps(ChainLimit(3), sizes) == "fdddfdd"
    assert steps(WhilePaying(limit=2), sizes) == "fddfddf"


def test_deltas_end_when_they_stop_paying_and_are_tried_again():
    assert steps(WhilePaying(0.5), [0, 50, 51, 10, 20, 60, 10, 20]) == "fddfddfd"


@given(n=st.integers(0, 20))
def test_a_limit_of_a_chain_is_a_period_said_otherwise(n):
    sizes = [1] * 25
    assert steps(ChainLimit(n), sizes) == steps(EveryN(n + 1), sizes)


@pytest.mark.parametrize(
    "policy", [Never(), EveryN(8), ChainLimit(0), WhilePaying(), WhilePaying(0.25, 3)]
)
def test_a_policy_is_its_text(policy):
    assert parse_policy(repr(policy)) == policy
    assert Options(delta=repr(policy)) == Options(delta=policy)
    assert Options.from_environment({"ORBAX_GDS_DELTA": f" {policy!r} "}).delta == policy
    assert Options(delta=policy).as_json()["delta"] == repr(policy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "EveryN",
        "EveryN(0)",
        "EveryN(8.0)",
        "EveryN(True)",
        "EveryN(n=8)",
        "EveryN(2, 3)",
        "EveryN(8",
        "EveryN(8) or 1",
        "EveryN(open('x'))",
        "Sometimes()",
        "WhilePaying(0)",
        "WhilePaying(2.0)",
        "WhilePaying('a')",
        "WhilePaying(0.5, -1)",
        "ChainLimit(-1)",
        "Never(1)",
    ],
)
def test_texts_that_name_no_policy_are_refused(text):
    with pytest.raises(Unsupported, match=r"policy|possible"):
        Options(delta=text)


def test_names_without_arguments_are_policies_where_none_are_needed():
    assert Options(delta="Never") == Options()
    assert Options(delta="WhilePaying").delta == WhilePaying()


def test_any_object_with_the_method_is_a_policy_and_recorded_by_its_repr():
    class Mine:
        def is_full(self, chain: ogds.Chain) -> bool:
            return sum(chain.bytes_deltas) > chain.bytes_full

        def __repr__(self) -> str:
            return "Mine \ud800"

    options = Options(delta=Mine())
    assert options.as_json()["delta"] == "Mine \\ud800"
    assert steps(options.delta_policy, [60] * 6) == "fddfdd"
    with pytest.raises(Unsupported, match="delta"):
        Options(delta=Mine)  # pyright: ignore[reportArgumentType]


def test_a_policy_that_does_not_show_itself_is_recorded_by_its_class():
    class Mine:
        def is_full(self, chain: ogds.Chain) -> bool:
            return True

    class Own(DeltaPolicy):
        def is_full(self, chain: ogds.Chain) -> bool:
            return True

    for kind in (Mine, Own):
        recorded = Options(delta=kind()).as_json()["delta"]
        assert recorded == f"{__name__}.{kind.__qualname__}"
