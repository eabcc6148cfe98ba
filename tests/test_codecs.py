"""Every codec obeys the laws of its conformance class."""

from orbax_gds.codecs.ans import Ans
from orbax_gds.codecs.huffman import Huffman
from orbax_gds.codecs.ladder import Ladder
from orbax_gds.codecs.modelled import Modelled
from orbax_gds.codecs.raw import Raw
from orbax_gds.codecs.zstd import Zstd
from orbax_gds.testing import CodecConformance


class TestRaw(CodecConformance):
    codec = Raw()


class TestLadder(CodecConformance):
    codec = Ladder()


class TestModelled(CodecConformance):
    codec = Modelled()


class TestAns(CodecConformance):
    codec = Ans()


class TestHuffman(CodecConformance):
    codec = Huffman()


class TestZstd(CodecConformance):
    codec = Zstd()
