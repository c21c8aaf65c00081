"""Synthetic run directories with known answers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import settings

from analysis import measured, records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from analysis.evidence import Finding

SLOTS = 4
few_examples = settings(deadline=None, max_examples=40)  # each writes and reads a run directory

Row = dict[str, Any]


def header(**changes: Any) -> Row:
    facts = {
        "format": 1, "loadgen": "0.1.0", "started_at": "2026-11-29T12:00:00Z", "target": "http://localhost:8000",
        "model": "tiny", "api": "chat", "workload": {"name": "chat", "input": "512", "output": "256", "digest": "ab12"},
        "seed": 0, "slo": [], "clock": "kernel", "host": {"cpu": "any", "cores": 2},
        "server": {"max_model_len": 4096, "dropped": [], "template_tokens": 4, "prompt_tokens_from": "usage"},
        "options": {"insecure": False, "workers": 1, "duration": "30s"}, "salt": "s",
        "levels": [{"level": 0, "concurrency": 1, "rate_per_s": None}],
    }  # fmt: skip
    return facts | changes


def row(index: int = 0, sent_us: int | None = 0, events_us: Sequence[int] = (100_000, 120_000), **changes: Any) -> Row:
    """A measured, complete request; the events come `events_us` after it was sent, one token each."""
    events = list(events_us)
    values = {
        "level": 0, "index": index, "phase": "measure", "status": "ok", "error": None, "http_status": 200, "retries": 0,
        "due_us": sent_us, "sent_us": sent_us, "connect_us": None, "headers_us": 50, "end_us": max(events, default=10),
        "events_us": events, "events_tokens": None, "answer_event": 0 if events else None, "bounds": 0,
        "read_lag_us": 20, "prompt_tokens": 512, "output_tokens": len(events), "reasoning_tokens": None,
        "cached_tokens": 0, "tokens_from": "usage", "want_input_tokens": 512, "want_output_tokens": len(events),
        "finish_reason": "length",
    }  # fmt: skip
    return values | changes


def failed(index: int = 0, sent_us: int | None = 0, kind: str = "http_status", **changes: Any) -> Row:
    nothing = {"prompt_tokens": None, "output_tokens": None, "tokens_from": None, "want_output_tokens": 2}
    error = {"kind": kind, "message": f"{kind} happened"}
    return row(index, sent_us, (), status="failed", error=error, **(nothing | changes))


def ended(level: int = 0, start_us: int = 0, end_us: int = 30_000_000, **changes: Any) -> Row:
    values = {"level": level, "start_us": start_us, "end_us": end_us, "ended_by": "duration"}
    return values | {"cpu_us": 1_000_000, "clock_step_us": 0} | changes


def closed_loop(
    slots: int = 1, each: int = 10, ttft_us: int = 100_000, itl_us: int = 20_000, events: int = 10, **changes: Any
) -> list[Row]:
    """`slots` streams of `each` measured requests back to back, starts staggered, one more request each as warm-up.

    Every request takes exactly the same time, and the last starts are one request before the end.
    """
    stream = [ttft_us + itl_us * event for event in range(events)]
    rows = []
    for turn in range(each + 1):
        for slot in range(slots):
            sent_us = slot * stream[-1] // slots + turn * stream[-1]
            phase = "measure" if turn else "warmup"
            rows.append(row(turn * slots + slot, sent_us, stream, phase=phase, **changes))
    return rows


def open_loop(
    per_s: int = 10, seconds: int = 60, took_us: int = 280_000, grows_us: float = 0, lag_us: int = 0, **changes: Any
) -> list[Row]:
    """Requests at a constant rate, each sent `lag_us` after it was due; they take `took_us` of nine gaps after a first
    third, and `grows_us` longer from one to the next. The first second is warm-up."""
    rows = []
    for i in range(per_s * seconds):
        due_us = i * 1_000_000 // per_s
        took = took_us + int(i * grows_us)
        stream = [took // 3 + (took - took // 3) * event // 9 for event in range(10)]
        phase = "warmup" if i < per_s else "measure"
        rows.append(row(i, due_us + lag_us, stream, due_us=due_us, phase=phase) | changes)
    return rows


def conversations(slots: int = 4, each: int = 20, turns: int = 5, think_us: int = 720_000, **changes: Any) -> list[Row]:
    """`slots` users, each with `each` conversations one after another, the first of them as warm-up.

    A turn takes 280 ms and 10 tokens; its prompt is 512 tokens and all that was said before, which was cached.
    """
    stream = [100_000 + 20_000 * event for event in range(10)]
    rows = []
    for slot in range(slots):
        sent_us = slot * 70_000
        for number in range(each):
            session = (number * slots + slot) * turns
            for turn in range(turns):
                said = 522 * turn
                facts = {
                    "turn": turn, "session": session, "phase": "measure" if number else "warmup",
                    "prompt_tokens": 512 + said, "cached_tokens": said // 16 * 16, "want_input_tokens": None,
                }  # fmt: skip
                rows.append(row(session + turn, sent_us, stream, **(facts | changes)))
                sent_us += stream[-1] + (think_us if turn < turns - 1 else 0)
    return rows


def mix() -> list[Row]:
    """Three slots of chat and three of RAG: long prompts, of which each takes two seconds to its first token."""
    kinds: tuple[Row, ...] = ({"class": "chat"}, {"class": "rag", "prompt_tokens": 8000, "want_input_tokens": 8000})
    chat = closed_loop(3, each=100, **kinds[0])
    rag = closed_loop(3, each=20, ttft_us=2_000_000, **kinds[1])
    return chat + [row | {"index": 1000 + row["index"]} for row in rag]


def clean(**changes: Any) -> list[Row]:
    """A level of four slots without a fault."""
    return closed_loop(SLOTS, each=100, **changes)


def with_some(count: int, **changes: Any) -> list[Row]:
    """A clean level of 400 with the last `count` requests changed."""
    rows = clean()
    return rows[:-count] + [one | changes for one in rows[-count:]]


def findings(rows: list[Row], end: Row | None = None, **head: Any) -> dict[str, Finding]:
    """Of a level of four slots, where `head` says nothing else."""
    facts = {"levels": [{"level": 0, "concurrency": SLOTS}]} | head
    with tempfile.TemporaryDirectory() as directory:
        run = records.read(write(Path(directory), rows, [ended() if end is None else end], header(**facts)))
    return {finding.code: finding for finding in measured.summarize_level(run, 0).findings}


def write(directory: Path, rows: Iterable[Row], ends: Iterable[Row] = (), head: Row | None = None) -> Path:
    """The directory, made where it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_text(json.dumps(header() if head is None else head))
    (directory / "requests.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    (directory / "levels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ends))
    return directory


def requests(*rows: Row) -> records.Requests:
    """Rows of level 0, as they are read."""
    with tempfile.TemporaryDirectory() as directory:
        return records.read(write(Path(directory), rows)).requests.get(0, records.NO_REQUESTS)


def sweep(directory: Path, *, model: str = "meta-llama/Llama-3.1-8B-Instruct") -> Path:
    """Five levels: two with few requests, two with enough for a p99, of which one has failures, and one that broke."""
    rows, ends = [], []
    for level, slots in enumerate((1, 2, 64, 128, 256)):
        itl_us = 10_000 + 100 * slots
        made = closed_loop(
            slots, each=10 if slots < 4 else 1000 // slots, ttft_us=50_000 + 2_000 * slots, itl_us=itl_us
        )
        for place, one in enumerate(made):
            one |= {"level": level, "sent_us": one["sent_us"] + level * 60_000_000}
            one["due_us"] = one["sent_us"]
            if (slots == 128 and place % 50 == 0) or (slots == 256 and place % 3):
                message = "out of memory \x1b[31m[red]at step 7[/red]"
                one |= {"status": "failed", "error": {"kind": "stream_error", "message": message}}
            rows.append(one)
        ends.append(ended(level, level * 60_000_000, level * 60_000_000 + 30_000_000))
    levels = [{"level": level, "concurrency": slots} for level, slots in enumerate((1, 2, 64, 128, 256, 512))]
    return write(directory, rows, ends, header(model=model, levels=levels))
