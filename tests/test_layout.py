"""The architecture as tests. Each check is a function of the sources, and is shown to notice a small violation."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("loadgen", "workloads", "analysis")
PURE = ("workloads", "analysis")
# The shell around the analysis. The engine in sim/ stands on the same floors and catalogue.
MAY_IMPORT_ANALYSIS = ("loadgen/cli/", "loadgen/sim/", "loadgen/steps.py", "loadgen/enough.py", "loadgen/machine.py")
HOT_PATH = [f"loadgen/{name}.py" for name in ("transport", "sse", "dialects", "exchange", "pacing", "record")]
PARSERS = ("loadgen/sse.py", "loadgen/dialects.py", "loadgen/sim/engine.py")
CLOCK = "loadgen/clock.py"
CLOCKS = {"time", "monotonic", "perf_counter", "clock_gettime"}
IO_MODULES = {"asyncio", "http", "httpx", "selectors", "socket", "ssl", "subprocess", "urllib.request", "uvloop"}
MAX_LINES = 400
EXCHANGE = "loadgen/exchange.py"
MAX_LINES_OF_AN_EXCHANGE = 1600  # "about 1,500"
TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "Makefile", "docker-compose.yml"),
    *("loadgen", "workloads", "analysis", "tests", "docs"),
}
# Modules without a tests/test_<module>.py of their own, and why.
NO_TEST_OF_ITS_OWN = {
    "loadgen/settings.py": "one struct without behaviour",
    "workloads/request.py": "one struct without behaviour",
    "workloads/words.py": "a list, held against real tokenizers in test_tokens.py",
}

Sources = Mapping[str, str]  # path from the root -> text
Imports = dict[str, set[str]]


def real_sources() -> Sources:
    """Files on disk rather than those git knows: a new file is checked before it is added."""
    modules = (path for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(modules)}


def ours(sources: Sources) -> Sources:
    return {path: text for path, text in sources.items() if path.startswith(tuple(f"{p}/" for p in PACKAGES))}


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str, text: str) -> Iterator[str]:
    """Names imported anywhere in a file, absolute; for `from a import b` both `a` and `a.b`, as b may be a module."""
    package = path.split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def imports(sources: Sources) -> Imports:
    return {path: set(imported(path, text)) for path, text in sources.items()}


def within(names: Iterable[str], roots: Iterable[str]) -> list[str]:
    """Those of the names that are one of the roots, or lie under one."""
    return sorted(name for name in names if any(name == root or name.startswith(f"{root}.") for root in roots))


def module_graph(sources: Sources) -> Imports:
    """Path -> paths of ours that it imports. An empty `__init__` imports nothing, so packages are left out."""
    paths = {module_name(path): path for path in ours(sources) if not path.endswith("/__init__.py")}
    return {path: {paths[n] for n in imported(path, sources[path]) if n in paths} for path in paths.values()}


def reachable(graph: Imports, start: str) -> set[str]:
    reached, ahead = set[str](), [start]
    while ahead:
        path = ahead.pop()
        if path not in reached:
            reached.add(path)
            ahead.extend(graph.get(path, ()))
    return reached


# The checks: each returns what is wrong, one line a finding.


def packages_point_one_way(sources: Sources) -> list[str]:
    forbidden = {pure: [package for package in PACKAGES if package != pure] for pure in PURE}
    found = imports(ours(sources))
    return [f"{p} imports {n}" for p in found for n in within(found[p], forbidden.get(p.split("/")[0], []))]


def pure_packages_do_no_io(sources: Sources) -> list[str]:
    found = imports(ours(sources))
    return [f"{p} imports {n}" for p in found if p.startswith(PURE) for n in within(found[p], IO_MODULES)]


def only_the_shell_imports_analysis(sources: Sources) -> list[str]:
    found = imports(ours(sources))
    inside = (p for p in found if p.startswith("loadgen/") and not p.startswith(MAY_IMPORT_ANALYSIS))
    return [f"{p} imports {n}" for p in inside for n in within(found[p], ["analysis"])]


def hot_path_never_reaches_analysis(sources: Sources) -> list[str]:
    """Not through another module either: what is imported is also started up."""
    graph = module_graph(sources)
    reached = {start: sorted(reachable(graph, start)) for start in HOT_PATH}
    return [f"{start} reaches {path}" for start in HOT_PATH for path in reached[start] if path.startswith("analysis/")]


def one_request_is_a_short_read(sources: Sources) -> list[str]:
    """What has to be read to trust a measurement of one request."""
    lines = sum(len(sources.get(path, "").splitlines()) for path in reachable(module_graph(sources), EXCHANGE))
    return [f"{EXCHANGE} and what it imports of ours have {lines} lines"] if lines > MAX_LINES_OF_AN_EXCHANGE else []


def package_files_are_empty(sources: Sources) -> list[str]:
    return [path for path, text in sources.items() if path.endswith("__init__.py") and text]


def no_import_cycles(sources: Sources) -> list[str]:
    try:
        graphlib.TopologicalSorter(module_graph(sources)).prepare()
    except graphlib.CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def nothing_random_outside_the_simulator(sources: Sources) -> list[str]:
    problems = []
    for path, text in sources.items():
        if path.startswith("loadgen/") and not path.startswith("loadgen/sim/"):
            problems += [f"{path} imports {n}" for n in within(imported(path, text), ["random", "numpy.random"])]
            problems += [
                f"{path}:{node.lineno} uses {ast.unparse(node)}"
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute) and ast.unparse(node) in {"np.random", "numpy.random"}
            ]
    return problems


def clock_readings(text: str) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(text)))
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    time_names = {alias.asname or alias.name for alias in aliases if alias.name == "time"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{alias.name}" for alias in node.names if alias.name.removesuffix("_ns") in CLOCKS)
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            of_time = owner in time_names and node.attr.removesuffix("_ns") in CLOCKS
            of_date = owner.split(".")[-1] in {"datetime", "date"} and node.attr in {"now", "utcnow", "today"}
            if of_time or of_date:
                yield f"{owner}.{node.attr}"


def only_the_clock_reads_a_clock(sources: Sources) -> list[str]:
    """`loop.time()` is no reading in this sense: timers need it, and no record is made of it."""
    return [f"{p} reads {r}" for p, text in ours(sources).items() if p != CLOCK for r in clock_readings(text)]


def parsers_do_no_io(sources: Sources) -> list[str]:
    texts = {path: sources[path] for path in PARSERS if path in sources}
    return [f"{p} imports {n}" for p, t in texts.items() for n in within(imported(p, t), ["asyncio", "socket", "time"])]


def files_are_short(sources: Sources) -> list[str]:
    lengths = {path: len(text.splitlines()) for path, text in sources.items()}
    return [f"{path} has {lines} lines" for path, lines in lengths.items() if lines > MAX_LINES]


def every_module_has_a_test(sources: Sources) -> list[str]:
    """Where two packages have a module of one name, a test of that name would be of one of them only."""
    modules = [path for path in ours(sources) if re.fullmatch(r"\w+/(?!__init__)\w+\.py", path)]
    names = [path.split("/")[1] for path in modules]
    tests = {
        path: f"tests/test_{name if names.count(name) == 1 else path.replace('/', '_')}"
        for path, name in zip(modules, names, strict=True)
        if path not in NO_TEST_OF_ITS_OWN
    }
    return [f"{path} has no {test}" for path, test in tests.items() if test not in sources]


Check = Callable[[Sources], list[str]]
VIOLATIONS: list[tuple[Check, Sources]] = [
    (packages_point_one_way, {"workloads/plan.py": "import loadgen.clock"}),
    (packages_point_one_way, {"workloads/plan.py": "from analysis import slo"}),
    (packages_point_one_way, {"analysis/slo.py": "def f():\n    from workloads.request import Request"}),
    (packages_point_one_way, {"analysis/slo.py": "from ..loadgen import clock"}),
    (pure_packages_do_no_io, {"workloads/tokens.py": "from urllib import request"}),
    (pure_packages_do_no_io, {"analysis/report.py": "import httpx"}),
    (only_the_shell_imports_analysis, {"loadgen/run.py": "from analysis.slo import parse"}),
    (only_the_shell_imports_analysis, {"loadgen/searching.py": "import analysis"}),
    (
        hot_path_never_reaches_analysis,
        {
            "loadgen/exchange.py": "from loadgen import steps",
            "loadgen/steps.py": "from analysis import slo",
            "analysis/slo.py": "",
        },
    ),
    (
        one_request_is_a_short_read,
        {EXCHANGE: "import loadgen.sse", "loadgen/sse.py": "x = 1\n" * MAX_LINES_OF_AN_EXCHANGE},
    ),
    (package_files_are_empty, {"loadgen/cli/__init__.py": "from loadgen.cli.app import main"}),
    (no_import_cycles, {"loadgen/a.py": "from loadgen import b", "loadgen/b.py": "from .a import x"}),
    (no_import_cycles, {"loadgen/a.py": "import loadgen.sim.b", "loadgen/sim/b.py": "def f():\n    from ..a import x"}),
    (nothing_random_outside_the_simulator, {"loadgen/pacing.py": "import random"}),
    (nothing_random_outside_the_simulator, {"loadgen/pacing.py": "from numpy.random import default_rng"}),
    (nothing_random_outside_the_simulator, {"loadgen/pacing.py": "import numpy as np\nnp.random.default_rng()"}),
    (only_the_clock_reads_a_clock, {"loadgen/exchange.py": "import time\ntime.perf_counter_ns()"}),
    (only_the_clock_reads_a_clock, {"loadgen/exchange.py": "import time as t\nnow = t.monotonic"}),
    (only_the_clock_reads_a_clock, {"loadgen/sim/truth.py": "from time import clock_gettime_ns"}),
    (only_the_clock_reads_a_clock, {"analysis/report.py": "import datetime\ndatetime.datetime.now(datetime.UTC)"}),
    (only_the_clock_reads_a_clock, {"loadgen/run.py": "from datetime import datetime\ndatetime.now()"}),
    (parsers_do_no_io, {"loadgen/sse.py": "import asyncio"}),
    (parsers_do_no_io, {"loadgen/dialects.py": "from time import sleep"}),
    (parsers_do_no_io, {"loadgen/sim/engine.py": "import socket"}),
    (files_are_short, {"tests/test_slo.py": "x = 1\n" * (MAX_LINES + 1)}),
    (every_module_has_a_test, {"workloads/plan.py": "", "tests/test_plans.py": ""}),
    (every_module_has_a_test, {"workloads/plan.py": "", "loadgen/plan.py": "", "tests/test_plan.py": ""}),
]
ALLOWED: Sources = {
    "loadgen/__init__.py": "",
    "loadgen/clock.py": "import time\ntime.monotonic_ns()",
    "loadgen/pacing.py": "import asyncio\nfrom loadgen import clock\nasyncio.get_running_loop().time()\nclock.now()",
    "loadgen/steps.py": "from analysis import slo\nimport time\ntime.sleep(0)\ntime.process_time()",
    "loadgen/sim/engine.py": "import random\nfrom analysis.floors import decode",
    "workloads/plan.py": "from workloads import request\nfrom datetime import datetime\ndatetime.fromisoformat('')",
    "analysis/slo.py": "import time_machine",
    **{f"tests/test_{name}.py": "" for name in ("clock", "pacing", "steps", "plan", "slo")},
}
CHECKS = list(dict.fromkeys(check for check, _ in VIOLATIONS))


def name_of(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.fixture(scope="module")
def sources() -> Sources:
    return real_sources()


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_the_architecture_holds(check: Check, sources: Sources) -> None:
    assert check(sources) == []


@pytest.mark.parametrize(("check", "violation"), VIOLATIONS, ids=name_of)
def test_the_check_notices(check: Check, violation: Sources) -> None:
    assert len(check(violation)) >= 1


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_the_check_allows(check: Check) -> None:
    assert check(ALLOWED) == []


def test_exceptions_are_about_files_that_exist(sources: Sources) -> None:
    paths = {*NO_TEST_OF_ITS_OWN, CLOCK, EXCHANGE, *PARSERS, *HOT_PATH}
    assert sorted(paths - set(sources)) == []


def not_allowed(tracked: Iterable[str]) -> list[str]:
    top = {path.split("/")[0] for path in tracked}
    return sorted(name for name in top - TOP_LEVEL if not name.startswith("."))


def test_top_level_holds_only_what_is_known() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the project cannot be told from what lies about")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pyproject.toml" in listed.splitlines()
    assert not_allowed(listed.splitlines()) == []


def test_a_stray_file_is_noticed() -> None:
    assert not_allowed(["README.md", ".ci/run", "notes.txt", "utils/x.py"]) == ["notes.txt", "utils"]


def careless_dependencies(pyproject: str) -> list[str]:
    """Requirements of the project without an upper bound, or without a comment on their line that says why."""
    project = tomllib.loads(pyproject)["project"]
    extras = project.get("optional-dependencies", {}).values()
    requirements = [*project["dependencies"], *(one for extra in extras for one in extra)]
    lines = pyproject.splitlines()
    explained = {name for name in requirements if any(re.search(rf'"{re.escape(name)}",?\s*# \S', ln) for ln in lines)}
    return [name for name in requirements if "<" not in name or name not in explained]


def test_every_dependency_has_an_upper_bound_and_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert careless_dependencies(text) == []
    assert [name for name in tomllib.loads(text)["build-system"]["requires"] if "<" not in name] == []


def test_a_careless_dependency_is_noticed() -> None:
    text = '[project]\ndependencies = [\n"a>=1",  # why\n"b>=1,<2",\n"c>=1,<2",  # why\n]\n'
    assert careless_dependencies(text) == ["a>=1", "b>=1,<2"]


def unnamed_commands(help_text: str, readme: str) -> list[str]:
    """Commands of the panel that `loadgen --help` draws, without those the README shows."""
    panel = re.search(r"Commands ─.*?╰", help_text, re.DOTALL)
    commands = re.findall(r"^│ ([a-z][\w-]*)\s", panel[0], re.MULTILINE) if panel else []
    assert commands, f"no commands found in:\n{help_text}"
    return [command for command in commands if not re.search(rf"loadgen {command}\b", readme)]


def test_readme_names_every_command() -> None:
    loadgen = Path(sys.executable).with_name("loadgen")
    help_text = subprocess.run([loadgen, "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    assert unnamed_commands(help_text, (ROOT / "README.md").read_text()) == []


def test_an_unnamed_command_is_noticed() -> None:
    rows = [
        "Usage",
        "╭─ Commands ────╮",
        "│ run  Measure  │",
        "│      more.    │",
        "│ slo  Holds?   │",
        "╰───────────────╯",
    ]
    assert unnamed_commands("\n".join(rows), "Try `loadgen run URL` and loadgen slope.") == ["slo"]
