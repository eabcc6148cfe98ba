"""The laws every codec obeys, as a class to subclass in a test."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbax_gds.codecs import CODECS, Codec
from orbax_gds.dtypes import DTYPES, Dtype
from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.testing import strategies

# One class's tests run once for each codec that subclasses it.
_settings = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.differing_executors]
)


class CodecConformance:
    """Subclass with `codec` set; add nothing else.

    Example:
        >>> class TestRaw(CodecConformance):
        ...     codec = codec_by_name("raw")
    """

    codec: Codec

    def _chunk(self, data: st.DataObject, max_words: int) -> tuple[Dtype, np.ndarray]:
        return data.draw(strategies.chunks(where=self.codec.supports, max_words=max_words))

    @_settings
    @given(data=st.data())
    def test_every_sequence_of_words_round_trips(self, data: st.DataObject) -> None:
        dtype, words = self._chunk(data, 33_000)
        before = words.copy()
        payload = self.codec.encode(words, dtype)
        decoded = self.codec.decode(payload, words.size, dtype)
        assert decoded.dtype == dtype.word_dtype
        np.testing.assert_array_equal(decoded, before)
        np.testing.assert_array_equal(words, before)

    def test_every_famous_word_round_trips_alone(self) -> None:
        for dtype in filter(self.codec.supports, DTYPES):
            for word in strategies.famous_words(dtype):
                words = np.array([word])
                payload = self.codec.encode(words, dtype)
                assert self.codec.decode(payload, 1, dtype) == words, (dtype, word)

    def test_every_16_bit_word_round_trips(self) -> None:
        for dtype in filter(self.codec.supports, DTYPES):
            words = np.arange(1 << min(dtype.bits, 16)).astype(dtype.word_dtype)
            words <<= dtype.word_dtype.type(max(0, dtype.bits - 16))
            payload = self.codec.encode(words, dtype)
            np.testing.assert_array_equal(self.codec.decode(payload, words.size, dtype), words)

    @_settings
    @given(data=st.data())
    def test_bits_that_do_not_count_are_ignored_and_come_back_as_zero(
        self, data: st.DataObject
    ) -> None:
        dtype, words = self._chunk(data, 300)
        above = ~dtype.word_dtype.type((1 << dtype.bits) - 1)
        payload = self.codec.encode(words | above, dtype)
        assert payload == self.codec.encode(words, dtype)
        np.testing.assert_array_equal(self.codec.decode(payload, words.size, dtype), words)

    @_settings
    @given(data=st.data())
    def test_a_payload_is_hardly_longer_than_its_words(self, data: st.DataObject) -> None:
        dtype, words = self._chunk(data, 33_000)
        # Chosen: a byte a word (an escaped exponent of a narrow float) and a table of counts, so
        # that trying a codec needs little more room.
        bound = words.size * (dtype.bits + 8) // 8 + 1024 + 64 * (words.size // 32768)
        assert len(self.codec.encode(words, dtype)) <= bound

    @_settings
    @given(data=st.data())
    def test_coding_is_deterministic(self, data: st.DataObject) -> None:
        dtype, words = self._chunk(data, 2_000)
        assert self.codec.encode(words, dtype) == self.codec.encode(words.copy(), dtype)

    @settings(_settings, max_examples=6)
    @given(data=st.data())
    def test_truncation_at_every_byte_is_refused(self, data: st.DataObject) -> None:
        dtype, words = self._chunk(data, 300)
        payload = self.codec.encode(words, dtype)
        for n_bytes in range(len(payload)):
            with pytest.raises(Corrupt):
                self.codec.decode(payload[:n_bytes], words.size, dtype)

    @_settings
    @given(data=st.data(), surplus=st.binary(min_size=1, max_size=70))
    def test_bytes_after_the_payload_are_refused(self, data: st.DataObject, surplus: bytes) -> None:
        dtype, words = self._chunk(data, 300)
        with pytest.raises(Corrupt):
            self.codec.decode(self.codec.encode(words, dtype) + surplus, words.size, dtype)

    @_settings
    @given(data=st.data())
    def test_a_damaged_payload_gives_words_or_an_error_and_nothing_else(
        self, data: st.DataObject
    ) -> None:
        dtype, words = self._chunk(data, 1_000)
        payload = bytearray(self.codec.encode(words, dtype))
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] ^= data.draw(st.integers(1, 255))
        try:
            decoded = self.codec.decode(bytes(payload), words.size, dtype)
        except Corrupt:
            return
        assert decoded.shape == words.shape
        assert int(decoded.max()) < 1 << dtype.bits

    def test_a_dtype_that_is_not_supported_is_refused(self) -> None:
        for dtype in DTYPES:
            if self.codec.supports(dtype):
                continue
            with pytest.raises(Unsupported, match=dtype.name):
                self.codec.encode(np.ones(3, dtype.word_dtype), dtype)
            with pytest.raises(Unsupported, match=dtype.name):
                self.codec.decode(bytes(64), 3, dtype)

    def test_the_registry_gives_its_id_and_name_to_it_alone(self) -> None:
        same = [c for c in CODECS if c.id == self.codec.id or c.name == self.codec.name]
        assert same == [self.codec]
        assert 0 <= self.codec.id < 256
