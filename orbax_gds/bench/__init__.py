"""Codecs side by side: ours as the engine calls them, and the peers on their byte APIs.

`orbax-gds bench codec` and the repository's `benchmarks` share it. The peers are optional (extra
`[bench]`) and imported where they are bound to arrays.
"""
