"""Settings of a server to try: `--set NAME=V1,V2` as texts that take the place of {NAME}, or `env:NAME` as environment.

A comma within a value is written \\,. The same value twice is a setting twice: A against A.
"""

import itertools
import re
import shlex
from collections.abc import Iterable, Sequence

import msgspec

from loadgen.record import Secrets, names_a_secret

_ENV = "env:"
_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
# {"json": {n}} has one placeholder, and {{n}} none: templates of other programs are left alone.
_PLACEHOLDER = re.compile(rf"(?<!{{){{({_NAME})}}")
# The value is looked at and not taken: it can be a command itself, that of bash -c.
_FLAG = re.compile(r"""(?<![\w-])(--?\w[\w.-]*(?:\s+|=)|\w+=)(?!-)(?=("[^"]*"|'[^']*'|[^\s'"]+))""")
HIDDEN = "***"


class Setting(msgspec.Struct, frozen=True):
    """`values` by placeholder, or by env:NAME."""

    name: str
    values: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        return {name.removeprefix(_ENV): value for name, value in self.values.items() if name.startswith(_ENV)}

    @property
    def secrets(self) -> list[str]:
        return [value for name, value in self.values.items() if names_a_secret(name)]

    def shown(self, name: str) -> str:
        return HIDDEN if names_a_secret(name) else self.values[name]


def settings(texts: Sequence[str], *, paired: bool) -> tuple[Setting, ...]:
    """Every combination, or, `paired`, the first values, the second ones and so on. Raises ValueError."""
    given = [_given(text) for text in texts]
    names = [name for name, _ in given]
    if again := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"--set {again[0]} is given twice: write all its values in one, {again[0]}=V1,V2")
    if not paired:
        rows: Iterable[tuple[str, ...]] = itertools.product(*(values for _, values in given))
    elif len({len(values) for _, values in given}) > 1:
        counts = ", ".join(f"{name} has {len(values)}" for name, values in given)
        raise ValueError(f"--paired takes as many values of each --set: {counts}")
    else:
        rows = zip(*(values for _, values in given), strict=True)
    return tuple(_setting(dict(zip(names, row, strict=True))) for row in rows)


def _given(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not re.fullmatch(f"(?:{_ENV})?{_NAME}", name):
        raise ValueError(f"--set {name}: expected NAME=V1,V2 or env:NAME=V1,V2")  # a value may be secret
    return name, [value.replace("\\,", ",").strip() for value in re.split(r"(?<!\\),", values)]


def _setting(values: dict[str, str]) -> Setting:
    setting = Setting("", values)
    return Setting(",".join(f"{name}={setting.shown(name)}" for name in values), values)


def check(texts: Sequence[str], chosen: Sequence[Setting]) -> None:
    """Whether the `texts` with placeholders and the settings fit. Raises ValueError."""
    there = {name for text in texts for name in _PLACEHOLDER.findall(text)}
    given = {name for setting in chosen for name in setting.values if not name.startswith(_ENV)}
    if missing := sorted(there - given):
        raise ValueError(f"{{{missing[0]}}} has no value: say --set {missing[0]}=V1,V2")
    if unused := sorted(given - there):
        raise ValueError(f"--set {unused[0]} changes nothing: write {{{unused[0]}}} where its value belongs")


def filled(text: str, setting: Setting) -> str:
    """`text` with the setting's values. One that is empty or of several words is so many words of a command."""
    return _PLACEHOLDER.sub(lambda found: setting.values[found[1]], text)


def secrets_of_command(command: str) -> list[str]:
    """Values of flags and variables whose names are those of secrets: `--api-key X`, `KEY=X`."""
    found = ((name.rstrip("= \t\n").lstrip("-"), value) for name, value in _FLAG.findall(command))
    return [value.strip("'\"") for name, value in found if names_a_secret(name)]


def renamed(setting: Setting, launch: str) -> Setting:
    """Its name without what the command takes for a secret, such as {K} in `--api-key {K}`."""
    secrets = Secrets([*setting.secrets, *secrets_of_command(filled(launch, setting))])
    return msgspec.structs.replace(setting, name=secrets.hide(setting.name))


def words(launch: str, setting: Setting) -> list[str]:
    """The command with the setting's values. Raises ValueError."""
    try:
        found = shlex.split(filled(launch, setting))
    except ValueError as error:
        raise ValueError(f"--launch cannot be split into words, as a shell would: {str(error).lower()}") from None
    if not found:
        raise ValueError("--launch is empty: expected a command, such as 'vllm serve MODEL'")
    return found


def port_of(command: Sequence[str]) -> int | None:
    """What its last --port says."""
    texts = [after for word, after in itertools.pairwise(command) if word == "--port"]
    texts += [word.removeprefix("--port=") for word in command if word.startswith("--port=")]
    return int(texts[-1]) if texts and texts[-1].isdecimal() else None
