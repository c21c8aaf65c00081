"""The floors of a model on hardware in a terminal, each number with a word on what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from analysis.tables import UNKNOWN, number, percent, safe

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.floor_sheet import Decode, Sheet, Speculation
    from analysis.kv_plan import Case, Plan

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LEFT = {"", "why", "note", "weights", "GPU", "limit"}


def show(made: Sheet, console: Console) -> None:
    """Prints what was asked, the floors, and what another precision, GPU or speculation would change, and the plan."""
    console.print(_line(made.hardware, "bold"))
    console.print(_line(_asked(made), "dim"))
    if not made.fits:
        console.print(_line(_does_not_fit(made), "bold red"))
    console.print(_floors(made))
    for words in _missing(made):
        console.print(_line(words, "dim"))
    if made.speculation is not None:
        for words in _speculation(made.speculation):
            console.print(_line(words, ""))
    console.print(_line("\nOther precisions here: fewer bytes are read sooner, and leave room for KV", "bold"))
    console.print(_precisions(made))
    for words in _notes(made):
        console.print(_line(words, "dim"))
    console.print(_line("\nOther GPUs: one stream is as fast as memory, prefill as fast as compute", "bold"))
    console.print(_catalogue(made))
    if not all(one.fits for one in made.catalogue):
        console.print(_line("takes N: does not fit on as many as were asked for; the numbers are those of N", "dim"))
    if made.plan is not None:
        _plan(made.plan, console)


def _asked(made: Sheet) -> str:
    compute = "an unknown rate of compute" if made.flops_per_s is None else f"{_si(made.flops_per_s)}FLOP/s"
    memory = f"{_si(made.usable_bytes)}B of {_si(made.memory_bytes)}B of memory"
    return (
        f"{_si(made.weight_bytes)}B of weights; {memory} at {_si(made.bytes_per_s)}B/s, {compute}; requests of "
        f"{_count(made.input_tokens)} tokens in and {_count(made.output_tokens)} out, {_count(made.batch.batch)} at "
        f"once with {_count(made.batch.context_tokens)} of context each. A floor is the best case: no "
        "server is faster, and good ones take 1.3 to 2 times as long"
    )


def _does_not_fit(made: Sheet) -> str:
    beside = f" and the KV cache of one request of {_count(made.input_tokens + made.output_tokens)} tokens"
    what = f"{_si(made.weight_bytes)}B of weights" + ("" if made.kv.bytes_per_token is None else beside)
    return (
        f"it does not fit: {what} need more than the {_si(made.usable_bytes)}B that "
        f"{made.gpus} x {made.gpu} may use; it takes {made.gpus_needed}. The floors are those of memory that would be "
        "large enough"
    )


def _floors(made: Sheet) -> Table:
    one, batch, prefill, kv = made.one, made.batch, made.prefill, made.kv
    even = "tokens a step from which compute is the limit"
    table = _grid("", "floor", "why")
    rows = [
        ("decode, one stream", _ms(one.floor_ms), _read(made, one)),
        ("its ceiling", _per_s(one.tokens_per_s), "no single stream gets more"),
        (f"decode, {_count(batch.batch)} at once", _ms(batch.floor_ms), _read(made, batch)),
        ("their ceiling", _per_s(batch.tokens_per_s), "all of them together"),
        (f"prefill of {_count(prefill.prompt_tokens)}", _ms(prefill.floor_ms), _computed(made)),
        ("break-even batch", _count(made.break_even_batch), even),
        ("KV cache", _bytes(kv.bytes_per_token), "a token of context"),
        ("KV room", _count(kv.tokens), f"tokens, in {_si(kv.room_bytes)}B {_room(made)}"),
        ("sequences", _count(kv.sequences), f"at once, of {_count(kv.sequence_tokens)} tokens (input + output/2)"),
        ("KV = weights", _count(kv.parity_batch), "at once: from here on a step reads more KV"),
    ]
    for row in rows:
        table.add_row(*map(Text, map(safe, row)))
    return table


def _read(made: Sheet, decode: Decode) -> str:
    if decode.bound == "compute":
        return "bound by compute, and not by what a step reads"
    kv = f", {_si(decode.kv_bytes)}B of KV cache" if decode.kv_bytes else ""
    some = " (some experts)" if decode.weight_bytes < 0.99 * made.weight_bytes else ""
    return f"a step reads {_si(decode.weight_bytes)}B of weights{some}{kv}"


def _room(made: Sheet) -> str:
    kv = made.kv
    windowed = (kv.sequences or 0) * kv.sequence_tokens > (kv.tokens or 0)
    return "(more where sliding windows cut)" if windowed else "beside the weights"


def _computed(made: Sheet) -> str:
    return f"TTFT without a queue: {_si(made.prefill.flops)}FLOP"


def _missing(made: Sheet) -> list[str]:
    """Why there are dashes."""
    lines = []
    if made.kv.bytes_per_token is None:
        lines.append(
            f"{UNKNOWN} the KV cache of {made.model} is not known, and counts as nothing: a parameter count has no "
            "shape (say --layers, --kv-heads and --head-dim)"
        )
    if made.flops_per_s is None:
        lines.append(f"{UNKNOWN} the compute rate of {made.gpu} is not known: decode floors are of its bandwidth alone")
    return lines


def _speculation(found: Speculation) -> list[str]:
    asked = found.asked
    effect = f"{number(found.gain)} times as fast" if found.gain >= 1 else f"slower, {number(found.gain)} times as fast"
    lines = [
        f"\nSpeculative decoding, {asked.drafts} drafts a step, {percent(asked.acceptance)} % of them right, each at "
        f"{percent(asked.draft_cost)} % of a step: {number(found.tokens_per_step)} tokens a step, {effect} "
        f"({number(found.floor_ms_per_token)} ms a token)"
    ]
    even = found.break_even_acceptance
    lines.append(
        "such drafts cost more than they can save, however many are right"
        if even is None
        else f"it pays where more than {percent(even)} % of the drafts are right"
    )
    if found.free_batch is not None:
        lines[-1] += (
            f"; up to {_count(found.free_batch)} at once: beyond that its tokens ({asked.drafts + 1} a sequence) need "
            "compute that is not there"
        )
    return lines


def _precisions(made: Sheet) -> Table:
    table = _grid(
        "weights", "\nGB", "one stream\nms", "prefill\nms", "KV room\ntokens", "\nsequences", "break-even\nbatch"
    )
    for one in made.precisions:
        cells = (
            one.dtype,
            number(one.weight_bytes / 1e9),
            number(one.decode_ms),
            number(one.prefill_ms),
            _count(one.kv_tokens),
            _count(one.sequences),
            _count(one.break_even_batch),
        )
        table.add_row(*map(Text, cells), style="bold" if one.dtype == made.dtype else "" if one.fits else "dim")
    return table


def _notes(made: Sheet) -> list[str]:
    notes = [(one.dtype, "does not fit") for one in made.precisions if not one.fits]
    notes += [(one.dtype, one.note) for one in made.precisions if one.note and made.flops_per_s is not None]
    return [f"{dtype}: {note}" for dtype, note in notes]


def _catalogue(made: Sheet) -> Table:
    table = _grid("GPU", "\nGPUs", "one stream\nms", "\ntok/s", "prefill\nms", "break-even\nbatch", "\nsequences")
    for one in made.catalogue:
        cells = (
            one.gpu,
            f"{one.gpus}" if one.fits else f"takes {one.gpus}",
            number(one.decode_ms),
            number(one.tokens_per_s),
            number(one.prefill_ms),
            _count(one.break_even_batch),
            _count(one.sequences),
        )
        table.add_row(*map(Text, cells), style="bold" if one.gpu == made.gpu else "" if one.fits else "dim")
    return table


def _plan(made: Plan, console: Console) -> None:
    of = f"{_count(made.input_tokens)} tokens in and {_count(made.output_tokens)} out"
    console.print(_line(f"\nPlan: max_num_seqs for requests of {of}", "bold"))
    both = (made.floor, made.usual)
    table = _grid("limit", "best case", f"at {made.usual.efficiency:g}\nof it", "note")
    rows = [
        ("memory, full lengths", [made.memory_full_seqs] * 2, "all at their end: none is preempted"),
        ("memory, mean lengths", [made.memory_live_seqs] * 2, "some begin while others end"),
        (_limit("ITL", made.itl_limit_ms), [one.itl_seqs for one in both], "of decode alone"),
        ("", [one.steady_seqs for one in both], "with the prompts of those who come next"),
        ("compute", [made.saturating_seqs] * 2, _saturation(made)),
        ("max_num_seqs", [one.max_num_seqs for one in both], "at most, by memory and ITL"),
    ]
    for name, counts, note in rows:
        style = "bold" if name == "max_num_seqs" else ""
        table.add_row(*map(Text, (name, *map(_count, counts), note)), style=style)
    console.print(table)
    for words in _words(made):
        console.print(_line(words, ""))
    if made.command is not None:
        console.print(_line("try, with your model's name:", ""))
        console.print(_line(made.command, "bold"), soft_wrap=True)


def _saturation(made: Plan) -> str:
    if made.saturating_seqs is not None:
        return "from here on no more tokens/s"
    return "never: KV takes longer to read" if made.floor.ttft_ms is not None else "its rate is not known"


def _limit(name: str, limit_ms: float | None) -> str:
    return f"{name}, no limit" if limit_ms is None else f"{name} < {number(limit_ms)} ms"


def _words(made: Plan) -> list[str]:
    best, usual = _binding(made.floor), _binding(made.usual)
    lines = [best if best == usual else f"at best {best}; at {made.usual.efficiency:g} of it {usual}"]
    if made.itl_limit_ms is None:
        lines.append("no ITL limit was given: --slo chat, or --slo 'itl p99 < 50ms', adds one")
    elif made.floor.steady_seqs is None:
        lines.append(f"{UNKNOWN} no number at once that is known to break the ITL limit")
    if made.floor.ttft_ms is not None:
        lines.append(_ttft(made))
    lines.append("measured servers reach 0.5 to 0.75 of a floor: a plan says where to measure, and promises nothing")
    return lines


def _binding(case: Case) -> str:
    if case.max_num_seqs == 0:
        return "it does not fit" if case.binds == "memory" else "not even one stream meets the ITL limit"
    return {
        "memory": "memory binds first",
        "itl": "the ITL limit binds first"
        if case.steady_seqs == case.itl_seqs
        else "the ITL limit binds first, for prompts take their time between the tokens",
        "compute": "neither memory nor ITL binds first: compute is busy before",
        None: "nothing that is known binds",
    }[case.binds]


def _ttft(made: Plan) -> str:
    best, usual = made.floor, made.usual
    words = f"TTFT: the prompt alone takes {number(best.ttft_ms)} ms, {number(usual.ttft_ms)} at {usual.efficiency:g}"
    if made.ttft_limit_ms is None:
        return f"{words}, before any wait in the queue"
    limit = f"the limit of {number(made.ttft_limit_ms)} ms"
    if not best.ttft_met:
        return f"{words}: {limit} cannot be met; shorter prompts, a prefix cache or more compute"
    if not usual.ttft_met:
        return f"{words}: {limit} is met at the floor only; shorter prompts, a prefix cache or more compute"
    return f"{words}: of {limit} the rest is for waiting, behind other prompts and in the queue"


def _grid(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in _LEFT else "right", overflow="fold")
    return table


def _count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value)} ms"


def _per_s(value: float) -> str:
    return f"{number(value)} tok/s"


def _bytes(value: float | None) -> str:
    return UNKNOWN if value is None else f"{_si(value)}B"


def _si(value: float) -> str:
    """With its decimal prefix: 16.1 G."""
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if value >= size), (1.0, ""))
    return f"{number(value / size)} {prefix}" if value else f"0 {prefix}"


def _line(text: str, style: str) -> Text:
    return Text("\n".join(map(safe, text.split("\n"))), style=style)
