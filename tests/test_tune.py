"""Settings in randomised blocks on real processes: what is written, what is a result, what is gone on with."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen import grid
from loadgen.cli.options import Options
from loadgen.cli.options import settings as settings_of
from loadgen.launch import Occupied
from loadgen.record import LevelPlan, LevelRow, Row
from loadgen.run import Outcome, Watcher
from loadgen.settings import Settings
from loadgen.tune import Plan, TuneRun, Watch, remaining, tune
from tests.fakes_api import on_uvloop
from tests.fakes_tls import little_trust
from tests.test_launch import free_port
from tests.test_supervisor import alive

__all__ = ["little_trust"]

pytestmark = pytest.mark.usefixtures("little_trust")

SPEC = "llama-3.1-8b@h100"
SIM = f"sim:{SPEC},max_num_seqs={{n}}"
# The simulated engine in a process that has a child; or none that serves; or one that dies when a file is there.
SERVER = f"""
import os, subprocess, sys, threading, time
mode, port = sys.argv[1:3]
print("key", os.environ.get("KEY"), sys.argv, flush=True)
if mode == "dead":
    sys.exit("out of memory")
print("pids", os.getpid(), subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
if mode == "slow":
    time.sleep(1000)
def die():
    while not os.path.exists("die"):
        time.sleep(0.01)
    os._exit(9)
if mode == "dying":
    threading.Thread(target=die, daemon=True).start()
sys.argv = ["loadgen", "sim", "{SPEC}", "--port", port]
from loadgen.cli.app import main
main()
"""


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("server.py").write_text(SERVER)
    yield
    assert [pid for log in tmp_path.rglob("*.log*") for pid in pids(log) if alive(pid)] == []


def pids(log: Path) -> list[int]:
    lines = (line.split() for line in log.read_text().splitlines())
    return [int(word) for line in lines if line[:1] == ["pids"] for word in line[1:]]


def load(**flags: Any) -> Settings:
    usual: dict[str, Any] = {
        "concurrency": "2",
        "requests": 4,
        "input": "16",
        "output": "2",
        "seed": 5,
        "metrics": ("none",),
    }
    return settings_of("localhost:1", Options(**(usual | flags)))


def simulated(*values: str, blocks: int = 1) -> Plan:
    chosen = grid.settings([f"n={','.join(values)}"], paired=False)
    return Plan(launch=None, target=SIM, settings=chosen, blocks=blocks, ready_s=20)


def launched(*texts: str, launch: str = "{mode}", blocks: int = 1) -> Plan:
    port = free_port()
    command = f"{sys.executable} server.py {launch.replace('{mode}', f'{{mode}} {port}')}"
    chosen = grid.settings(texts, paired=False)
    return Plan(launch=command, target=f"http://127.0.0.1:{port}", settings=chosen, blocks=blocks, ready_s=50)


class Told:
    def __init__(self, on_row: Callable[[], None] = lambda: None) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.ended: list[tuple[TuneRun, str]] = []
        self._on_row = on_row

    def watch(self) -> Watch:
        return Watch(on_run=self._begins, on_end=lambda *what: self.ended.append(what), watcher=self._watcher)

    def _begins(self, run: TuneRun, left: int) -> None:
        self.begun.append((run.block, run.setting, left))

    def _watcher(self, settings: Settings) -> Watcher:
        def row(_: Row) -> None:
            self._on_row()

        def after_level(_: Path, __: LevelRow) -> bool:
            return True

        def level(_: LevelPlan) -> None:
            pass

        return Watcher(on_begin=lambda *_: None, on_level=level, on_row=row, after_level=after_level)


def kept() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path("out/tune.json").read_text())
    return read


async def done(plan: Plan, told: Told | None = None, **flags: Any) -> bool:
    return await tune(plan, load(**flags), Path("out"), (told or Told()).watch())


@given(st.integers(0, 2**63), st.integers(1, 8), st.integers(1, 4))
def test_every_block_has_every_setting_once_in_an_order_of_its_own(seed: int, count: int, blocks: int) -> None:
    plan = simulated(*map(str, range(count)), blocks=blocks)
    runs = list(remaining(plan, seed, []))
    assert runs == list(remaining(plan, seed, []))
    for block in range(blocks):
        there = [run for run in runs if run.block == block]
        assert [run.order for run in there] == list(range(count))
        assert sorted(run.setting for run in there) == list(range(count))
    more = list(remaining(msgspec.structs.replace(plan, blocks=blocks + 1), seed, []))
    assert more[: len(runs)] == runs  # further blocks change none


def test_orders_are_drawn_alike() -> None:
    """Each place of a setting comes as often as another: 600 of 1800, give or take five standard deviations."""
    plan = simulated("1", "2", "3", blocks=1800)
    places = [run.order for run in remaining(plan, 0, []) if run.setting == 0]
    assert all(abs(places.count(place) - 600) < 100 for place in range(3))


def test_names_of_files_are_safe_and_differ() -> None:
    chosen = grid.settings(["env:A=x/../y,x/../y"], paired=False)
    plan = msgspec.structs.replace(simulated("1"), settings=chosen)
    assert sorted(str(run.directory) for run in remaining(plan, 0, [])) == [
        "block-0/env-A=x-..-y",
        "block-0/env-A=x-..-y-2",
    ]


@on_uvloop
async def test_a_tune_of_the_simulated_engine() -> None:
    told = Told()
    assert await done(simulated("1", "8", blocks=2), told)
    read = kept()
    assert {key: read[key] for key in ("format", "launch", "target", "settings", "blocks", "seed")} == {
        "format": 1,
        "launch": None,
        "target": SIM,
        "settings": [{"name": "n=1", "values": {"n": "1"}}, {"name": "n=8", "values": {"n": "8"}}],
        "blocks": 2,
        "seed": 5,
    }
    assert [(run["block"], run["setting"]) for run in read["runs"]] == [begun[:2] for begun in told.begun]
    assert [left for *_, left in told.begun] == [4, 3, 2, 1]
    digests: dict[int, set[str]] = {0: set(), 1: set()}
    for run in read["runs"]:
        name = read["settings"][run["setting"]]["name"]
        assert (run["directory"], run["error"], run["log"]) == (f"block-{run['block']}/{name}", None, None)
        header = json.loads(Path("out", run["directory"], "run.json").read_text())
        assert header["seed"] == header["options"]["seed"] == 5 + run["block"]
        assert header["target"] == f"sim:{SPEC},max_num_seqs={name[2:]}"
        digests[run["block"]].add(header["workload"]["digest"])
    assert [len(some) for some in digests.values()] == [1, 1]
    assert digests[0] != digests[1]


@on_uvloop
async def test_every_setting_records_its_own_hardware() -> None:
    chosen = grid.settings(["n=1,2"], paired=False)
    plan = Plan(launch=None, target=f"sim:{SPEC},gpus={{n}}", settings=chosen, blocks=1, ready_s=20)
    assert await done(plan)
    headers = [json.loads(path.read_text()) for path in sorted(Path("out").rglob("run.json"))]
    assert [header["hardware"]["gpus"] for header in headers] == [1, 2]
    said = msgspec.structs.replace(load(), hardware="@h200,dtype=fp8,gpus={n}")
    assert await tune(plan, said, Path("said"), Told().watch())
    headers = [json.loads(path.read_text()) for path in sorted(Path("said").rglob("run.json"))]
    assert [(one["hardware"]["gpu"]["name"], one["hardware"]["gpus"]) for one in headers] == [("h200", 1), ("h200", 2)]
    assert [one["options"]["hardware"] for one in headers] == [f"@h200,dtype=fp8,gpus={n}" for n in (1, 2)]


@on_uvloop
async def test_what_cannot_be_measured_is_a_result() -> None:
    told = Told(on_row=lambda: Path("die").touch() if Path("out/block-0/mode=dying").exists() else None)
    assert await done(launched("mode=good,dead,dying"), told, requests=100_000, duration="1s")
    read = kept()
    results = {read["settings"][run["setting"]]["values"]["mode"]: run for run in read["runs"]}
    assert {mode: run["error"] for mode, run in results.items()} == {
        "good": None,
        "dead": "the server ended with exit code 1 before it was ready",
        "dying": "the server ended with exit code 9 during the load",
    }
    assert {mode: run["directory"] for mode, run in results.items()} == {
        "good": "block-0/mode=good",
        "dead": None,
        "dying": "block-0/mode=dying",  # what it did before
    }
    assert [end.splitlines()[-1] for run, end in told.ended if run.setting == 1] == ["out of memory"]
    for run in results.values():
        assert Path("out", run["log"]).stat().st_size


@on_uvloop
async def test_a_server_that_died_is_noticed_also_after_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every request fails at once, the load ends before the server's children have."""

    async def play(settings: Settings, __: Watcher) -> Outcome:
        Path("die").touch()
        for _ in range(1000):
            try:
                socket.create_connection(("127.0.0.1", int(settings.target.rpartition(":")[2]))).close()
            except OSError:
                break
            await asyncio.sleep(0.002)
        assert settings.out is not None
        return Outcome(settings.out, False)

    monkeypatch.setattr("loadgen.tune.run", play)
    with pytest.raises(ValueError, match=r"the last one: the server ended with exit code 9 during the load"):
        await done(launched("mode=dying"))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that take no time; the seeds and targets of those so far. The one with 0 cannot be measured."""
    made: list[str] = []

    async def play(settings: Settings, _: Watcher) -> Outcome:
        made.append(f"{settings.target.rpartition('=')[2]} seed {settings.seed}")
        if settings.target.endswith("=0"):
            raise ValueError("no room")
        assert settings.out is not None
        settings.out.mkdir()
        (settings.out / "run.json").write_text(str(len(made)))
        return Outcome(settings.out, False)

    monkeypatch.setattr("loadgen.tune.run", play)
    return made


async def test_the_same_call_goes_on_with_what_is_missing_or_failed(played: list[str]) -> None:
    plan = simulated("1", "0", "8", blocks=2)
    assert await done(plan)
    first = kept()["runs"]
    assert sorted(played) == ["0 seed 5", "0 seed 6", "1 seed 5", "1 seed 6", "8 seed 5", "8 seed 6"]
    assert [(run["directory"], run["error"]) for run in first if run["setting"] == 1] == [(None, "no room")] * 2
    lost = next(run for run in first if run["setting"] == 2)  # cut by a crash: it is there, and not in tune.json
    Path("out/tune.json").write_text(json.dumps(kept() | {"runs": [run for run in first if run is not lost]}))
    before = {path: path.read_text() for path in Path("out").glob("*/*/run.json")}
    played.clear()
    assert await done(plan)
    assert sorted(played) == ["0 seed 5", "0 seed 6", f"8 seed {5 + lost['block']}"]
    assert len(kept()["runs"]) == 6
    cut = Path("out", lost["directory"], "run.json")
    assert {path for path, text in before.items() if path.read_text() != text} == {cut}
    assert Path("out", f"{lost['directory']}.old-1", "run.json").read_text() == before[cut]


async def test_more_repeats_are_more_blocks(played: list[str]) -> None:
    plan = simulated("1", "8", blocks=1)
    assert await done(plan)
    played.clear()
    assert await done(msgspec.structs.replace(plan, blocks=2))
    assert sorted(played) == ["1 seed 6", "8 seed 6"]
    assert kept()["blocks"] == 2
    assert await done(plan)
    assert (len(played), kept()["blocks"], len(kept()["runs"])) == (2, 2, 4)


@pytest.mark.parametrize(
    ("plan", "flags", "what"),
    [
        (simulated("1", "4"), {}, "settings"),
        (simulated("1"), {"seed": 6}, "seed"),
        (simulated("1"), {"requests": 5}, "options"),
        (msgspec.structs.replace(simulated("1"), target=f"{SIM},gpus=2"), {}, "target"),
    ],
)
async def test_other_flags_are_refused(plan: Plan, flags: dict[str, Any], what: str, played: list[str]) -> None:
    assert await done(simulated("1"))
    with pytest.raises(ValueError, match=f"^out holds a tune with another {what}: choose another --out, or the same"):
        await done(plan, **flags)


@pytest.mark.parametrize(
    ("content", "says"), [(None, "out exists already and holds no tune"), ("{", "out/tune.json cannot be read")]
)
async def test_another_directory_is_left_alone(content: str | None, says: str) -> None:
    Path("out").mkdir()
    if content is not None:
        Path("out/tune.json").write_text(content)
    with pytest.raises(ValueError, match=f"^{says}"):
        await done(simulated("1"))
    assert os.listdir("out") == ([] if content is None else ["tune.json"])


@on_uvloop
async def test_an_interrupt_in_the_load_stops_the_server_and_keeps_the_rows() -> None:
    sent: list[int] = []

    def interrupt() -> None:
        if not sent and sum(1 for _ in Path("out").glob("block-*/*/run.json")) == 2:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    plan = launched("mode=good,fine")
    assert await done(plan, Told(interrupt)) is False
    (run,) = kept()["runs"]
    (cut,) = (path for path in Path("out/block-0").glob("mode=*[!g]") if str(path) != f"out/{run['directory']}")
    ends = [json.loads(line)["ended_by"] for line in (cut / "levels.jsonl").read_text().splitlines()]
    assert ends == ["interrupt"]
    assert await done(plan)
    assert [one["error"] for one in kept()["runs"]] == [None, None]
    assert sorted(path.name for path in Path("out/block-0").glob("*.old-1")) == [
        f"{cut.name}.log.old-1",
        f"{cut.name}.old-1",
    ]


@on_uvloop
async def test_an_interrupt_while_a_server_starts_stops_it() -> None:
    class Impatient(Told):
        def _begins(self, run: TuneRun, left: int) -> None:
            asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGTERM)

    with pytest.raises(asyncio.CancelledError):
        await done(launched("mode=slow"), Impatient())
    assert kept()["runs"] == []


async def test_where_no_setting_can_be_measured_the_first_block_is_the_last(played: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^no setting could be measured; the last one: no room"):
        await done(simulated("0", "0", blocks=3))
    assert [run["block"] for run in kept()["runs"]] == [0, 0]


@on_uvloop
async def test_somebody_elses_server_ends_the_tune() -> None:
    plan = launched("mode=good,fine")
    port = int(plan.target.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Occupied, match="something answers at"):
        await done(plan)
    assert not Path("out").exists()


@on_uvloop
async def test_secrets_show_nowhere() -> None:
    plan = launched("mode=good,dead", "env:KEY=hush-env", launch="{mode} --api-key hush-flag --user-token hush-token")
    assert await done(plan)
    read = kept()
    assert read["launch"].endswith("--api-key *** --user-token ***")
    assert read["settings"][0] == {"name": "mode=good,env:KEY=***", "values": {"mode": "good", "env:KEY": "***"}}
    assert "key *** [" in Path("out", read["runs"][0]["log"]).read_text()
    assert [path for path in Path("out").rglob("*") if path.is_file() and b"hush" in path.read_bytes()] == []
