"""`lz.serve_metrics`: an HTTP server for Prometheus, for `layerzero top` and for probes of liveness and readiness."""

import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client

from layerzero import _layerzero, configure
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.host.typed import typed
from layerzero.inspection.metrics import metrics
from layerzero.jit.readiness import ReadinessReport, is_alive, readiness_check
from layerzero.telemetry.health import breakers
from layerzero.telemetry.prometheus import registry

DEFAULT_PORT = 9464
LOOPBACK = ("127.0.0.1", "::1", "localhost")
STATE = "/state.json"
LIVE, READY = "/livez", "/readyz"  # for probes
_FRESH = 1.0  # seconds for which an answer about readiness holds


class MetricsServer:
    """A running server: `url`, `host`, `port`; `close()` ends it, as does the end of a `with` block."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("Server", (_Server,), {"address_family": family})
        try:
            self._server: Any = make_server(host, port, _Application(host), server_class=kind, handler_class=_Handler)
        except OSError as error:
            raise InvalidRequestError(
                "port",
                "an address that this process may listen on",
                f"{host}:{port}: {error}",
                "port=0 takes a free port",
            ) from None
        self.host, self.port = host, int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="layerzero metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Ends the server; counting goes on."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<metrics at {self.url}/metrics>"


@typed
def serve_metrics(port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> MetricsServer:
    """Serves lz.metrics() at http://host:port/metrics for Prometheus, and for `layerzero top`, until close(). /livez answers
    200 until a restart is the only help, then 503; /readyz answers 200 or 503, with lz.readiness_check() as JSON.

    `port` 0: any free one. `host`: only programs of this machine may read it unless another one is given; it has names
    of operations and kernels, and counts. Runs are counted from here on. Needs prometheus_client.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise WrongTypeError("port", "an integer from 0 to 65535", repr(port))
    server = MetricsServer(host, port)
    configure(metrics={"enabled": True})
    return server


def state() -> dict[str, Any]:
    """Returns what `layerzero top` shows."""
    version, build = _layerzero.build_id()
    found = metrics().to_dict()
    found |= {"pid": os.getpid(), "version": version, "build": build, "time": time.time(), "breakers": breakers()}
    return found


class _Application:
    """/metrics, /state.json, /livez and /readyz. A loopback server answers no other host name: a web page could have made one point here."""

    def __init__(self, host: str) -> None:
        self._only_local = host in LOOPBACK
        self._metrics = prometheus_client.make_wsgi_app(registry())
        self._guard, self._checked = threading.Lock(), 0.0
        self._report: ReadinessReport | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked = str(environ.get("HTTP_HOST", "localhost")).rsplit(":", 1)[0].strip("[]")
        path = environ.get("PATH_INFO", "")
        if self._only_local and asked not in (*LOOPBACK, ":", ""):
            return _answer(start_response, "403 Forbidden", b"this server answers requests to localhost\n")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path == STATE:
            return _answer(start_response, "200 OK", json.dumps(state()).encode(), "application/json")
        if path == LIVE:
            alive, why = is_alive()
            return _answer(start_response, _STATUS[alive], f"{why}\n".encode())
        if path == READY:
            report = self._readiness()
            return _answer(
                start_response, _STATUS[report.ready], json.dumps(report.to_dict()).encode(), "application/json"
            )
        wanted = ", ".join(("/metrics", STATE, LIVE, READY))
        return _answer(start_response, "404 Not Found", f"wanted one of {wanted}\n".encode())

    def _readiness(self) -> ReadinessReport:
        """Returns a report that is at most a second old: probes of several watchers cost one check."""
        with self._guard:
            if self._report is None or time.monotonic() - self._checked > _FRESH:
                self._report, self._checked = readiness_check(), time.monotonic()
            return self._report


_STATUS = {True: "200 OK", False: "503 Service Unavailable"}


def _answer(start_response: Callable[..., Any], status: str, body: bytes, kind: str = "text/plain") -> list[bytes]:
    start_response(status, [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """A scrape is no message."""
