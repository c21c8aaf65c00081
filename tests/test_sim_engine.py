from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import floors
from loadgen.sim.engine import Engine, Step
from loadgen.sim.spec import Spec, parse

BASE = parse("llama-3.1-8b@h100")


def spec(*, kv_tokens: int | None = None, **changes: int | float | bool) -> Spec:
    changed = msgspec.structs.replace(BASE, **changes)
    if kv_tokens is None:
        return changed
    # Half a token more than asked, so that rounding cannot lose one.
    kv_bytes = floors.kv_bytes(changed.model, kv_tokens + 0.5)
    assert kv_bytes is not None
    utilization = (floors.weight_bytes(changed.model) + kv_bytes) / (changed.gpu.memory_gb * 1e9)
    return msgspec.structs.replace(changed, gpu_memory_utilization=utilization, max_model_len=kv_tokens)


def prompt(tokens: int, salt: int = 0) -> tuple[int, ...]:
    return tuple(salt * 10_000 + i for i in range(tokens))


def output(tokens: int) -> tuple[int, ...]:
    return tuple(range(-tokens, 0))


def steps(engine: Engine, limit: int = 100_000) -> list[Step]:
    taken = []
    while (step := engine.step()) is not None:
        taken.append(step)
        assert len(taken) < limit
    return taken


def _step(engine: Engine) -> Step:
    step = engine.step()
    assert step is not None
    return step


def test_the_defaults_decode_an_8b_model_at_about_7_ms() -> None:
    engine = Engine(BASE)
    engine.add(0, prompt(300), output(2))
    assert 1e3 * steps(engine)[-1].duration_s == pytest.approx(7.0, abs=0.2)


@pytest.mark.parametrize(("inputs", "ttft_ms"), [(2000, 34.7), (7000, 129.5)])
def test_published_prefills_are_near(inputs: int, ttft_ms: float) -> None:
    engine = Engine(msgspec.structs.replace(BASE, dtype="fp8"))
    engine.add(0, prompt(inputs), output(1))
    assert _step(engine).duration_s * 1e3 == pytest.approx(ttft_ms, rel=0.1)


def test_a_step_takes_as_long_as_its_bytes_or_its_flops() -> None:
    engine = Engine(spec(bandwidth_efficiency=0.5, compute_efficiency=0.25, overhead_us=100.0))
    engine.add(0, prompt(1000), output(2))
    prefill, decode = steps(engine)
    flops = floors.prefill_flops(BASE.model, 1000)
    assert prefill.duration_s == pytest.approx(flops / (989e12 * 0.25) + 1e-4)
    read = sum(floors.decode_bytes(BASE.hardware, 1, 1001))
    assert decode.duration_s == pytest.approx(read / (3350e9 * 0.5) + 1e-4)


def test_a_step_takes_longer_for_each_sequence_in_it() -> None:
    took = []
    for each_us in (0.0, 100.0):
        engine = Engine(spec(overhead_per_seq_us=each_us))
        for i in range(8):
            engine.add(i, prompt(16, salt=i), output(2))
        took.append([step.duration_s for step in steps(engine)])
    assert [slow - fast for fast, slow in zip(*took, strict=True)] == pytest.approx([8e-4, 8e-4])


@pytest.mark.parametrize("model", ["gemma-2-27b", "gpt-oss-20b"])
def test_layers_with_a_window_read_and_compute_no_more_than_it(model: str) -> None:
    served = parse(f"{model}@b200,prefix_cache=0,max_num_batched_tokens=20000")
    engine = Engine(served)
    lengths = (100, 6000)
    for i, tokens in enumerate(lengths):
        engine.add(i, prompt(tokens, salt=i), output(2))
    prefill, decode = steps(engine)
    assert prefill.flops == pytest.approx(sum(floors.prefill_flops(served.model, tokens) for tokens in lengths))
    read = [floors.kv_bytes(served.model, tokens + 1) or 0.0 for tokens in lengths]
    assert decode.read_bytes == pytest.approx(sum(read) + floors.weight_bytes_read(served.model, 2))
    one_more = [floors.attention_flops(served.model, tokens + 1, tokens) for tokens in lengths]
    assert decode.flops == pytest.approx(floors.decode_flops(served.model, 2) + sum(one_more))


@pytest.mark.parametrize("model", ["gemma-3-27b", "gpt-oss-20b", "llama-3.1-8b"])
@pytest.mark.parametrize("tokens", [1, 100, 1000, 3000, 8000])
def test_a_sequence_holds_what_the_floor_says(model: str, tokens: int) -> None:
    served = parse(f"{model}@h100,dtype=fp8,prefix_cache=0,block_size=1")
    engine = Engine(served)
    engine.add(0, prompt(tokens), output(2))
    _step(engine)
    a_block = floors.kv_room_bytes(served.hardware) / served.kv_blocks
    held = engine.kv_usage * served.kv_blocks * a_block
    assert held == pytest.approx(floors.kv_bytes(served.model, tokens), abs=a_block * 1.01)
    _step(engine)
    assert engine.kv_usage == 0.0


def test_nothing_to_do_is_no_step() -> None:
    engine = Engine(BASE)
    assert engine.step() is None
    engine.add(0, prompt(4), output(1))
    assert _step(engine).finished == [0]
    assert engine.step() is None


def test_the_batch_is_limited_and_first_come_first_served() -> None:
    engine = Engine(spec(max_num_seqs=2))
    for i in range(4):
        engine.add(i, prompt(10, salt=i), output(3))
    first = _step(engine)
    assert (first.admitted, engine.running, engine.waiting) == ([0, 1], 2, 2)
    rest = steps(engine)
    assert [step.admitted for step in rest] == [[], [], [2, 3], [], []]
    assert [step.finished for step in rest] == [[], [0, 1], [], [], [2, 3]]


def test_a_long_prompt_is_computed_in_chunks_beside_the_decodes() -> None:
    engine = Engine(spec(max_num_seqs=4, max_num_batched_tokens=8))
    engine.add(0, prompt(4), output(10))
    assert _step(engine).tokens == [(0, 1)]
    engine.add(1, prompt(20, salt=1), output(2))
    # 7 tokens a step are left beside the decode: 20 prompt tokens take three steps.
    assert [_step(engine).tokens for _ in range(4)] == [[(0, 1)], [(0, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 1)]]


def test_without_room_the_last_arrived_is_computed_again() -> None:
    engine = Engine(spec(kv_tokens=64, block_size=16, prefix_cache=False))
    for i in range(2):
        engine.add(i, prompt(24, salt=i), output(20))
    taken = steps(engine)
    assert engine.counters.preemptions == 1
    assert [i for step in taken for i in step.finished] == [0, 1]
    # The first goes on without a gap, the second pauses until the first has ended.
    had_first = [any(i == 0 for i, _ in step.tokens) for step in taken]
    assert had_first == [True] * 20 + [False] * (len(taken) - 20)
    assert sum(count for step in taken for _, count in step.tokens) == 40
    assert engine.kv_usage == 0.0


@pytest.mark.parametrize(("tokens", "hits"), [(33, 32), (32, 16), (17, 16), (16, 0)])
def test_full_blocks_of_a_known_prompt_are_not_computed_again(tokens: int, hits: int) -> None:
    engine = Engine(BASE)
    engine.add(0, prompt(tokens), output(1))
    steps(engine)
    again = engine.add(1, prompt(tokens), output(1))
    steps(engine)
    assert again.cached == hits
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (2 * tokens, hits)


def test_the_next_turn_finds_prompt_and_answer() -> None:
    engine = Engine(BASE)
    engine.add(0, prompt(40), output(40))
    steps(engine)
    turn = engine.add(1, prompt(40) + output(40) + prompt(20, salt=1), output(1))
    steps(engine)
    # The KV of the last token generated was never computed: 79 tokens fill four blocks.
    assert turn.cached == 64


def test_a_prefix_is_all_that_comes_before() -> None:
    engine = Engine(BASE)
    engine.add(0, prompt(64), output(1))
    steps(engine)
    other = engine.add(1, (-1, *prompt(64)[1:]), output(1))
    steps(engine)
    assert other.cached == 0


@pytest.mark.parametrize("reset", [True, False])
def test_the_prefix_cache_can_be_reset_or_switched_off(reset: bool) -> None:
    engine = Engine(spec(prefix_cache=reset))
    engine.add(0, prompt(64), output(1))
    steps(engine)
    if reset:
        engine.reset_prefix_cache()
    again = engine.add(1, prompt(64), output(1))
    steps(engine)
    assert again.cached == 0


def test_new_prompts_push_the_oldest_out_of_the_cache() -> None:
    engine = Engine(spec(kv_tokens=96, block_size=16))
    for salt in (0, 1, 2):
        engine.add(salt, prompt(33, salt=salt), output(1))
        steps(engine)
    newest = engine.add(3, prompt(33, salt=2), output(1))
    steps(engine)
    oldest = engine.add(4, prompt(33, salt=0), output(1))
    steps(engine)
    assert (newest.cached, oldest.cached) == (32, 0)


@pytest.mark.parametrize(("acceptance", "a_step"), [(0.0, 1), (1.0, 4)])
def test_certain_drafts(acceptance: float, a_step: int) -> None:
    engine = Engine(spec(spec_tokens=3, spec_acceptance=acceptance))
    engine.add(0, prompt(10), output(21))
    counts = [count for step in steps(engine) for _, count in step.tokens]
    assert counts == [1] + [a_step] * (20 // a_step)


def test_drafts_give_the_tokens_a_step_that_the_formula_says() -> None:
    engine = Engine(spec(spec_tokens=4, spec_acceptance=0.7))
    engine.add(0, prompt(10), output(20_001))
    taken = len(steps(engine)) - 1
    assert 20_000 / taken == pytest.approx((1 - 0.7**5) / (1 - 0.7), rel=0.03)
    counters = engine.counters
    assert counters.accepted_tokens + counters.drafts == pytest.approx(20_000, abs=1)


def test_cancelled_sequences_leave_at_once() -> None:
    engine = Engine(spec(max_num_seqs=1))
    engine.add(0, prompt(40), output(10))
    engine.add(1, prompt(40, salt=1), output(10))
    _step(engine)
    engine.cancel(1)
    engine.cancel(0)
    engine.cancel(7)
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert engine.step() is None


def test_what_cannot_run_is_refused() -> None:
    engine = Engine(spec(kv_tokens=64))
    with pytest.raises(ValueError, match="60 \\+ 5 tokens exceed max_model_len=64"):
        engine.add(0, prompt(60), output(5))
    with pytest.raises(ValueError, match="at least one token"):
        engine.add(0, (), output(5))


REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 3), st.integers(0, 12), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=200)
@given(REQUESTS, st.sampled_from([0, 2]), st.booleans(), st.integers(2, 40), st.booleans())
def test_every_sequence_gets_its_tokens_and_all_blocks_return(
    requests: list[tuple[int, int, int, int, bool]], drafts: int, cache: bool, budget: int, windowed: bool
) -> None:
    """Arrivals at any step, cancels, a KV cache that one sequence can fill: nothing is lost, nothing starves."""
    served = spec(kv_tokens=96, block_size=16, max_num_seqs=2, max_num_batched_tokens=budget, spec_tokens=drafts,
                  prefix_cache=cache)  # fmt: skip
    if windowed:
        model = msgspec.structs.replace(served.model, window_layers=24, window_tokens=40)
        served = msgspec.structs.replace(served, model=model)
    engine = Engine(served)
    got = dict.fromkeys(range(len(requests)), 0)
    finished: list[int] = []
    cancelled: set[int] = set()
    for now in range(5000):
        for i, (inputs, outputs, salt, arrives, _) in enumerate(requests):
            if arrives == now:
                engine.add(i, prompt(inputs, salt=salt), output(outputs))
            elif arrives + 3 == now and requests[i][4] and i not in finished:
                engine.cancel(i)
                cancelled.add(i)
        step = engine.step()
        if step is None:
            if now > 20:
                break
            continue
        assert step.duration_s > 0
        for i, count in step.tokens:
            got[i] += count
        assert not cancelled & {i for i, _ in step.tokens}
        assert engine.running <= 2
        finished += step.finished
    assert sorted(finished) == sorted(set(range(len(requests))) - cancelled)
    assert all(got[i] == requests[i][1] for i in finished)
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert engine.counters.generation_tokens == sum(got.values())


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> list[Step]:
        random = Random(1)
        engine = Engine(spec(spec_tokens=3, max_num_seqs=4))
        for i in range(20):
            engine.add(i, prompt(random.randrange(1, 200), salt=i % 3), output(random.randrange(1, 50)))
        return steps(engine)

    assert run() == run()
