"""Names and texts that others wrote into the status table, where operators read them: against real HTTP."""

from __future__ import annotations

import json

import pytest
from operate_scene import Scene

from streamclient.base.reasons import Cause, Reason
from streamclient.core import leases as rule
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import Pause, RecordOrder

EVIL = "w\x1b[2J\r\nforged  line\x9b\u202ez"
ESCAPED = r"w\x1b[2J\r\nforged  line\x9b\u202ez"


@pytest.fixture
def told(scene: Scene) -> Scene:
    scene.write(3)
    reason = Reason(Cause.READING_FAILED, "", EVIL)
    info = WorkerInfo(
        host=EVIL, version=EVIL, shards={scene.shard: ShardTrouble(EVIL, "reading", (reason,))}, trouble=EVIL
    )
    scene.put_lease(scene.shard, EVIL, stealer=EVIL, pause=Pause("r1", EVIL, EVIL), taken=True)
    scene.put_worker(EVIL, info=info)
    scene.send(rule.set_orders(scene.lease(), (RecordOrder("o1", EVIL, EVIL, 1, 10**16, (EVIL,), EVIL),)))
    return scene


COMMANDS = [
    "leases list",
    "leases show SHARD",
    "leases audit",
    "leases skip SHARD --records 1",
    "leases pause SHARD --reason why --dry-run",
    "explain SHARD",
    "explain --all",
    "top --once",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_reaches_the_terminal_as_it_is(command: str, told: Scene) -> None:
    words = command.replace("SHARD", told.shard).split()
    ran = told.run(*words)
    as_json = told.run(*words, "--json")

    for text in (ran.out, ran.err, as_json.out, as_json.err):
        assert all(line.isprintable() for line in text.split("\n")), text
        assert not any(line.startswith("forged") for line in text.split("\n"))
    json.loads(as_json.out)
