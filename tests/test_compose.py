"""docker-compose.yml is one that Compose would take, leaks nothing, and calls the loadgen of this checkout."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text()
# Every ${...} of the file. One without a usable default would make a plain `docker compose up` fail or warn.
VARIABLES = re.findall(r"\$\{([^}]*)\}", TEXT)
DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
SECRET_NAME = re.compile(r"token|key|secret|password", re.IGNORECASE)
SECRET_VALUE = re.compile(r"\b(hf_|sk-|nvapi-)\w{8}|Bearer ", re.IGNORECASE)


def with_defaults(text: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


COMPOSE: dict[str, Any] = yaml.safe_load(with_defaults(TEXT))
VLLM: dict[str, Any] = COMPOSE["services"]["vllm"]
LOADGEN: dict[str, Any] = COMPOSE["services"]["loadgen"]
DOCKERFILE: str = LOADGEN["build"]["dockerfile_inline"]


def seconds(duration: str) -> int:
    parts = DURATION.fullmatch(duration)
    assert parts, f"{duration!r} is no duration"
    assert any(parts.groups()), f"{duration!r} is no duration"
    hours, minutes, rest = (int(part or 0) for part in parts.groups())
    return 3600 * hours + 60 * minutes + rest


def instructions(name: str) -> list[str]:
    """The arguments of each `name` line of the Dockerfile."""
    return [line.removeprefix(name).strip() for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_two_services_each_an_image_or_a_build() -> None:
    assert set(COMPOSE["services"]) == {"vllm", "loadgen"}
    assert set(COMPOSE) == {"name", "services", "volumes"}  # no obsolete `version`
    assert VLLM["image"].startswith("vllm/vllm-openai:")
    assert "build" not in VLLM
    assert "image" not in LOADGEN


def test_every_variable_has_a_default() -> None:
    assert len(VARIABLES) >= 5
    assert [variable for variable in VARIABLES if not re.fullmatch(r"[A-Z_]+:-[^\s]+", variable)] == []
    assert "$" not in with_defaults(TEXT)


def test_a_variable_has_the_same_default_everywhere() -> None:
    names = [variable.partition(":-")[0] for variable in set(VARIABLES)]
    assert sorted(names) == sorted(set(names))


def test_the_comment_on_top_names_every_variable() -> None:
    comment = TEXT.partition("\nname:")[0]
    names = {variable.partition(":-")[0] for variable in VARIABLES}
    assert sorted(name for name in names if name not in comment) == []


@pytest.mark.parametrize("service", COMPOSE["services"].values(), ids=COMPOSE["services"].keys())
def test_no_secret_has_a_value(service: dict[str, Any]) -> None:
    environment = service.get("environment", {})
    assert isinstance(environment, dict), "a map, so that a name without a value shows as null"
    assert {name: value for name, value in environment.items() if SECRET_NAME.search(name) and value is not None} == {}
    assert not SECRET_VALUE.search(TEXT)


def test_the_hugging_face_token_comes_from_the_shell() -> None:
    assert VLLM["environment"]["HF_TOKEN"] is None


def test_health_check_has_its_fields_and_time_for_a_download() -> None:
    check = VLLM["healthcheck"]
    assert set(check) == {"test", "interval", "timeout", "retries", "start_period"}
    assert check["test"][0] == "CMD"
    assert "/health" in check["test"][-1]
    assert seconds(check["timeout"]) <= seconds(check["interval"]) <= 30
    assert seconds(check["start_period"]) >= 600
    assert isinstance(check["retries"], int)
    compile(check["test"][-1], "healthcheck", "exec")


def test_loadgen_waits_for_a_healthy_vllm() -> None:
    assert LOADGEN["depends_on"] == {"vllm": {"condition": "service_healthy"}}


def test_the_gpu_is_reserved_and_shared_memory_is_not_the_default() -> None:
    (device,) = VLLM["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert VLLM.get("ipc") == "host" or "shm_size" in VLLM


def test_volumes_are_declared_and_the_port_stays_on_this_machine() -> None:
    named = {source for source in (volume.partition(":")[0] for volume in VLLM["volumes"]) if "/" not in source}
    assert named == set(COMPOSE["volumes"])
    assert [port for port in VLLM["ports"] if not re.fullmatch(r"127\.0\.0\.1:\d+:8000", port)] == []


def test_vllm_gets_the_model_and_max_num_seqs() -> None:
    command = yaml.safe_load(TEXT)["services"]["vllm"]["command"]
    assert command[0].startswith("${MODEL:-")
    assert command[command.index("--max-num-seqs") + 1].startswith("${MAX_NUM_SEQS:-")
    assert command[command.index("--tensor-parallel-size") + 1].startswith("${GPUS:-")


def test_the_image_copies_what_the_package_is_built_from() -> None:
    copied = {source for line in instructions("COPY") for source in line.split()[:-1]}
    project = pyproject()
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert copied == {*packages, project["project"]["readme"], "pyproject.toml", *project["project"]["license-files"]}
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_image_has_a_python_the_package_takes() -> None:
    (image,) = instructions("FROM")
    found = re.fullmatch(r"python:3\.(\d+)-slim", image)
    lowest = re.fullmatch(r">=3\.(\d+)", pyproject()["project"]["requires-python"])
    assert found
    assert lowest
    assert int(found[1]) >= int(lowest[1])


def test_the_entrypoint_is_a_console_script() -> None:
    (entrypoint,) = instructions("ENTRYPOINT")
    assert yaml.safe_load(entrypoint) == ["loadgen"]
    assert "loadgen" in pyproject()["project"]["scripts"]


def test_results_go_to_the_mounted_folder_under_a_free_name() -> None:
    # --out is never overwritten, so a fixed one would work once; the default is a new name under ./runs.
    assert "--out" not in LOADGEN["command"]
    assert LOADGEN["working_dir"] == "/"
    assert LOADGEN["volumes"] == ["./runs:/runs"]


def test_loadgen_measures_the_service_on_its_port() -> None:
    command, target = LOADGEN["command"][:2]
    assert (command, target) == ("run", "http://vllm:8000")


def test_run_knows_every_flag() -> None:
    loadgen = Path(sys.executable).with_name("loadgen")
    known = subprocess.run([loadgen, "run", "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    in_comment = re.findall(r"docker compose run --rm loadgen (.*)", TEXT)
    assert in_comment
    words = [*LOADGEN["command"], *(word for line in in_comment for word in shlex.split(line))]
    flags = {word for word in words if word.startswith("--")}
    assert {"--concurrency", "--workload"} <= flags
    assert sorted(flag for flag in flags if not re.search(rf"{flag}\b", known)) == []
