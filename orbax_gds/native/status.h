// What a call of the core reports. 0 is success; the numbers are stable within a version only.
#pragma once

namespace ogds {

enum class Status : int {
    kOk = 0,
    kFrameTruncated,
    kFrameMagic,
    kHeaderCrc,
    kUnknownCodec,
    kUnknownDtype,
    kUnknownFlag,
    kFrameLength,
    kWordCount,
    kIndexMismatch,
    kLayoutMismatch,
    kPayloadCrc,
    kPaddingNotZero,
    kPayloadShort,
    kPayloadLong,
    kRawUnusedBits,
    kMapReservedCode,
    kMapUnusedBits,
    kMapConstantBits,
    kLadderDtype,
    kLadderHeader,
    kLadderSymbols,
    kLadderCount,
    kLadderRank,
    kLadderEscapes,
    kLadderExponent,
    kModelledDtype,
    kModelledHeader,
    kModelledSubBlock,
    kZstdAbsent,
    kZstdFailed,
    kZstdFrame,
    kZstdSize,
    kZstdDemand,
    kZstdBits,
    kAnsDtype,
    kAnsHeader,
    kAnsCounts,
    kAnsTrim,
    kAnsStream,
    kAnsExponent,
    kAnsEscapes,
    kHuffmanDtype,
    kHuffmanLengths,
    kHuffmanStream,
    kDeltaBaseAbsent,
    kDeltaBaseDiffers,
    kDeltaHeader,
    kDeltaSubBlock,
    kDeltaSymbols,
    kBaseUnread,
    kStopped,
    kWordsChanged,
    kNoSpace,
    kFrameTooLong,
    kEnd,  // not a status: one past the last
};

constexpr const char* status_text(Status status) noexcept {
    switch (status) {
        case Status::kOk: return "ok";
        case Status::kFrameTruncated: return "frame is truncated";
        case Status::kFrameMagic: return "frame magic differs";
        case Status::kHeaderCrc: return "frame header CRC32C differs";
        case Status::kUnknownCodec: return "unknown codec";
        case Status::kUnknownDtype: return "unknown dtype";
        case Status::kUnknownFlag: return "unknown frame flag";
        case Status::kFrameLength: return "frame length is not possible";
        case Status::kWordCount: return "number of words is out of range";
        case Status::kIndexMismatch: return "frame disagrees with the index";
        case Status::kLayoutMismatch: return "frame disagrees with the layout";
        case Status::kPayloadCrc: return "payload CRC32C differs";
        case Status::kPaddingNotZero: return "bytes after the payload are not zero";
        case Status::kPayloadShort: return "payload ends before its coding";
        case Status::kPayloadLong: return "payload goes on after its coding";
        case Status::kRawUnusedBits: return "raw: unused bits are not zero";
        case Status::kMapReservedCode: return "block map: a block of the base in a frame without one";
        case Status::kMapUnusedBits: return "block map: unused bits are not zero";
        case Status::kMapConstantBits: return "block map: unused bits of a constant are not zero";
        case Status::kLadderDtype: return "ladder: dtype has no split";
        case Status::kLadderHeader: return "ladder: levels are not possible";
        case Status::kLadderSymbols: return "ladder: symbols are not a permutation";
        case Status::kLadderCount: return "ladder: count of a level differs";
        case Status::kLadderRank: return "ladder: rank above 15";
        case Status::kLadderEscapes: return "ladder: number of escapes differs";
        case Status::kLadderExponent: return "ladder: exponent too large for the dtype";
        case Status::kModelledDtype: return "modelled: dtype is not coded by it";
        case Status::kModelledHeader: return "modelled: header is not possible";
        case Status::kModelledSubBlock: return "modelled: sub-block is not possible";
        case Status::kZstdAbsent: return "zstd: unknown codec here";
        case Status::kZstdFailed: return "zstd: the library failed";
        case Status::kZstdFrame: return "zstd: damaged, or not one frame";
        case Status::kZstdSize: return "zstd: content is not as long as the words";
        case Status::kZstdDemand: return "zstd: needs a dictionary or a window above 128 MiB";
        case Status::kZstdBits: return "zstd: unused bits of a word are not zero";
        case Status::kAnsDtype: return "ans: dtype is not bf16, fp16 or fp32";
        case Status::kAnsHeader: return "ans: header is not possible";
        case Status::kAnsCounts: return "ans: counts are not possible or do not sum up to 4096";
        case Status::kAnsTrim: return "ans: trimmed bits are not possible";
        case Status::kAnsStream: return "ans: stream does not end where its words do";
        case Status::kAnsExponent: return "ans: escaped exponent is too large";
        case Status::kAnsEscapes: return "ans: number of escapes differs";
        case Status::kHuffmanDtype: return "huffman: dtype has more than 8 bits";
        case Status::kHuffmanLengths: return "huffman: lengths are not those of a code";
        case Status::kHuffmanStream: return "huffman: stream does not end where its words do";
        case Status::kDeltaBaseAbsent: return "delta: the words of the base are needed";
        case Status::kDeltaBaseDiffers: return "delta: another base than it was coded against";
        case Status::kDeltaHeader: return "delta: header is not possible";
        case Status::kDeltaSubBlock: return "delta: sub-block is not possible";
        case Status::kDeltaSymbols: return "delta: symbols do not fit escapes and planes";
        case Status::kBaseUnread: return "the system refused to read the frame";
        case Status::kStopped: return "stopped";
        case Status::kWordsChanged: return "words changed while they were coded";
        case Status::kNoSpace: return "output buffer is too small";
        case Status::kFrameTooLong: return "frame would exceed 2147483647 bytes; cut the chunk";
        case Status::kEnd: break;
    }
    return "unknown status";
}

}  // namespace ogds
