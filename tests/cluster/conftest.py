"""A real Slurm cluster for a whole test session, and an ordinary user with a folder of its own for each test."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.lab.cluster import PREFIX, Cluster
from tests.lab.user import User

LOG_LINES = 40


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes with the plugin, without accounting."""
    yield from running(Cluster(f"t{os.getpid()}"), accounting=False)


@pytest.fixture(scope="session")
def accounting_cluster() -> Iterator[Cluster]:
    """Four nodes with the plugin and with slurmdbd; started only for tests that ask for it."""
    yield from running(Cluster(f"a{os.getpid()}"), accounting=True)


def running(cluster: Cluster, accounting: bool) -> Iterator[Cluster]:
    if os.geteuid() != 0 or not (PREFIX / "lab").exists():
        pytest.fail("cluster tests need root and what scripts/setup installs")
    cluster.up(accounting=accounting)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def user(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[User]:
    """The test user in a new folder; afterwards its jobs are gone, and the logs are shown if the test failed."""
    yield from working(cluster, request)


@pytest.fixture
def accounting_user(accounting_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[User]:
    """The same on the cluster with accounting."""
    yield from working(accounting_cluster, request)


def working(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[User]:
    user = User(cluster, cluster.home / re.sub(r"\W+", "-", request.node.name).strip("-"))
    yield user
    user.cancel_all()
    if request.node.stash.get(FAILED, False):
        show_logs(user)
    shutil.rmtree(user.folder, ignore_errors=True)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remembers at the test whether it failed, for the clean-up that shows the logs."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def show_logs(user: User) -> None:
    """Prints the ends of all that the test's job and the daemons wrote."""
    print(user.cluster.log_tails(["slurmctld", *[f"slurmd-{node}" for node in user.cluster.nodes]], LOG_LINES))
    for path in sorted(user.folder.rglob("*")):
        if path.is_file() and path.suffix in (".out", ".err", ".log", ".txt", ".json", ".jsonl"):
            print(f"--- {path}", *path.read_text(errors="replace").splitlines()[-LOG_LINES:], sep="\n")
