"""Settings from --set, and the commands they make."""

import shlex
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.grid import Setting, check, filled, port_of, renamed, secrets_of_command, settings, words

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.text("aZ0,-=.:/{}é", max_size=8)


def names(*texts: str, paired: bool = False) -> list[str]:
    return [one.name for one in settings(texts, paired=paired)]


def test_one_flag_one_setting_a_value() -> None:
    assert settings(["n=16, 64"], paired=False) == (Setting("n=16", {"n": "16"}), Setting("n=64", {"n": "64"}))


def test_several_make_every_combination_in_order() -> None:
    assert names("a=1,2", "env:B=x,y") == ["a=1,env:B=x", "a=1,env:B=y", "a=2,env:B=x", "a=2,env:B=y"]


def test_paired_takes_them_side_by_side() -> None:
    assert names("a=1,2", "b=x,y", paired=True) == ["a=1,b=x", "a=2,b=y"]


def test_the_same_value_twice_is_twice_a_setting() -> None:
    assert names("n=16,16") == ["n=16", "n=16"]


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_every_value_comes_back(wanted: dict[str, list[str]]) -> None:
    texts = [name + "=" + ",".join(value.replace(",", r"\,") for value in values) for name, values in wanted.items()]
    made = settings(texts, paired=False)
    assert {name: list(dict.fromkeys(one.values[name] for one in made)) for name in wanted} == {
        name: list(dict.fromkeys(values)) for name, values in wanted.items()
    }


@pytest.mark.parametrize(
    ("texts", "paired", "says"),
    [
        (["n"], False, "--set n: expected NAME=V1,V2 or env:NAME=V1,V2"),
        (["1n=2"], False, "--set 1n: expected"),
        (["env:=2"], False, "--set env:: expected"),
        (["=2"], False, "--set : expected"),
        (["n=1", "n=2"], False, "--set n is given twice: write all its values in one, n=V1,V2"),
        (["a=1,2", "b=1"], True, "--paired takes as many values of each --set: a has 2, b has 1"),
    ],
)
def test_what_is_no_setting_is_refused(texts: Sequence[str], paired: bool, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        settings(texts, paired=paired)


def test_a_placeholder_and_a_value_need_each_other() -> None:
    chosen = settings(["n=1", "env:E=2"], paired=False)
    check(["serve --max {n}"], chosen)
    check(["serve", "http://localhost:{n}"], chosen)
    with pytest.raises(ValueError, match=r"^\{m\} has no value: say --set m=V1,V2$"):
        check(["serve {n} {m}"], chosen)
    with pytest.raises(ValueError, match=r"^--set n changes nothing: write \{n\} where its value belongs$"):
        check(["serve n {E}".replace("{E}", "")], chosen)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("serve --max {n}", ["serve", "--max", "16"]),
        ("serve --max={n} --x '{flags}'", ["serve", "--max=16", "--x", "--a --b"]),
        ("serve {flags} {none} {n}", ["serve", "--a", "--b", "16"]),
        ("serve --j '{\"k\": {n}}' '{{ n }}' '{{n}}'", ["serve", "--j", '{"k": 16}', "{{ n }}", "{{n}}"]),
        ("bash -c 'a; b {n}'", ["bash", "-c", "a; b 16"]),
        ("serve $HOME *", ["serve", "$HOME", "*"]),  # no shell
    ],
)
def test_values_take_the_place_of_their_names(launch: str, expected: list[str]) -> None:
    assert words(launch, Setting("", {"n": "16", "flags": "--a --b", "none": ""})) == expected


def test_environment_is_no_placeholder() -> None:
    setting = Setting("", {"n": "{n}", "env:N": "2"})
    assert filled("{n} {env:N}", setting) == "{n} {env:N}"
    assert setting.environment == {"N": "2"}


@pytest.mark.parametrize(
    ("launch", "says"),
    [("serve 'x", "--launch cannot be split into words, as a shell would: no closing quotation"), (" ", "--launch is")],
)
def test_what_is_no_command_is_refused(launch: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}"):
        words(launch, Setting("", {}))


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("serve --port 1234", 1234),
        ("serve --port=1234 x", 1234),
        ("serve --port 1 --port 2", 2),
        ("serve", None),
        ("serve --port", None),
        ("serve --port $PORT", None),
        ("serve --ports 3", None),
    ],
)
def test_the_port_that_a_command_names(command: str, port: int | None) -> None:
    assert port_of(shlex.split(command)) == port


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("vllm serve m --api-key hush --max-num-seqs 4", ["hush"]),
        ("vllm serve m --api-key=hush", ["hush"]),
        ("vllm serve m --api-key 'hush hush' --x", ["hush hush"]),
        ("env HF_TOKEN=hush vllm serve", ["hush"]),
        ("bash -c 'vllm serve m --api-key hush'", ["hush"]),
        ("vllm serve m --enforce-eager --api-key hush", ["hush"]),
        ("vllm serve m --max-num-batched-tokens 8192 --tokenizer t --tokens=3", []),
        ("vllm serve m --api-key", []),
    ],
)
def test_secrets_of_a_command(command: str, found: list[str]) -> None:
    assert secrets_of_command(command) == found


def test_a_secret_value_shows_nowhere() -> None:
    (one,) = settings(["env:HF_TOKEN=hf_hush"], paired=False)
    assert (one.name, one.shown("env:HF_TOKEN"), one.secrets) == ("env:HF_TOKEN=***", "***", ["hf_hush"])
    with pytest.raises(ValueError, match=r"^--set HF TOKEN: expected") as refused:
        settings(["HF TOKEN=hf_hush"], paired=False)
    assert "hf_hush" not in str(refused.value)


def test_a_value_that_a_secret_flag_takes_shows_in_no_name() -> None:
    (one,) = settings(["k=hush-hush"], paired=False)
    assert renamed(one, "serve --api-key {k}").name == "k=***"
    assert renamed(one, "serve --max {k}") == one
