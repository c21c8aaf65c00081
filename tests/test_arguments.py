"""What the process list shows of a command line; test_app.py looks at a real one."""

import pytest

from loadgen.cli.arguments import shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run https://u:pw@h:8000/v1?key=k --seed 1", "run https://***@h:8000/v1?*** --seed 1"),
        ("run u:p/w@h:8000", "run u:p/w@h:8000"),  # no user can have a slash
        ("run me:pw@h:8000/v1", "run ***@h:8000/v1"),
        ("run h:8000/v1", "run h:8000/v1"),
        ("run sim:llama-3.1-8b@h100,max_num_seqs=8", "run sim:llama-3.1-8b@h100,max_num_seqs=8"),
        ("floors llama-3.1-8b@h100", "floors llama-3.1-8b@h100"),
        ("run --header K:v h:1", "run --header *** h:1"),
        ("run --header=K:v --body={} h:1", "run --header=*** --body=*** h:1"),
        ("run --metrics=http://h/m?t=x", "run --metrics=http://h/m?***"),
        ("run --config c.toml", "run --config c.toml"),
    ],
)
def test_what_may_be_a_key_is_hidden(words: str, expected: str) -> None:
    assert " ".join(shown(words.split())) == expected
