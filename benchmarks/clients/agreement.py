"""Simulates many ranks of one job in one process, which agree on a step with the supervisor.

Each has the SDK's rules. Nothing is parsed but lines that arrive, and the answers to a relay's messages.
"""

import asyncio
from collections.abc import Iterator

import msgspec

from benchmarks.clients.jsonlines import serve
from benchmarks.clients.ranks import LoadRank, RanksRun
from benchmarks.clients.speech import Alone, Speaker, SpeakingPod, SpokenService


class JoinAgreement(msgspec.Struct, frozen=True, tag=True):
    """Open the streams of the ranks `first` to `first + count - 1` of a run: a relay's for each host, or one for each.

    The answers of the first `late` ranks are sent `late_seconds` late.
    """

    service: SpokenService
    run: RanksRun
    first: int
    count: int
    relays: bool
    late: int = 0
    late_seconds: float = 0.0


class Agree(msgspec.Struct, frozen=True, tag=True):
    """Wait until every rank has committed itself to a step, at most `seconds`."""

    seconds: float


class Agreed(msgspec.Struct, frozen=True, tag=True):
    """When each rank was asked, saw the proposal that was committed, and was told the commit, and the steps.

    `unsettled` ranks were told none. Instants are CLOCK_MONOTONIC.
    """

    asked_at: list[float] = []
    proposed_at: list[float] = []
    committed_at: list[float] = []
    steps: list[int] = []
    unsettled: int = 0


class _AgreeingRanks:
    def __init__(self) -> None:
        self._ranks: list[LoadRank] = []

    async def handle(self, command: JoinAgreement | Agree) -> Agreed:
        match command:
            case JoinAgreement():
                await self._join(command)
                return Agreed()
            case Agree(seconds):
                await asyncio.wait([rank.committed for rank in self._ranks], timeout=seconds)
                return self._agreed()

    async def _join(self, join: JoinAgreement) -> None:
        numbers = range(join.first, join.first + join.count)
        self._ranks = [LoadRank(join.run, each, join.late_seconds if each < join.late else 0.0) for each in numbers]
        for speaker in _speakers(join, self._ranks):
            await speaker.open()
        await asyncio.gather(*(rank.ready for rank in self._ranks))

    def _agreed(self) -> Agreed:
        settled = [rank for rank in self._ranks if rank.committed.done()]
        return Agreed(
            asked_at=[rank.asked_at for rank in settled],
            proposed_at=[max(rank.proposed_at.values(), default=rank.committed_at) for rank in settled],
            committed_at=[rank.committed_at for rank in settled],
            steps=[rank.committed.result() for rank in settled],
            unsettled=len(self._ranks) - len(settled),
        )


def _speakers(join: JoinAgreement, ranks: list[LoadRank]) -> Iterator[Speaker]:
    if not join.relays:
        yield from (Alone(join.service, rank) for rank in ranks)
        return
    size = join.run.ranks_per_host
    for start in range(0, len(ranks), size):
        yield SpeakingPod(join.service, f"pod-{join.first + start}", ranks[start : start + size])


if __name__ == "__main__":
    serve(msgspec.json.Decoder(JoinAgreement | Agree), _AgreeingRanks().handle)
