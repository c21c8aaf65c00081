"""What the server's own counters say against the client's, and what keeps them from saying anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.evidence import Finding, percent

if TYPE_CHECKING:
    from analysis.evidence import Evidence

TOKENS_OFF = 0.01  # of the tokens received
IN_FLIGHT_TOKENS = 8  # of a request that was cut: generated before the server saw it go


def server_tokens(evidence: Evidence) -> Finding | None:
    """Served and received differ, beyond what requests that were cut explain: such a request is counted up to where the
    server saw it go, and not at all by servers that count when a request finishes."""
    server = evidence.server
    if server is None or server.restarts or not server.output_tokens:
        return None
    served, received, of_cut = server.output_tokens, server.received_tokens, server.cut_tokens
    if received is None or of_cut is None:
        return None
    cut = int((~evidence.requests.ok).sum())
    off = max(served - received - IN_FLIGHT_TOKENS * cut, received - of_cut - served)
    share = off / max(served, received)
    if share <= TOKENS_OFF:
        return None
    if served > received:
        why = "others use it too, or it counts tokens that are not sent; its queue and cache are not of this load alone"
    else:
        why = "another server behind this address served the rest (give each one's page with --metrics)"
        if "events" in evidence.requests.tokens_from:
            why = f"the client had to count events, or {why}"
    said = f"the server counted {served} output tokens, the client {received} ({percent(share)} apart)"
    return Finding("server-tokens", "warning", f"{said}: {why}")


def server_restarted(evidence: Evidence) -> Finding | None:
    if evidence.server is None or not evidence.server.restarts:
        return None
    message = (
        "the server's counters fell in the middle of the level: it was restarted (its log says why), or its address "
        "leads to several servers in turn (give each one's page with --metrics)"
    )
    return Finding("server-restarted", "warning", message)


def no_metrics(evidence: Evidence) -> Finding | None:
    """A source without any sample up to the end of the level."""
    if evidence.ended is None:
        return None
    rows = [row for row in evidence.samples if row.t_us <= evidence.ended.end_us]
    silent = {row.source for row in rows} - {row.source for row in rows if row.url is None and row.error is None}
    if not silent:
        return None
    source = min(silent)
    url = next((row.url for row in rows if row.source == source and row.url), "its page")
    error = next((row.error for row in reversed(rows) if row.source == source and row.error), "nothing")
    message = (
        f"no metrics of the server ({url}: {error}): nothing is known of its queue, cache and counters; switch them on "
        "there, say with --metrics URL where they are, or with --metrics none that there are none"
    )
    return Finding("no-metrics", "info", message)
