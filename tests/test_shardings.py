"""Saved shardings that jax refuses are refused as such."""

import jax
import pytest

from orbax_gds import shardings
from orbax_gds.errors import Corrupt
from orbax_gds.manifest import ShardingSpec


@pytest.mark.parametrize("error", [ValueError, TypeError])
@pytest.mark.parametrize("part", ["Mesh", "NamedSharding"])
def test_a_sharding_that_jax_refuses_is_corrupt(monkeypatch, part, error):
    def refuse(*_, **__):
        raise error("no")

    device = jax.devices()[0]
    spec = ShardingSpec(type="NamedSharding", axes=(("x", 1),), devices=(0,), spec=(("x",),))
    assert shardings.sharding_of(spec, {0: device}) is not None
    monkeypatch.setattr(shardings, part, refuse)
    with pytest.raises(Corrupt, match="impossible sharding"):
        shardings.sharding_of(spec, {0: device})
