"""A browser without a window, driven over its DevTools pipe: no port, no packages.

    with Browser(path) as browser:
        page = browser.open(url, width=1280, height=900)
        page.evaluate("document.title")

Messages are JSON ended by a zero byte, on file descriptors 3 (to the browser) and 4."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    """A browser's path; None where there is none. DHELIX_BROWSER names one."""
    named = os.environ.get("DHELIX_BROWSER")
    return named if named else next((p for p in map(shutil.which, NAMES) if p), None)


class Browser:
    def __init__(self, path, timeout=60):
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="dhelix-browser-")
        self.events, self.pages, self.buffer, self.last_id = [], {}, b"", 0
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()

        def place():  # in the child, before exec: descriptors 3 and 4, whatever they were
            high_in, high_out = os.dup(to_browser), os.dup(from_browser)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self.process = subprocess.Popen(
            [path, "--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--force-color-profile=srgb",
             "--user-data-dir=" + self.profile, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=place)
        os.close(to_browser)
        os.close(from_browser)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        try:
            self.call("Browser.close")
        except (OSError, TimeoutError, RuntimeError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write_fd)
        os.close(self.read_fd)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_fd], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self.read_fd, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has ended")
            self.buffer += chunk
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width, height, dark=False, touch=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(domain + ".enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        page.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        page.call("Page.navigate", url=url)
        page.wait("document.readyState === 'complete'")
        return page


class Page:
    def __init__(self, browser, session, target):
        self.browser, self.session, self.target = browser, session, target

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait(self, condition):
        deadline = time.monotonic() + self.browser.timeout
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never came true: {condition}")
            time.sleep(0.02)

    def settle(self):
        """Until what was asked for has been drawn."""
        self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def key(self, key, code=None, shift=False):
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        virtual = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
                   "ArrowDown": 40, "Home": 36, "End": 35}.get(key, ord(key.upper()) if len(key) == 1 else 0)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, modifiers=8 if shift else 0,
                      windowsVirtualKeyCode=virtual, text=text if kind == "keyDown" else "")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def box(self, selector):
        return self.evaluate(f"(r => [r.x, r.y, r.width, r.height])(document.querySelector({json.dumps(selector)})"
                             ".getBoundingClientRect())")

    def complaints(self):
        """Errors and warnings of the console, exceptions, and requests for anything but the file itself."""
        said = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            params, method = event.get("params", {}), event["method"]
            if method == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                said.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                said.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                said.append(params["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                said.append("it asks for " + params["request"]["url"])
        return said

    def screenshot(self, path):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                          clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        with open(path, "wb") as out:
            out.write(base64.b64decode(image["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
