"""`python -m web.serve`: one web process. Prints `READY http://HOST:PORT` on stdout once it listens."""

from __future__ import annotations

import argparse
import logging
import socket
import sys

import uvicorn

from web.app import create_app
from web.settings import WebSettings
from web.socket_protocol import SocketProtocol
from web.state import Web


class WebServer(uvicorn.Server):
    """A uvicorn server that says when it is ready, and lets endless responses end before it waits for them."""

    def __init__(self, config: uvicorn.Config, web: Web) -> None:
        super().__init__(config)
        self._web = web
        self.url = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        port = self.servers[0].sockets[0].getsockname()[1]
        host = self.config.host
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(f"READY {self.url}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._web.closing.set()
        await super().shutdown(sockets)


def create_server(settings: WebSettings) -> WebServer:
    """A server that `serve()` (in a running loop) or `run()` starts; it logs to stderr."""
    application = create_app(settings)
    config = uvicorn.Config(
        application,
        host=settings.host,
        port=settings.port,
        ws=SocketProtocol,
        ws_max_size=settings.frame_limit,
        ws_per_message_deflate=False,
        ws_ping_interval=settings.ping_s,
        ws_ping_timeout=settings.ping_s,
        timeout_graceful_shutdown=settings.shutdown_s,
        access_log=False,
        log_config=None,
        server_header=False,
    )
    return WebServer(config, application.state.web)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the process."""
    settings = WebSettings()
    parser = argparse.ArgumentParser(prog="python -m web.serve", description=__doc__)
    parser.add_argument("--host", default=settings.host)
    parser.add_argument("--port", type=int, default=settings.port, help="0 picks a free one")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # Its INFO lines name every socket's query string; a session id is not for the log.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    create_server(settings.model_copy(update={"host": chosen.host, "port": chosen.port})).run()


if __name__ == "__main__":
    main()
