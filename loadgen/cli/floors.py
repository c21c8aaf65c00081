"""`loadgen floors MODEL@GPU`: what the hardware allows."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from loadgen.cli.load import flag

if TYPE_CHECKING:
    from analysis.floor_sheet import Question, Sheet, Speculate
    from analysis.hardware import Hardware

INPUT_TOKENS, OUTPUT_TOKENS, BATCH = 1155, 211, 32  # the first two: the means of the workload chat
ACCEPTANCE, DRAFT_COST = 0.7, 0.1
_MOST_TOKENS, _MOST_BATCH, _MOST_DRAFTS = 100_000_000, 100_000, 64
_HARDWARE = Group.create_ordered("Hardware")
_BY_HAND = Group.create_ordered("Model by hand")
_WORK = Group.create_ordered("Workload")
_SPECULATION = Group.create_ordered("Speculative decoding")
_RESULT = Group.create_ordered("Result")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class FloorOptions:
    dtype: Annotated[str | None, flag(_HARDWARE, "Precision of the weights: bf16, fp8, int4 ...")] = None
    kv_cache_dtype: Annotated[str | None, flag(_HARDWARE, "Precision of the KV cache. Default: bf16.")] = None
    gpus: Annotated[str | None, flag(_HARDWARE, "So many GPUs share the model (tensor parallel). Default: 1.")] = None
    gpu_memory_utilization: Annotated[
        str | None, flag(_HARDWARE, "The share of the memory that the server may use. Default: 0.9.")
    ] = None
    params: Annotated[
        str | None, flag(_BY_HAND, "Parameters, such as 7b; HARDWARE is then a GPU alone, such as h100.")
    ] = None
    layers: Annotated[str | None, flag(_BY_HAND, "With --kv-heads and --head-dim: the size of the KV cache.")] = None
    heads: Annotated[str | None, flag(_BY_HAND, "Query heads: the FLOPs of attention.")] = None
    kv_heads: Annotated[str | None, flag(_BY_HAND, "Heads of keys and values; 1 is multi-query.")] = None
    head_dim: Annotated[str | None, flag(_BY_HAND, "Length of a head's keys and values, often 128.")] = None
    experts: Annotated[str | None, flag(_BY_HAND, "Mixture of experts: how many there are in a layer.")] = None
    experts_per_token: Annotated[str | None, flag(_BY_HAND, "How many of them a token uses; with --active-params.")] = (
        None
    )
    active_params: Annotated[str | None, flag(_BY_HAND, "Parameters that a token uses, such as 3.3b.")] = None
    input: Annotated[int, flag(_WORK, f"Prompt tokens. Default: {INPUT_TOKENS}, the mean of the workload chat.")] = (
        INPUT_TOKENS
    )
    output: Annotated[int, flag(_WORK, f"Output tokens. Default: {OUTPUT_TOKENS}, likewise.")] = OUTPUT_TOKENS
    batch: Annotated[
        int,
        Parameter(
            name=("--batch", "--concurrency"),
            help=f"Sequences that decode at once. Default: {BATCH}.",
            group=_WORK,
            show_default=False,
        ),
    ] = BATCH
    context: Annotated[
        int | None, flag(_WORK, "Their mean live length in tokens. Default: --input and half of --output.")
    ] = None
    speculate: Annotated[int | None, flag(_SPECULATION, "Draft tokens a step.")] = None
    acceptance: Annotated[
        float | None, flag(_SPECULATION, f"The share of drafts that are right, 0 to 1. Default: {ACCEPTANCE}.")
    ] = None
    draft_cost: Annotated[
        float | None, flag(_SPECULATION, f"Time of a draft token, as a share of a step. Default: {DRAFT_COST}.")
    ] = None
    plan: Annotated[bool, flag(_RESULT, "The KV planner: which max_num_seqs to try.")] = False
    slo: Annotated[
        tuple[str, ...],
        flag(
            _RESULT, "The limits to plan for, as for run: 'itl p99 < 50ms', or a preset such as chat. Implies --plan."
        ),
    ] = ()
    json: Annotated[bool, flag(_RESULT, "Print all of it as one JSON object.")] = False
    out: Annotated[
        Path | None,
        flag(_RESULT, "Directory for floors.json, roofline.png and roofline.svg. Default: they are not written."),
    ] = None


_DEFAULT = FloorOptions()
_KEYS = (
    *("dtype", "kv_cache_dtype", "gpus", "gpu_memory_utilization"),
    *("layers", "heads", "kv_heads", "head_dim", "experts", "experts_per_token", "active_params"),
)


def floors(hardware: str, /, options: FloorOptions = _DEFAULT) -> int:
    """What a model on a GPU cannot beat: the least time of a token and of a prompt, and how much KV cache fits.

    With --plan: how many requests at once memory and an SLO allow, and the `loadgen tune` that tries it. No server is
    asked.

    Parameters
    ----------
    hardware
        MODEL@GPU[,key=value...], such as llama-3.1-8b@h100,dtype=fp8. MODEL is a name of the catalogue, a number of
        parameters such as 7b, or the path of a config.json or of its directory. Keys: dtype, kv_cache_dtype, gpus,
        gpu_memory_utilization, and those of a model by hand; the flags say the same. A GPU that the catalogue does not
        have takes memory_gb, bandwidth_gb_s and, for prefill, bf16_tflops (fp8_tflops, fp4_tflops).
    """
    from rich.console import Console

    from analysis import floor_sheet, floor_tables

    made = floor_sheet.sheet(_hardware(hardware, options), _question(options))
    if options.json:
        print(floor_sheet.dumps(made), end="")  # noqa: T201 - the result goes to standard output
    else:
        floor_tables.show(made, Console())
    if options.out is not None:
        files = _write(made, options.out)
        Console(stderr=True).print(f"{options.out}/: {', '.join(files)}", markup=False, highlight=False)
    return 0


def _hardware(text: str, options: FloorOptions) -> "Hardware":
    """Flags stand for keys of the same names, and --params for the model. Raises ValueError."""
    from analysis import hardware

    head, comma, keys = text.partition(",")
    if options.params is not None:
        name, _, gpu = head.rpartition("@")
        if name:
            raise ValueError(f"--params {options.params}: the model is {name} already; say {gpu} alone for one by hand")
        head = f"{options.params}@{gpu}"
    said = [f"{key}={value}" for key in _KEYS if (value := getattr(options, key)) is not None]
    return hardware.parse(",".join([f"{head}{comma}{keys}", *said]))


def _question(options: FloorOptions) -> "Question":
    """Raises ValueError."""
    from analysis.floor_sheet import Question
    from analysis.floors import live_tokens

    for flag_name, value, most in (
        ("input", options.input, _MOST_TOKENS),
        ("output", options.output, _MOST_TOKENS),
        ("batch", options.batch, _MOST_BATCH),
        ("context", options.context, _MOST_TOKENS),
    ):
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"--{flag_name} {value}: expected 1 to {most}")
    return Question(
        input_tokens=options.input,
        output_tokens=options.output,
        batch=options.batch,
        context_tokens=live_tokens(options.input, options.output) if options.context is None else options.context,
        speculate=_speculate(options),
        plan=options.plan or bool(options.slo),
        slo=options.slo,
    )


def _speculate(options: FloorOptions) -> "Speculate | None":
    from analysis.floor_sheet import Speculate

    drafts, acceptance, cost = options.speculate, options.acceptance, options.draft_cost
    if drafts is None:
        if acceptance is not None or cost is not None:
            raise ValueError(
                "--acceptance and --draft-cost are of speculative decoding: say --speculate N drafts a step"
            )
        return None
    acceptance, cost = ACCEPTANCE if acceptance is None else acceptance, DRAFT_COST if cost is None else cost
    if not 1 <= drafts <= _MOST_DRAFTS:
        raise ValueError(f"--speculate {drafts}: expected 1 to {_MOST_DRAFTS} drafts a step")
    if not 0 <= acceptance <= 1:
        raise ValueError(f"--acceptance {acceptance:g}: expected a share, 0 to 1")
    if not 0 <= cost <= 100:
        raise ValueError(
            f"--draft-cost {cost:g}: expected the share of a step that a draft takes, such as {DRAFT_COST}"
        )
    return Speculate(drafts=drafts, acceptance=acceptance, draft_cost=cost)


def _write(made: "Sheet", out: Path) -> list[str]:
    """What was written. There is no roofline without a rate of compute."""
    from analysis import floor_plots, floor_sheet

    out.mkdir(parents=True, exist_ok=True)
    (out / "floors.json").write_text(floor_sheet.dumps(made), encoding="ascii")
    if not made.roofline:
        return [f"floors.json (no picture: the compute rate of {made.gpu} is not known)"]
    floor_plots.draw(made, out)
    return ["floors.json", "roofline.png", "roofline.svg"]
