"""TLS: an unknown CA is a clear message, a known one works, and going without is said by a flag."""

import asyncio
import ssl
import threading

import pytest
import trustme


@pytest.fixture
def behind_tls(serve):
    """A known-answer server behind a TLS end point with a private CA; (url, the CA)."""
    inner = serve(completion_tokens=64)
    port = int(inner.url.rpartition(":")[2])
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    found = {}

    async def pump(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def handle(reader, writer):
        plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, plain_writer), pump(plain_reader, writer))

    async def main():
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        found["port"] = server.sockets[0].getsockname()[1]
        found["stop"] = asyncio.Event()
        ready.set()
        await found["stop"].wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait()
    yield f"https://127.0.0.1:{found['port']}", ca
    loop.call_soon_threadsafe(found["stop"].set)
    thread.join()
    loop.close()


def test_an_unknown_ca_a_known_one_and_none(cli, behind_tls, tmp_path):
    url, ca = behind_tls
    done = cli("check", url, check=3)
    assert "TLS" in done.stderr
    assert "--cacert" in done.stderr
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cli("check", url, "--cacert", "ca.pem", check=0)
    cli("check", url, "--insecure", check=0)
    assert "no-such.pem" in cli("check", url, "--cacert", "no-such.pem", check=2).stderr
