"""`torch-oracle serve`: what it answers, and that nothing can be written through it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from oracle.errors import UsageError
from oracle.verdict import Status
from results import serve
from results.schema import FLAT_COLUMNS
from results.store import Store
from results.tests import fabricate

_EXTRA = "Datasette is in the extra `serve`"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    records = [fabricate.record(fabricate.case(f"add/float32/{i}"), speedup=0.5) for i in range(3)]
    records.append(fabricate.record(fabricate.case("sub/float32/0"), Status.FAIL_ACCURACY))
    return fabricate.database(tmp_path / "runs.db", records)


def test_every_column_has_its_meaning():
    columns = serve.metadata("runs")["databases"]["runs"]["tables"]["results"]["columns"]
    assert len(columns) == len(FLAT_COLUMNS)
    assert columns["group_name"] == "operator or model"


def test_it_answers_and_refuses_writes_and_other_hosts(db: Path):
    pytest.importorskip("datasette", reason=_EXTRA)
    import httpx  # noqa: PLC0415  comes with Datasette

    before = db.read_bytes()

    async def answers() -> dict[str, Any]:
        app: Any = serve.make_app(str(db))
        found: dict[str, Any] = {}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1:8001"
        ) as client:
            for query in serve.QUERIES:
                rows = await client.get(
                    f"/runs/{query}.json?_shape=array&case_id={quote('opinfo/sub/float32/0@inductor')}"
                )
                found[query] = (rows.status_code, rows.json())
            for sql in (
                "delete from runs",
                "insert into runs values (1)",
                "attach database '/tmp/x' as x",
                "drop table runs",
            ):
                found[sql] = (await client.get("/runs.json", params={"sql": sql})).status_code
            found["post"] = (await client.post("/runs/runs", json={"row": {}})).status_code
            found["report"] = (await client.get("/report")).text
            found["host"] = (await client.get("/", headers={"host": "example.org"})).status_code
            found["host with our name in it"] = (
                await client.get("/", headers={"host": "127.0.0.1.example.org:8001"})
            ).status_code
        return found

    found = asyncio.run(answers())
    assert {query: found[query][0] for query in serve.QUERIES} == dict.fromkeys(serve.QUERIES, 200)
    assert [row["case_id"] for row in found["failures"][1]] == ["opinfo/sub/float32/0@inductor"]
    assert found["pass_rates"][1] == [
        {"suite": "opinfo", "subject": "inductor", "cases": 4, "passed": 3, "known": 0, "failing": 1}
    ]
    assert len(found["slowest"][1]) == 3
    assert [row["status"] for row in found["history"][1]] == ["fail_accuracy"]
    assert [found[sql] for sql in found if " from " in sql or " into " in sql or "attach" in sql or "drop" in sql] == [
        400
    ] * 4
    assert found["post"] >= 400
    assert "1 failing case in 1 group" in found["report"]
    assert (found["host"], found["host with our name in it"]) == (403, 403)
    assert db.read_bytes() == before


def test_a_database_that_cannot_be_served_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="does not exist"):
        serve.make_app(str(tmp_path / "absent.db"))
    with pytest.raises(UsageError, match="not a SQLite file"):
        serve.make_app("postgresql://someone:secret@nowhere/results")
    (tmp_path / "other.db").write_text("no database")
    with pytest.raises(UsageError):
        serve.make_app(str(tmp_path / "other.db"))


@pytest.mark.slow
def test_the_command_listens_on_this_machine_only_while_a_sweep_writes(db: Path):
    pytest.importorskip("datasette", reason=_EXTRA)
    command = [sys.executable, "-m", "oracle.cli", "serve", str(db), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")

            def failures() -> str:
                with urllib.request.urlopen(f"{address}runs/failures_by_operator.json?_shape=array") as answer:
                    return answer.read().decode()

            assert '"cases": 1' in failures()
            with Store.open(db, create=True) as store:  # another run is written meanwhile
                wrong = [fabricate.record(fabricate.case(f"sub/float32/{i}"), Status.FAIL_ACCURACY) for i in range(2)]
                fabricate.write_run(store, wrong, run_id="run-2")
            assert '"cases": 2' in failures()
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(f"{address}runs.json?sql={quote('delete from runs')}")
        finally:
            server.terminate()
