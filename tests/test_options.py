"""Options are checked where they are made, and the environment may change the defaults."""

import pytest

from orbax_gds import Options
from orbax_gds.errors import Unsupported
from orbax_gds.options import parse_size


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("4MiB", 4 << 20), ("1.5 GiB", 3 << 29), ("512", 512), (7, 7), (" 2KiB ", 2048), ("9B", 9)],
)
def test_sizes_are_bytes_or_iec_text(text, n_bytes):
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["4MB", "MiB", "-1", "1e3", "", None, 1.5, True])
def test_other_sizes_are_refused(text):
    with pytest.raises(Unsupported, match="IEC"):
        parse_size(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"codec": "zip"},
        {"driver": "nfs"},
        {"chunk_bytes": 4095},
        {"chunk_bytes": "65MiB"},
        {"staging_bytes": 0},
        {"io_rate": "1KiB"},
        {"workers": 0},
        {"workers": True},
        {"workers": "2"},
        {"delta": 8},
        {"delta": None},
    ],
)
def test_impossible_options_are_refused_by_name(fields):
    with pytest.raises(Unsupported, match=next(iter(fields))):
        Options(**fields)


def test_environment_changes_the_defaults():
    environment = {"ORBAX_GDS_CODEC": "off", "ORBAX_GDS_CHUNK_BYTES": "64KiB"}
    environment |= {"ORBAX_GDS_WORKERS": "3", "ORBAX_GDS_ISA": "scalar", "HOME": "/"}
    options = Options.from_environment(environment)
    assert options == Options(codec="off", chunk_bytes=65536, workers=3)
    assert Options.from_environment({}) == Options()


@pytest.mark.parametrize(("text", "derive"), [("1", True), ("False", False), ("off", False)])
def test_the_environment_turns_derived_shards_on_and_off(text, derive):
    assert Options.from_environment({"ORBAX_GDS_DERIVE": text}).derive is derive
    with pytest.raises(Unsupported, match="derive='perhaps'"):
        Options.from_environment({"ORBAX_GDS_DERIVE": "perhaps"})


@pytest.mark.parametrize("codec", ["auto", "fast", "max", "off"])
def test_every_codec_is_an_option_and_an_environment_variable(codec):
    assert Options(codec=codec) == Options.from_environment({"ORBAX_GDS_CODEC": codec})
    assert Options(codec=codec).as_json()["codec"] == codec


@pytest.mark.parametrize("text", ["many", "1.5", "0"])
def test_a_bad_environment_is_refused_by_name(text):
    with pytest.raises(Unsupported, match="workers"):
        Options.from_environment({"ORBAX_GDS_WORKERS": text})


def test_resolved_options_are_json():
    assert Options(workers=2).as_json() == {
        "codec": "auto",
        "driver": "auto",
        "chunk_bytes": 1 << 20,
        "staging_bytes": None,
        "io_rate": None,
        "workers": 2,
        "derive": True,
        "delta": "Never()",
    }
