"""Run the tests of the results store against a real PostgreSQL server: `make test-postgres`.

The server is a private one: its data and its socket are in a temporary folder, it listens on no port, and it is stopped at the
end. Where PostgreSQL is not installed, Debian's and Ubuntu's package is, if the user is root; others are told how. PostgreSQL
refuses to run as root, so the server then runs as `postgres` or `nobody`. With a command, that runs instead of the tests, with
the server's URL in TORCH_ORACLE_TEST_POSTGRES_URL.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

VARIABLE = "TORCH_ORACLE_TEST_POSTGRES_URL"
TESTS = ("results/tests/test_store_postgres.py",)


def find(program: str) -> str | None:
    """A program of the server, which Debian does not put on the PATH."""
    return shutil.which(program) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"))[::-1]), None)


def install() -> None:
    """Install the server if it is absent and may be installed. Raises SystemExit with what to do if not."""
    if find("postgres") and find("initdb"):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        raise SystemExit(
            "error: PostgreSQL (postgres, initdb) was not found.\n"
            "  To install it: apt-get install postgresql | dnf install postgresql-server | brew install postgresql\n"
            f"  For a server that you have: {VARIABLE}=postgresql://USER@HOST/DATABASE {sys.executable} -m pytest {TESTS[0]}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A cluster of the machine's own is not wanted.
    policy = Path("/etc/postgresql-common/createcluster.d")
    policy.mkdir(parents=True, exist_ok=True)
    (policy / "none.conf").write_text("create_main_cluster = false\n", encoding="utf-8")
    for command in (["update"], ["install", "--yes", "--no-install-recommends", "postgresql"]):
        subprocess.run(["apt-get", "--quiet", *command], check=True, env=environment, stdout=subprocess.DEVNULL)


def unprivileged_user() -> pwd.struct_passwd | None:
    """The user as whom the server runs; None for the user of this process."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise SystemExit("error: PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")


@contextmanager
def private_server() -> Iterator[str]:
    """A new server with an empty database; gives its URL."""
    initdb, postgres = find("initdb"), find("postgres")
    assert initdb is not None
    assert postgres is not None
    user = unprivileged_user()
    as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    folder = Path(tempfile.mkdtemp(prefix="torch-oracle-pg-", dir="/tmp"))  # short, as the path of a socket must be
    try:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        subprocess.run(
            [
                initdb,
                "--pgdata",
                str(data),
                "--username",
                "tests",
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
                "--no-sync",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **as_user,
        )
        server = subprocess.Popen(
            # Durability is not tested here, and costs time.
            [postgres, "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            **as_user,
        )
        try:
            url = f"postgresql://tests@/postgres?host={folder}"
            wait_for(url, server)
            yield url
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(url: str, server: subprocess.Popen[Any]) -> None:
    """Wait until the server takes connections."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit(f"error: postgres ended with {server.returncode} instead of starting")
        try:
            engine.connect().close()
        except OperationalError:
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.1)
        else:
            engine.dispose()
            return
    raise SystemExit("error: postgres took no connection for 30 seconds")


def main(arguments: Sequence[str]) -> int:
    """Run the tests, or the command given, with a server. Returns the exit code."""
    if importlib.util.find_spec("psycopg") is None:
        raise SystemExit("error: psycopg is not installed: pip install 'torch-oracle[postgres]'")
    install()
    command = list(arguments) or [sys.executable, "-m", "pytest", "-q", *TESTS]
    with private_server() as url:
        return subprocess.run(command, env={**os.environ, VARIABLE: url}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
