"""Every codec obeys the laws of its conformance class."""

from orbax_gds.codecs import codec_by_name
from orbax_gds.testing import CodecConformance


class TestRaw(CodecConformance):
    codec = codec_by_name("raw")


class TestLadder(CodecConformance):
    codec = codec_by_name("ladder")


class TestModelled(CodecConformance):
    codec = codec_by_name("modelled")


class TestAns(CodecConformance):
    codec = codec_by_name("ans")


class TestHuffman(CodecConformance):
    codec = codec_by_name("huffman")


class TestDelta(CodecConformance):
    codec = codec_by_name("delta")


class TestZstd(CodecConformance):
    codec = codec_by_name("zstd")
