import json

from loadgen.sim.truth import Truth


def test_a_line_a_request() -> None:
    truth = Truth()
    record = truth.begin("a", 5)
    truth.add(record, 10, 11, 1)
    truth.add(record, 20, 22, 3)
    record.status = "finished"
    truth.begin("b", 6)
    a, b = map(json.loads, truth.lines())
    assert a == {
        "id": "a",
        "status": "finished",
        "arrived_ns": 5,
        "due_ns": [10, 20],
        "written_ns": [11, 22],
        "tokens": [1, 3],
    }
    assert (b["id"], b["status"], b["due_ns"]) == ("b", "running", [])


def test_memory_is_bounded_and_what_is_forgotten_is_counted() -> None:
    truth = Truth(max_events=10)
    oldest = truth.begin("0", 0)
    for i in range(8):
        truth.add(oldest, i, i, 1)
    newer = truth.begin("1", 1)
    for i in range(10):
        truth.add(newer, i, i, 1)
        truth.add(oldest, i, i, 1)  # it still runs, and is not taken up again
    assert truth.forgotten == 1
    assert [json.loads(line)["id"] for line in truth.lines()] == ["1"]
