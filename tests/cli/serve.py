"""`dhelix report --serve` among clients that mean no good: idle, slow, many, malformed.

    serve.py PATH_OF_DHELIX [--full]

Loopback only. Requests are drawn from a fixed seed (DHELIX_TEST_SEED). No time is asserted: what
must not wait for somebody else has a limit of LIMIT_S, far above what it takes.
"""
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

LIMIT_S = 60
N_CLIENTS = 64  # that the server keeps, see MAX_CLIENTS of src/cli/serve.c

checks = failures = 0


def check(ok, what):
    global checks, failures
    checks += 1
    if not ok:
        failures += 1
        print(f"FAILED: {what}", flush=True)


class Server:
    def __init__(self, dhelix, run, *, launch=(), env=None):
        self.process = subprocess.Popen(
            [*launch, dhelix, "report", run, "--serve", "--quiet"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        address = self.process.stdout.readline()
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([0-9a-f]{32})/\n", address)
        assert match, (address, self.process.poll() is not None and self.process.stderr.read())
        self.port, self.token = int(match[1]), match[2]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)

    def ask(self, raw):
        """All that the server answers to these bytes; b"" where it only closes."""
        with self.connect() as s:
            answer = b""
            try:
                s.sendall(raw)
                while part := s.recv(1 << 16):
                    answer += part
            except ConnectionError:
                pass  # closed while this side was sending
            return answer

    def get(self, name, method="GET", token=None, more=""):
        token = self.token if token is None else token
        return self.ask(f"{method} /{token}/{name} HTTP/1.1\r\nHost: localhost:{self.port}\r\n{more}\r\n".encode())

    def is_well(self, what):
        """A client that means well is answered."""
        answer = self.get("version")
        check(re.fullmatch(rb"HTTP/1\.1 200 OK\r\n(.+\r\n)+\r\n[0-9a-f]{16}", answer), f"{what}: {answer[:80]!r}")

    def end(self, number, what):
        self.process.send_signal(number)
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "none: it went on"
        check(code == 0, f"{what}: exit code {code}")
        error = self.process.stderr.read()
        check(error == "", f"{what}: {error[:2000]}")


def status(answer):
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(match[1]) if match else None


def heads(server):
    host = f"Host: localhost:{server.port}\r\n"
    path = f"/{server.token}/version"
    line = f"GET {path} HTTP/1.1\r\n"
    wrong = ("0" if server.token[0] != "0" else "1") + server.token[1:]
    table = [
        (200, line + host),
        (200, f"GET {path}?x=1 HTTP/1.0\r\nHOST:\t127.0.0.1\r\n"),
        (200, f"GET http://127.0.0.1:{server.port}{path} HTTP/1.1\r\n{host}"),
        (200, f"GET /{server.token}/ HTTP/1.1\r\n{host}"),
        (200, f"GET /{server.token}/page HTTP/1.1\r\n{host}"),
        (403, f"GET http://evil.example{path} HTTP/1.1\r\n{host}"),
        (400, f"GET http://127.0.0.1 HTTP/1.1\r\n{host}"),
        # names of elsewhere that were bound to this address
        (403, line + "Host: evil.example\r\n"),
        (403, line + "Host: localhost.evil.example\r\n"),
        (403, line + "Host: 127.0.0.1.evil.example\r\n"),
        (403, line + "Host: evil@localhost\r\n"),
        (403, line + "Host: localhost:80@evil.example\r\n"),
        (403, line + "Host: \r\n"),
        (403, line + "Host: [::1]\r\n"),
        # exactly one Host line
        (400, line),
        (400, line + host + "Host: evil.example\r\n"),
        (400, line + "Host: evil.example\r\n" + host),
        (400, line + host + host),
        (400, line + host + "hOsT:localhost\r\n"),
        (400, line + "X: y\r\n Host: localhost\r\n"),
        (400, line + "Host : localhost\r\n"),
        (400, line + " Host: localhost\r\n"),
        (400, line + "X: y\nHost: localhost\r\n"),
        (400, line + host + "no colon\r\n"),
        (400, line + host + ": no name\r\n"),
        (400, line + host + "X: a\0b\r\n"),
        (400, line + host + "X: a\rb\r\n"),
        (400, line + host + "X: a\x1b[2Jb\r\n"),
        # the token
        (404, f"GET / HTTP/1.1\r\n{host}"),
        (404, f"GET /version HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token} HTTP/1.1\r\n{host}"),
        (404, f"GET /{wrong}/version HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token[:-1]}/version HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token.upper()}A/version HTTP/1.1\r\n{host}"),
        (404, f"GET //{server.token}/version HTTP/1.1\r\n{host}"),
        (404, f"GET /?/{server.token}/version HTTP/1.1\r\n{host}"),
        (404, f"POST /{wrong}/version HTTP/1.1\r\n{host}"),
        # other names and methods
        (404, f"GET /{server.token}/../etc/passwd HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token}/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token}//etc/passwd HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token}/metrics.jsonl HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token}/version/ HTTP/1.1\r\n{host}"),
        (404, f"GET /{server.token}/version%00 HTTP/1.1\r\n{host}"),
        (400, f"GET /{server.token}/version\0 HTTP/1.1\r\n{host}"),
        (405, f"POST {path} HTTP/1.1\r\n{host}Content-Length: 3\r\n"),
        (405, f"DELETE {path} HTTP/1.1\r\n{host}"),
        (405, f"get {path} HTTP/1.1\r\n{host}"),
        (400, f"OPTIONS * HTTP/1.1\r\n{host}"),
        (400, f"CONNECT localhost:80 HTTP/1.1\r\n{host}"),
        # the first line
        (505, f"GET {path} HTTP/2.0\r\n{host}"),
        (400, f"GET {path}\r\n{host}"),
        (400, f"GET  {path} HTTP/1.1\r\n{host}"),
        (400, f"GET {path} HTTP/1.1 \r\n{host}"),
        (400, f"GET\t{path}\tHTTP/1.1\r\n{host}"),
        (400, f"GET {path} FTP/1.1\r\n{host}"),
        (400, f" {path} HTTP/1.1\r\n{host}"),
        (400, "\r\n"),
        (431, line + host + "X: " + "a" * 8200 + "\r\n"),
        (431, "A" * 20000),
    ]
    for want, head in table:
        got = status(server.ask(head.encode() + b"\r\n"))
        check(got == want, f"{got}, want {want}, of {head[:120]!r}")
    answer = server.get("page", method="HEAD")
    whole = server.get("page")
    check(answer.endswith(b"\r\n\r\n") and answer == whole[:len(answer)], "HEAD is the head of GET")
    check(b"Connection: close\r\n" in whole, "one request a connection")
    twice = server.ask((line + host + "\r\n").encode() * 2)
    check(twice.count(b"HTTP/1.1 ") == 1, "of pipelined requests the first is answered")
    body = server.ask((f"POST {path} HTTP/1.1\r\n{host}Content-Length: 200000\r\n\r\n" + "x" * 200000).encode())
    check(status(body) in (405, None), f"a body is not taken for requests: {body[:80]!r}")


def noise(server, rng, n):
    """Malformed and half heads: any answer except 200, or none."""
    good = f"GET /{server.token}/version HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode()
    for i in range(n):
        kind = rng.randrange(3)
        if kind == 0:
            raw = rng.randbytes(rng.randrange(1, 3000)) + b"\r\n\r\n"
        elif kind == 1:
            raw = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            raw = bytes(raw) + b"\r\n\r\n"
        else:
            at = rng.randrange(1, len(good))
            raw = good[:at] + rng.choice([b"\0", b"\r", b"\n", b" ", b":", b"\xff"]) + good[at:] + b"\r\n\r\n"
        got = status(server.ask(raw))
        allowed = {None, 400, 403, 404, 405, 431, 505}
        # A changed byte in a value or a blank around one may leave a request that is right.
        check(got in allowed | ({200} if kind > 0 else set()), f"{got} of noise {i}: {raw[:120]!r}")
    server.is_well("after noise")


def crowd(server, n):
    """Idle clients, more than are kept, some with a byte now and then; all stay open."""
    idle = []
    for i in range(n):
        s = server.connect()
        if i % 3 == 1:
            s.sendall(b"GET /")
        idle.append(s)
        if i % 50 == 0:
            server.is_well(f"beside {i + 1} idle clients")
    for s in idle[-20:]:
        try:
            s.sendall(b"x")
        except OSError:
            pass  # closed as one of the oldest
    server.is_well("beside slow clients")
    check(status(server.get("page")) == 200, "the page beside slow clients")
    return idle


def flood(server, rng, n):
    """Clients that ask for the page and do not read it, or go away at once."""
    kept = []
    raw = f"GET /{server.token}/page HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for _ in range(n):
        s = server.connect()
        try:
            s.sendall(raw)
        except ConnectionError:
            pass
        kept.append(s) if rng.randrange(2) else s.close()
    server.is_well("after a flood")
    return kept


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def big_run(folder, n_steps):
    os.mkdir(folder)
    with open(f"{folder}/metrics.jsonl", "w") as f:
        for i in range(1, n_steps + 1):
            f.write(json.dumps({"step": i, "loss": 5 / i, "lr": 1e-3, "grad_norm": 1.5, "step_ms": 2.5}) + "\n")


def main():
    dhelix, full = sys.argv[1], "--full" in sys.argv[2:]
    seed = int(os.environ.get("DHELIX_TEST_SEED", "20240917"))
    print(f"serve: DHELIX_TEST_SEED={seed}")
    rng = random.Random(seed)
    tmp = tempfile.mkdtemp(prefix="dhelix-serve-")
    big_run(f"{tmp}/run", 20000)
    os.chmod(f"{tmp}/run", 0o700)
    try:
        server = Server(dhelix, f"{tmp}/run")
        server.is_well("alone")
        heads(server)
        noise(server, rng, 3000 if full else 300)
        before = open_files(server)
        held = crowd(server, 1000 if full else 200)
        check(open_files(server) <= before + N_CLIENTS + 2, f"{open_files(server)} files are open, {before} before")
        held += flood(server, rng, 500 if full else 100)
        server.end(signal.SIGINT, "SIGINT among idle, slow and flooding clients")
        for s in held:
            s.close()

        # Another run of the server has another token.
        again = Server(dhelix, f"{tmp}/run")
        check(again.token != server.token, "a token is drawn for each server")
        again.end(signal.SIGTERM, "SIGTERM without clients")

        # Few descriptors: the oldest clients make room.
        few = Server(dhelix, f"{tmp}/run", launch=["sh", "-c", 'ulimit -n 20; exec "$@"', "sh"])
        held = crowd(few, 60)
        few.end(signal.SIGTERM, "SIGTERM with few descriptors")
        for s in held:
            s.close()

        # While a page is drawn that takes long others are answered, and a signal ends the server.
        big_run(f"{tmp}/big", 2000000 if full else 300000)
        slow = Server(dhelix, f"{tmp}/big")
        with slow.connect() as s:
            s.sendall(f"GET /{slow.token}/page HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            slow.is_well("while a page is drawn")
            slow.end(signal.SIGINT, "SIGINT while a page is drawn")
        left = [name for name in os.listdir(f"{tmp}/big") if name != "metrics.jsonl"]
        check(left == [], f"nothing is written into the run: {left}")
    finally:
        shutil.rmtree(tmp)
    print(f"{checks} checks, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    start = time.monotonic()
    code = main()
    print(f"{time.monotonic() - start:.1f} s")
    sys.exit(code)
