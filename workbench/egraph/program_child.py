"""The child that runs whole egglog programs: one at a time, each in a new e-graph that stays for questions.

A process of its own, because a running step cannot be interrupted: the parent kills it on a limit. Between two steps it
looks whether the parent wants it to stop.
"""

from __future__ import annotations

import os
import resource
import select
from typing import BinaryIO

import msgspec

from workbench import frames
from workbench.egraph.child import memory_limit
from workbench.egraph.messages import XrayBegun, XrayRefused, XrayResult
from workbench.egraph.program_messages import AskRule, Halt, ProgramRequest, Ready, RunProgram
from workbench.egraph.program_run import ProgramRun
from workbench.egraph.stepping import SNAPSHOT_BYTES, address_space
from workbench.egraph.tables import signatures_of
from workbench.egraph.xray import NotAskable, Subject, xray


class Child:
    """Answers requests; what was run last is kept."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO, memory_bytes: int) -> None:
        self.requests = requests
        self.answers = answers
        self.memory_bytes = memory_bytes
        self.ran: ProgramRun | None = None
        self.subject: Subject | None = None
        self._decoder: msgspec.msgpack.Decoder[ProgramRequest] = msgspec.msgpack.Decoder(ProgramRequest)

    def serve(self) -> None:
        """Until the parent is gone."""
        self._say(Ready())
        while True:
            match self._decoder.decode(frames.receive(self.requests)):
                case RunProgram() as request:
                    self.ran = self.subject = None  # the e-graph of the one before makes room
                    self.ran = ProgramRun(request, self._say, self._halted, self._memory_full)
                    self._say(self.ran.run())
                case AskRule() as question:
                    self._say(self._answer(question))
                case Halt():
                    pass  # what it was to stop has ended by itself

    def _say(self, message: object) -> None:
        frames.send(self.answers, message)

    def _halted(self) -> str:
        if not select.select([self.requests], [], [], 0)[0]:
            return ""
        request = self._decoder.decode(frames.receive(self.requests))
        return request.reason if isinstance(request, Halt) else ""

    def _memory_full(self, nodes: int) -> bool:
        return bool(self.memory_bytes) and address_space() + nodes * SNAPSHOT_BYTES > self.memory_bytes

    def _answer(self, question: AskRule) -> XrayResult | XrayRefused:
        if self.ran is None or self.ran.broken:
            return XrayRefused("there is no e-graph to ask")
        ran = self.ran
        fired = ran.fired.get(question.rule, 0)
        self._say(XrayBegun(fired))
        if self.subject is None:
            self.subject = Subject(ran.egraph, ran.declared.facts, signatures_of(ran.egraph))
        try:
            found = xray(
                self.subject, ran.declared.parsed, question.rule, question.node, question.seconds, self._say
            )
        except NotAskable as error:
            return XrayRefused(str(error))
        return msgspec.structs.replace(found, fired=fired)


def main() -> None:
    """Serve requests on stdin until it closes. The engine's warnings go to stderr."""
    limit = memory_limit()
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests = os.fdopen(0, "rb", buffering=0)
    try:
        Child(requests, answers, limit).serve()
    except frames.Closed:
        return


if __name__ == "__main__":
    main()
