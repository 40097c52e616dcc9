"""``streamclient server`` and its second line."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.patience import PATIENCE_SECONDS

NO_AIOHTTP = (
    "import sys, threading\n"
    "from streamclient.console.listening import ConsoleServer\n"
    "from streamclient.server import LocalTablestore\n"
    "with LocalTablestore() as local:\n"
    "    console = ConsoleServer(local)\n"
    "    console.start()\n"
    "    print('aiohttp' in sys.modules, 'streamclient.console.app' in sys.modules)\n"
    "    import urllib.request\n"
    "    print(urllib.request.urlopen(console.address).status, 'aiohttp' in sys.modules)\n"
    "    console.stop()\n"
    "print(threading.active_count())\n"
)

EARLY = (
    "import sys\n"
    "from streamclient.console.doors import ConsoleDoors\n"
    "from streamclient.console.listening import PageServer\n"
    "from streamclient.server.auth import Doors\n"
    "from tests.patience import until\n"
    "console = PageServer(lambda: print('pages'), ConsoleDoors(Doors(())))\n"
    "console.start()\n"
    "until(lambda: 'App' in dir(sys.modules.get('streamclient.console.app')), 'the import')\n"
    "console.stop()\n"
    "print('no page')\n"
)


@contextmanager
def server(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", "-m", "streamclient", "server", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("looks", [True, False])
def test_the_second_line_is_the_address_of_the_page_and_a_signal_ends_both(looks: bool) -> None:
    with server("--console-port", "0") as process:
        first, second = lines(process, 2)
        assert first.startswith("listening on http://127.0.0.1:")
        assert second.startswith("console at http://127.0.0.1:")
        if looks:
            with urllib.request.urlopen(second.removeprefix("console at "), timeout=PATIENCE_SECONDS) as page:
                assert b"<title>streamclient console</title>" in page.read()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_a_server_whose_console_port_is_taken_says_so_and_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with server("--console-port", str(port)) as process:
            first, second = lines(process, 2)
            assert second.startswith(f"no console: cannot listen on 127.0.0.1:{port}: ")
            request = urllib.request.Request(f"{first.removeprefix('listening on ')}/", method="GET")
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=PATIENCE_SECONDS)
            caught.value.close()


@pytest.mark.slow
def test_a_server_without_console_has_one_line() -> None:
    with server("--no-console") as process:
        lines(process, 1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_a_secret_of_ones_own_puts_a_key_into_the_address() -> None:
    with server("--console-port", "0", "--access-key-secret", "of-my-own") as process:
        _, second = lines(process, 2)
        address, key = second.removeprefix("console at ").split("#key=")
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            urllib.request.urlopen(f"{address}api/v1/about", timeout=PATIENCE_SECONDS)
        caught.value.close()
        request = urllib.request.Request(f"{address}api/v1/about", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            assert answer.status == 200


@pytest.mark.slow
def test_nothing_of_the_page_is_loaded_before_the_first_connection() -> None:
    done = subprocess.run([sys.executable, "-c", NO_AIOHTTP], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("False False\n200 True\n1\n", 0), done.stderr


@pytest.mark.slow
def test_a_console_of_fleets_loads_its_http_library_before_the_first_connection() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("no page\n", 0), done.stderr


@pytest.mark.slow
def test_a_local_tablestore_of_a_program_opens_no_second_port() -> None:
    program = (
        "import sys\n"
        "from streamclient.server import LocalTablestore\n"
        "with LocalTablestore() as local:\n"
        "    print([name for name in sys.modules if name.startswith('streamclient.console')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
