"""The native core: frames and checksums of FORMAT §6 and §7, with the GIL released.

Arrays are anything that exports a contiguous buffer; words are unsigned integers as they lie in
memory. Wrong arguments raise ValueError, or TypeError where the type is not the signature's;
memory that would be written while it is read is a wrong argument. What is wrong with stored bytes
is a status, a key of `STATUS`, so that the caller can say where it happened. For codec 4 the calls
run `orbax_gds.codecs.zstd` with the GIL; what that raises, such as MemoryError, they raise.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from typing_extensions import Buffer as _Buffer

# NumPy's stubs give arrays the buffer protocol from Python 3.12 on only.
Buffer: TypeAlias = _Buffer | np.ndarray[Any, Any]

STATUS: dict[int, str]
"""Text of each status; 0 is success."""

def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC32C of the bytes, continuing the CRC32C `value` of those before them."""

def isa() -> str:
    """Return the name of the kernels in use; `ORBAX_GDS_ISA` chooses them at import."""

def isas() -> list[str]:
    """Return the names of the kernels that this machine can run, best first."""

def use_isa(name: str) -> None:
    """Use other kernels from now on; the bytes they write are the same.

    Raises:
        ValueError: This machine cannot run them.
    """

def max_frame_bytes(n_words: int, dtype: int) -> int:
    """Return the most bytes that a frame of so many words takes in `encode_run`.

    Args:
        n_words: Words of the chunk, at least 1.
        dtype: Dtype id of FORMAT §5.
    """

def encode_run(
    buffers: Sequence[Buffer],
    segments: Buffer,
    chunks: Buffer,
    out: Buffer,
    records: Buffer,
    *,
    codec: str,
    align_bytes: int,
    zstd_level: int = 0,
    bases: Sequence[tuple[Buffer, Buffer] | tuple[Buffer, Buffer, int]] = (),
) -> int:
    """Code chunks end to end into `out`.

    Args:
        buffers: Where the words lie.
        segments: uint64 [S, 4]: index of the buffer, byte offset in it, word offset in the chunk,
            number of words. Those of a chunk cover its words in order.
        chunks: uint32 [C, 5]: chunk number, number of words, dtype id, number of segments, and
            the words in a row where the chunk is a matrix whose rows and columns may predict
            exponents, else 0 (`plan.matrix_columns`).
        out: At least the sum of `max_frame_bytes` of the chunks plus `align_bytes` long; apart
            from `buffers` and `records`.
        records: uint8 [C, 32], filled with index records (FORMAT §4.3) whose offsets count from
            the start of `out`; apart from `buffers`.
        codec: "auto" (per chunk what a sample says is smallest; raw if little is saved), "fast" (a
            ladder of one level, or raw if that saves little), "max" (also ans and
            huffman; the smallest frame) or "off" (raw, without a block map).
        align_bytes: The last frame is lengthened so that the run is a multiple of this long.
        zstd_level: Level of zstd for words without a split, 1 to 22; 0 leaves them raw.
        bases: Links of the chains that end in the chunks' bases, from the oldest on: frames, and
            uint8 [C, 32] their index records; zeros for a chunk without a frame in the link. A
            chunk that has any is coded against the words of the last where that is smaller. A link
            may have a third item, what the offsets are where its frames begin; else 0. Apart from
            `out` and `records`.

    Returns:
        The number of bytes written to `out`.
    """

def queued_secs() -> float:
    """Return for how long the calling thread was ready to run without a processor.

    It keeps the GIL, unlike reading the kernel's file in Python, as this is done at every write and
    whoever gives the GIL up waits for it. 0 where the kernel does not count.
    """

class BrokenBase(Exception):
    """Words that a chunk is to be coded against cannot be read; the words to code are not at fault.

    Attributes:
        run: index of the run in those of the writer.
        chunk: number of the chunk.
        link: index of the link of the run whose frame is at fault.
        status: what is wrong with it, a key of `STATUS`.
        errno: why the system refused to read; 0 if it did not.
    """

    run: int
    chunk: int
    link: int
    status: int
    errno: int

class RunWriter:
    """Runs of chunks that several threads code and write, each at its place, in their order.

    The bytes depend neither on the number of threads nor on the order in which they call.

    Args:
        runs: `buffers`, `segments`, `chunks` and `records` of each, as in `encode_run`, links, and
            which chunks have a base only if they are alike.
            Links are those of `bases` in `encode_run`, with the descriptor of an open file in place
            of frames, and the offsets of their records are in that file; () codes without a base.
            They are read where they are needed, by whole pages into aligned memory, and not at all
            by the codec "off". The last is bool [C], or None for no chunk: the base of such a chunk
            is used only if its frame, coded without one, shows that its words may not have changed.
            Buffers and files are held until `close`. What yields runs may run
            Python in between.
        offset: where the first run goes in the file.
        codec: as in `encode_run`.
        align_bytes: as in `encode_run`.
        zstd_level: as in `encode_run`.

    Attributes:
        offset: where the next run goes.
    """

    def __init__(
        self,
        runs: Iterable[
            tuple[
                Sequence[Buffer],
                Buffer,
                Buffer,
                Buffer,
                Sequence[tuple[int, Buffer]],
                Buffer | None,
            ]
        ],
        *,
        offset: int,
        codec: str,
        align_bytes: int,
        zstd_level: int = 0,
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    def code(self, out: Buffer) -> tuple[int, int] | None:
        """Code the next run into `out`, and give it its place once those before it have theirs.

        Args:
            out: as in `encode_run`, long enough for every run.

        Returns:
            Its offset in the file, from which the offsets of its records count, and its bytes.
            None if no run is left or the writer was stopped.

        Raises:
            BrokenBase: a frame of a link is damaged, or not that of its record.
        """

    def write(self, descriptor: int, out: Buffer, *, most_secs: float) -> tuple[int, int] | None:
        """Code and write runs until none is left, at least one, in one call without the GIL.

        Args:
            descriptor: of an open file.
            out: as in `code`; its address is aligned as the file wants it.
            most_secs: after so long no other run is begun, so that Python handles signals.

        Returns:
            None if no run is left or the writer was stopped; offset and 0 when the time is over;
            offset and bytes of a run that lies in `out` but that the system refused to write.

        Raises:
            BrokenBase: as in `code`.
        """

    def stop(self) -> None:
        """Make the calls of all threads return None soon; an error of one keeps others waiting."""

    def close(self) -> None:
        """Let go of buffers and files.

        Raises:
            ValueError: a call has not returned yet.
        """

    def secs(self) -> dict[str, float]:
        """Return what was measured so far.

        Returns:
            encode, write, write_cpu and write_queued (ready to run, without a processor), read_base
            and decode_base (of the links' frames, not counted in encode), summed over threads;
            busy, in which at least one of them wrote in `write`.
        """

def decode_run(
    frames: Buffer,
    records: Buffer,
    chunks: Buffer,
    buffers: Sequence[Buffer],
    segments: Buffer,
    *,
    check_only: bool = False,
    bases: Sequence[tuple[Buffer, Buffer] | tuple[Buffer, Buffer, int]] = (),
    start: int = 0,
) -> tuple[int, int]:
    """Decode frames into the caller's buffers, checking everything on the way.

    Args:
        frames: Bytes that hold the frames.
        records: uint8 [C, 32]: index records of the frames.
        chunks: uint32 [C, 4]: what the layout says, as the first columns in `encode_run`.
        buffers: Where the words go; writable, and apart from `frames` and `records`.
        segments: uint64 [S, 5]: as in `encode_run`, and a rule: 0 for the words as they are, 2
            for bfloat16 words rounded from float32 ones (FORMAT §4.2), whose byte offset is in the
            rounded words. Any part of the chunks' words, any number of times. A chunk without
            segments is decoded and checked, and its words dropped.
        check_only: There are no segments; column 3 of `chunks` is ignored.
        bases: As in `encode_run`, for the frames that are deltas; apart from `buffers`.
        start: What the offsets of `records` are where `frames` begins.

    Returns:
        Status and index in this call of the chunk at fault; (0, 0) if all is well. Unless the
        status is 0 the contents of `buffers` are undefined.
    """

def read_files(reads: Sequence[tuple[int, int, Buffer]]) -> int:
    """Fill buffers from files, one after the other, in one call without the GIL.

    Args:
        reads: descriptor, offset in its file and writable buffer of each.

    Returns:
        How many are full. The next one is not: its file ends before, or the system refused.
    """

def gather(pieces: Buffer, out: Buffer) -> None:
    """Copy pieces of memory, one after another, without giving up the interpreter.

    Args:
        pieces: uint64[n, 2], address and bytes of each. The caller keeps what lies there alive.
        out: uint8[bytes of all pieces].

    Raises:
        ValueError: `out` is shorter or longer.
    """

def derives(source: Buffer, target: Buffer, rule: int) -> bool:
    """Return whether every word of `target` follows from the words of `source`. FORMAT §4.2.

    Args:
        source: Words of the source, float32 for rule 2.
        target: Words that may follow from them, bfloat16 for rule 2. Of another number than the
            source's they do not.
        rule: 1 copy, 2 round.
    """

def encode_frame(
    words: Buffer,
    dtype: int,
    *,
    chunk: int = 0,
    codec: Literal[
        "auto", "fast", "max", "off", "raw", "ladder", "modelled", "ans", "zstd", "huffman", "delta"
    ] = "auto",
    block_map: bool | None = None,
    zstd_level: int = 3,
    columns: int = 0,
    base: Buffer | None = None,
    base_crc32c: int = 0,
) -> bytes:
    """Return the frame of one chunk.

    Args:
        words: uint8, uint16, uint32 or uint64 [n], as wide as the dtype's container.
        dtype: Dtype id of FORMAT §5.
        chunk: Number of the chunk.
        codec: As in `encode_run`, or one codec even where another is smaller.
        block_map: True or False force the block map on or off; None uses it where it saves.
        zstd_level: As in `encode_run`.
        columns: As in `encode_run`; at most the number of words.
        base: Words of the base, as many: the frame is a delta where that is smaller.
        base_crc32c: Payload CRC32C in the header of the base's frame.
    """

def decode_frame(
    frame: Buffer, words_out: Buffer, *, base: Buffer | None = None, base_crc32c: int = 0
) -> int:
    """Decode one frame into `words_out`.

    Args:
        frame: Bytes of the frame and no more.
        words_out: Words of the dtype's container, exactly as many as the frame has; apart from
            `frame` and `base`.
        base: Words of the base, which a delta needs.
        base_crc32c: Payload CRC32C in the header of the base's frame.

    Returns:
        The status. Unless it is 0 the contents of `words_out` are undefined.
    """

def frame_info(frame: Buffer) -> dict[str, object]:
    """Return what a frame is made of: its header's fields, blocks, levels and stream sizes.

    Returns:
        codec, dtype, flags, n_words, payload_bytes, frame_bytes, chunk, n_zero_blocks,
        n_constant_blocks, n_same_blocks, columns (of a prediction, else 0), trimmed_bits (left out,
        of all words), n_escapes (integers), sign_slot and no_signs (bools: no word has a sign),
        levels (list of widths) and stream_bytes (name to bytes).

    Raises:
        ValueError: The header or the sizes in the frame are not possible. CRCs of the payload
            are not checked.
    """
