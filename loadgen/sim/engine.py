"""The continuous-batching model: what one engine step computes, and how long it takes.

Rules, after vLLM V1:

    step        running sequences first, in the order they arrived, each with all its tokens not yet computed (one when
                it decodes, the rest of its prompt when it prefills); then waiting ones, first come first served; all
                under max_num_batched_tokens, so a long prompt is computed in chunks beside the decodes
    KV          a sequence holds the blocks of its computed tokens. Where none is free, the sequence that arrived last
                gives up its own, returns to the head of the queue, and is computed again from the start; nothing is
                admitted in such a step
    prefix      on admission the longest run of cached full blocks is taken instead of computed; the last token is
                always computed, because its output is what is wanted
    speculation a decoding sequence computes `spec_tokens` drafts more, and keeps the accepted ones up to the first
                rejected; drafting itself is free
    window      of layers with a sliding window a sequence keeps that window only, in blocks of its own, which the
                prefix cache does not know
    duration    max(bytes / bandwidth, FLOPs / compute), each peak rate times its efficiency, plus a fixed overhead,
                plus one for each sequence (sampling, detokenising, streaming: what a server does one by one)

No clock, no I/O: `step` returns the duration of the step, and the caller says when that is.
"""

from collections import deque
from random import Random

import msgspec

from analysis import floors
from loadgen.sim.blocks import BlockPool
from loadgen.sim.spec import Spec


class Sequence(msgspec.Struct, eq=False):
    """`tokens` are the prompt and everything the sequence will generate; what is not yet generated is not yet used."""

    id: int
    tokens: tuple[int, ...]
    prompt_tokens: int
    known: int  # prompt tokens, and those generated so far
    computed: int = 0  # tokens whose KV its blocks keep
    room: int = 0  # tokens its blocks have room for
    cached: int | None = None  # prompt tokens found in the prefix cache; None until admitted
    published: int = 0  # blocks of its own that the prefix cache knows
    blocks: list[int] = []
    window_blocks: list[int] = []
    hashes: list[int] = []  # of its full blocks, as far as they were needed


class Step(msgspec.Struct, frozen=True):
    """What has happened when the step ends."""

    duration_s: float
    sequences: int  # computed in it
    read_bytes: float
    flops: float
    tokens: list[tuple[int, int]]  # (sequence id, tokens generated), in the order they arrived
    admitted: list[int]  # ids first scheduled in this step
    finished: list[int]


class Counters(msgspec.Struct):
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0


class Engine:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.pool = BlockPool(spec.kv_blocks)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._sequences: dict[int, Sequence] = {}
        self._random = Random(spec.seed)
        compute = floors.compute_flops_per_s(spec.gpu, spec.dtype)
        assert compute is not None, "the spec's parser refuses a GPU of unknown compute"
        self._bytes_per_s = spec.gpu.bandwidth_gb_s * 1e9 * spec.gpus * spec.bandwidth_efficiency
        self._flops_per_s = compute * spec.gpus * spec.compute_efficiency
        self._overhead_s = spec.overhead_us / 1e6
        self._overhead_per_seq_s = spec.overhead_per_seq_us / 1e6
        self._kv_bytes_per_token = floors.kv_bytes(spec.model, 1, spec.kv_cache_dtype) or 0.0
        self._windowed = spec.model.window_tokens is not None
        self._flops_per_square = floors.attention_flops(spec.model, 1)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        return 1 - self.pool.free / self.pool.size

    def add(self, sequence_id: int, prompt: tuple[int, ...], output: tuple[int, ...]) -> Sequence:
        """Queue a sequence. Raises ValueError where either is empty or both together exceed max_model_len."""
        if not prompt or not output:
            raise ValueError("a sequence needs a prompt and an output of at least one token each")
        if len(prompt) + len(output) > self.spec.max_model_len:
            raise ValueError(f"{len(prompt)} + {len(output)} tokens exceed max_model_len={self.spec.max_model_len}")
        sequence = Sequence(sequence_id, prompt + output, len(prompt), len(prompt))
        self._sequences[sequence_id] = sequence
        self._waiting.append(sequence)
        return sequence

    def cancel(self, sequence_id: int) -> None:
        """Drop a sequence, wherever it is; an unknown or finished one is none."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return
        queue = self._running if sequence in self._running else self._waiting
        queue.remove(sequence)
        self._release(sequence)

    def reset_prefix_cache(self) -> None:
        self.pool.reset()

    def step(self) -> Step | None:
        """Compute one step; None when there is nothing to do."""
        work, admitted = self._schedule()
        if not work:
            return None
        # Before the sequences move on. Where no layer has a window, sums over them are enough.
        windowed = self._windowed_work(work) if self._windowed else None
        context = squares = total = 0
        tokens: list[tuple[int, int]] = []
        finished: list[int] = []
        for sequence, count in work:
            start = sequence.computed
            end = start + count
            total += count
            context += end
            squares += end * end - start * start
            produced = self._advance(sequence, count)
            if produced:
                tokens.append((sequence.id, produced))
                if sequence.known == len(sequence.tokens):
                    finished.append(sequence.id)
        for sequence_id in finished:
            self._release(self._sequences.pop(sequence_id))
        if finished:
            self._running = [sequence for sequence in self._running if sequence.id in self._sequences]
        kv_bytes, attention = windowed or (self._kv_bytes_per_token * context, self._flops_per_square * squares)
        read_bytes = floors.weight_bytes_read(self.spec.model, total, self.spec.dtype) + kv_bytes
        flops = floors.decode_flops(self.spec.model, total) + attention
        duration_s = self._duration_s(len(work), read_bytes, flops)
        return Step(duration_s, len(work), read_bytes, flops, tokens, admitted, finished)

    def _windowed_work(self, work: list[tuple[Sequence, int]]) -> tuple[float, float]:
        """KV bytes read, and FLOPs of attention, where some layers have a window."""
        model, kv_dtype = self.spec.model, self.spec.kv_cache_dtype
        kv_bytes = attention = 0.0
        for sequence, count in work:
            end = sequence.computed + count
            kv_bytes += floors.kv_bytes(model, end, kv_dtype) or 0.0
            attention += floors.attention_flops(model, end, sequence.computed)
        return kv_bytes, attention

    def _duration_s(self, sequences: int, read_bytes: float, flops: float) -> float:
        return (
            max(read_bytes / self._bytes_per_s, flops / self._flops_per_s)
            + self._overhead_s
            + self._overhead_per_seq_s * sequences
        )

    def _schedule(self) -> tuple[list[tuple[Sequence, int]], list[int]]:
        """Which sequences this step computes, and how many tokens of each; and who came in."""
        budget = self.spec.max_num_batched_tokens
        preemptions = self.counters.preemptions
        work: list[tuple[Sequence, int]] = []
        while len(work) < len(self._running) and budget:
            sequence = self._running[len(work)]
            count = sequence.known - sequence.computed
            if count == 1 and self.spec.spec_tokens:
                count += min(self.spec.spec_tokens, len(sequence.tokens) - sequence.known - 1)
            count = min(count, budget)
            end = sequence.computed + count
            if end > sequence.room and not self._make_room(sequence, end):
                break
            work.append((sequence, count))
            budget -= count
        admitted: list[int] = []
        if self.counters.preemptions > preemptions:
            return work, admitted
        while self._waiting and budget and len(self._running) < self.spec.max_num_seqs:
            sequence = self._waiting[0]
            first = sequence.cached is None
            scheduled = self._admit(sequence, budget)
            if not scheduled:
                break
            self._running.append(self._waiting.popleft())
            work.append((sequence, scheduled))
            budget -= scheduled
            if first:
                admitted.append(sequence.id)
        return work, admitted

    def _make_room(self, sequence: Sequence, end: int) -> bool:
        """Blocks for the first `end` tokens of a running sequence; False if it had to give up its own."""
        blocks = -(-end // self.spec.block_size)
        missing = blocks - len(sequence.blocks)
        window_missing = self.spec.window_blocks(blocks) - len(sequence.window_blocks)
        while self.pool.free < missing + window_missing:
            victim = self._running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.allocate(missing)
        sequence.window_blocks += self.pool.allocate(window_missing)
        sequence.room += missing * self.spec.block_size
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.counters.preemptions += 1
        self._release(sequence)
        sequence.blocks = []
        sequence.window_blocks = []
        sequence.computed = sequence.published = sequence.room = 0
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        self.pool.release(sequence.window_blocks)

    def _admit(self, sequence: Sequence, budget: int) -> int:
        """Give blocks to a waiting sequence: how many of its tokens this step computes, 0 if it must wait on."""
        size = self.spec.block_size
        hits: list[int] = []
        if self.spec.prefix_cache:
            hits = self.pool.match(self._hashes(sequence, (sequence.known - 1) // size))
        cached = len(hits) * size
        count = min(sequence.known - cached, budget)
        blocks = -(-(cached + count) // size)
        missing, window_missing = blocks - len(hits), self.spec.window_blocks(blocks)
        if self.pool.free - self.pool.unheld(hits) < missing + window_missing:
            return 0
        self.pool.hold(hits)
        sequence.blocks = hits + self.pool.allocate(missing)
        sequence.window_blocks = self.pool.allocate(window_missing)
        sequence.room = blocks * size
        sequence.computed = cached
        sequence.published = len(hits)
        if sequence.cached is None:
            sequence.cached = cached
            if self.spec.prefix_cache:
                self.counters.prefix_queries += sequence.prompt_tokens
                self.counters.prefix_hits += cached
        return count

    def _advance(self, sequence: Sequence, count: int) -> int:
        """Compute `count` more tokens of a sequence: how many it has generated by that."""
        drafts = sequence.computed + count - sequence.known
        produced = 0
        if drafts >= 0:
            produced = 1 + self._accepted(drafts) if drafts else 1
            if sequence.known == sequence.prompt_tokens:
                self.counters.prompt_tokens += sequence.prompt_tokens
            self.counters.generation_tokens += produced
            sequence.known += produced
            sequence.computed = sequence.known - 1
        else:
            sequence.computed += count
        if self.spec.prefix_cache and sequence.computed // self.spec.block_size > sequence.published:
            self._publish(sequence)
        return produced

    def _accepted(self, drafts: int) -> int:
        accepted = 0
        while accepted < drafts and self._random.random() < self.spec.spec_acceptance:
            accepted += 1
        self.counters.drafts += 1
        self.counters.draft_tokens += drafts
        self.counters.accepted_tokens += accepted
        return accepted

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.computed // self.spec.block_size
        hashes = self._hashes(sequence, full)
        for i in range(sequence.published, full):
            self.pool.publish(sequence.blocks[i], hashes[i])
        sequence.published = full

    def _hashes(self, sequence: Sequence, count: int) -> list[int]:
        """The hashes of the first `count` blocks, each computed once; they must be full of known tokens."""
        size = self.spec.block_size
        hashes = sequence.hashes
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else 0
            hashes.append(hash((parent, sequence.tokens[start : start + size])))
        return hashes[:count]
